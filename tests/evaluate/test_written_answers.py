"""Generation tasks: evaluated completely or not at all, and reported in either case."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow.parquet as pq
import pytest

from pipeline.evaluate.settings import KNOWN_SUITES, KnownSuite, Suite
from tests.evaluate.test_suites import evaluate

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

DATA = {
    "tatoeba_nl_en": [{"nl": f"Ik zie {n} vogels.", "en": f"I see {n} birds."} for n in range(2, 7)],
    "gsm8k_en_test": [
        {"question": f"Ann has {n} pens and buys {n} more. How many has she?", "answer": "", "final": f"{2 * n}"}
        for n in range(500, 505)
    ],
}


def suite_of(name: KnownSuite, data: Path) -> Suite:
    """Return a suite of the project that reads a few lines of our own."""
    for stem, rows in DATA.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{stem}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return KNOWN_SUITES[name].model_copy(update={"data": str(data), "limit": 3})


def reading(milestone: Path, tokens: int, folder: Path) -> Path:
    """Return a copy of the model with the given context length."""
    made = shutil.copytree(milestone, folder / f"reads_{tokens}")
    config = made / "huggingface/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": tokens}))
    return made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "translation",
            {
                ("tatoeba_nl_en_to_dutch", "bleu", "en-nl"),
                ("tatoeba_nl_en_to_dutch", "chrf", "en-nl"),
                ("tatoeba_nl_en_to_english", "bleu", "nl-en"),
                ("tatoeba_nl_en_to_english", "chrf", "nl-en"),
            },
        ),
        ("reasoning_open", {("gsm8k_en_test", "exact_match,last_number", "en")}),
    ],
)
def test_generated_answers_are_scored(
    milestone: Path, tmp_path: Path, name: KnownSuite, expected: set[tuple[str, str, str]]
) -> None:
    result = evaluate(reading(milestone, 1024, tmp_path), tmp_path / "results.json", suite_of(name, tmp_path))
    assert {(row["task"], row["metric"], row["language"]) for row in result["tasks"]} == expected
    for row in result["tasks"]:
        verdict = "not better" if row["suite"] == "translation" else None  # the other one has no trivial rule
        assert (row["examples"], row["examples_too_long"], row["verdict"]) == (3, 0, verdict)
        assert (row["signature"] or "").startswith("nrefs:1|") == (row["metric"] in {"bleu", "chrf"})
    assert result["not_asked"] == []


def test_correct_answers_have_full_marks_and_few_shot_examples_are_fixed(milestone: Path, tmp_path: Path) -> None:
    prompts: list[str] = []

    def right(_: object, requests: list[Instance]) -> list[str]:
        prompts.extend(request.args[0] for request in requests)
        return [
            f" 9 * 9 = 81. The answer is {int(request.doc['final']):,}."
            if "final" in request.doc
            else f" {request.doc['en' if request.args[0].endswith('Engels:') else 'nl']}"
            for request in requests
        ]

    suites = [suite_of(name, tmp_path) for name in ("translation", "reasoning_open")]
    with mock.patch("lm_eval.models.huggingface.HFLM.generate_until", right):
        result = evaluate(reading(milestone, 1024, tmp_path), tmp_path / "results.json", *suites)
    values = {row["metric"]: row["value"] for row in result["tasks"]}
    assert values == {"bleu": pytest.approx(100), "chrf": pytest.approx(100), "exact_match,last_number": 1}
    answers = pq.read_table(tmp_path / "results.parquet").to_pylist()
    written = {row["written"] for row in answers if row["suite"] == "reasoning_open"}
    assert len(written) == 3 and written <= {f" 9 * 9 = 81. The answer is {2 * n:,}." for n in range(500, 505)}
    assert sum(row["exact_match,last_number"] or 0 for row in answers) == 3
    assert len(prompts) == 9
    assert {prompt.rpartition("\n\n")[0].count("\n\n") for prompt in prompts} == {3}, "four examples"
    assert len({prompt.rpartition("\n\n")[0] for prompt in prompts}) == 3


def test_task_too_long_for_the_model_is_named_and_others_are_evaluated(milestone: Path, tmp_path: Path) -> None:
    suites = [suite_of("translation", tmp_path), KNOWN_SUITES["use_cases"], KNOWN_SUITES["safety"]]
    result = evaluate(reading(milestone, 128, tmp_path), tmp_path / "results.json", *suites)
    assert {row["suite"] for row in result["tasks"]} == {"safety"}
    assert {one["task"] for one in result["not_asked"]} == {
        *("tatoeba_nl_en_to_dutch", "tatoeba_nl_en_to_english", "polder_nl_lezen", "polder_nl_antwoorden"),
        *("polder_en_reading", "polder_en_answers", "polder_nl_eenvoudig", "polder_en_simple"),
        *("polder_nl_invullen", "polder_en_cloze"),
        *("polder_nl_samenvatting", "polder_en_summary", "polder_nl_bronnen", "polder_en_sources"),
    }
    assert {one["sequence_length"] for one in result["not_asked"]} == {128}
    assert all(one["tokens_needed"] > 128 for one in result["not_asked"])


def test_item_is_evaluated_if_prompt_plus_64_tokens_fit(milestone: Path, tmp_path: Path) -> None:
    prompts: list[str] = []

    def nothing(_: object, requests: list[Instance]) -> list[str]:
        prompts.extend(request.args[0] for request in requests)
        return ["" for _ in requests]

    suite = suite_of("translation", tmp_path)
    (skipped, *_) = evaluate(reading(milestone, 128, tmp_path), tmp_path / "short.json", suite)["not_asked"]
    least = skipped["tokens_needed"]
    with mock.patch("lm_eval.models.huggingface.HFLM.generate_until", nothing):
        result = evaluate(reading(milestone, least, tmp_path), tmp_path / "results.json", suite)
        assert {row["examples"] + row["examples_too_long"] for row in result["tasks"]} == {3}
        assert skipped["task"] in {row["task"] for row in result["tasks"]}
        assert 1 + max(len(prompt.encode()) for prompt in prompts) + 64 == least, (
            "a byte is a token, after begin-of-text"
        )
        shorter = evaluate(reading(milestone, least - 1, tmp_path), tmp_path / "shorter.json", suite)
    assert skipped["task"] in {one["task"] for one in shorter["not_asked"]}


def test_model_with_constant_output_is_named(milestone: Path, tmp_path: Path) -> None:
    with mock.patch(
        "lm_eval.models.huggingface.HFLM.generate_until", lambda _, requests: ["The answer is 7." for _ in requests]
    ):
        suite = suite_of("reasoning_open", tmp_path)
        (row,) = evaluate(reading(milestone, 1024, tmp_path), tmp_path / "results.json", suite)["tasks"]
    assert row["constant_answer"] == "The answer is 7." and row["value"] == 0 and row["high"] > 0.5
