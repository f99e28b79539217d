"""Truncated prompts are counted by the tokenizer alone, and their scores have no verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from pipeline.evaluate.settings import Suite
from tests.evaluate.conftest import made
from tests.evaluate.test_suites import evaluate

LENGTH = 128
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {name}.jsonl{shots}}}}}
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{target}"
target_delimiter: "{delimiter}"
{more}
"""
CHOICE = 'doc_to_choice: ["kat", "hond"]\nmetric_list: [{metric: acc}]'
WRITE = "generation_kwargs: {until: ['.'], max_gen_toks: 16, do_sample: false}\nmetric_list: [{metric: exact_match}]"
LIKELY = "metric_list: [{metric: acc}, {metric: perplexity}]"
SHOTS = "num_fewshot: 2\nfewshot_config: {sampler: first_n}\n"
SHOWN = [{"question": f"Voorbeeld {number} is wat lang?", "answer": "hond", "right": 1} for number in range(2)]
SIZES = (5, 60, 100, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 140, 542)


@pytest.fixture(scope="module")
def short_milestone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("short"), sequence_length=LENGTH)


def write_suite(folder: Path, **tasks: dict[str, str]) -> Suite:
    """Write tasks with questions of the given letters, which are as many tokens of the byte-level tokenizer."""
    folder.mkdir()
    rows = [{"question": "v" * size, "answer": "hond", "right": 1} for size in SIZES]
    for name, fields in tasks.items():
        (folder / f"{name}.yaml").write_text(TASK.format(**{"name": name, "shots": "", **fields}), encoding="utf-8")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in SHOWN)
    (folder / "shots.jsonl").write_text(lines, encoding="utf-8")
    return Suite(name="own", language="nl", folder=str(folder))


def test_truncated_prompts_are_counted_per_kind_of_task(
    short_milestone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = {"kind": "multiple_choice", "target": "{{right}}", "delimiter": " ", "more": CHOICE}
    likely = {"kind": "loglikelihood", "target": "{{answer}}", "delimiter": " ", "more": LIKELY}
    write = {"kind": "generate_until", "target": "{{answer}}", "delimiter": " ", "more": WRITE}
    suite = write_suite(
        tmp_path / "own",
        choice=choice,
        likely=likely,
        write=write,
        few={**choice, "shots": ", fewshot: shots.jsonl", "more": SHOTS + CHOICE},
    )
    tasks = evaluate(short_milestone, tmp_path / "results.json", suite)["tasks"]
    tokenizer = Tokenizer.from_file(str(short_milestone / "huggingface/tokenizer.json"))

    def tokens(text: str) -> int:  # begin-of-text is read first
        return 1 + len(tokenizer.encode(text, add_special_tokens=False).ids)

    before = "".join(f"{one['question']} {one['answer']}\n\n" for one in SHOWN)
    # The last token of an answer is not read.
    alone = [tokens("v" * size + " hond") - 1 > LENGTH for size in SIZES]
    behind_shots = [tokens(before + "v" * size + " hond") - 1 > LENGTH for size in SIZES]
    written = [tokens("v" * size) + 16 > LENGTH for size in SIZES]
    assert 0 < sum(alone) < sum(behind_shots) < len(SIZES) and 0 < sum(written) < len(SIZES)
    of_likely = [tokens("v" * size + "hond") - 1 > LENGTH for size in SIZES]  # it has no delimiter
    expected = {  # truncated, not evaluated
        "choice": (sum(alone), 0),
        "likely": (sum(of_likely), 0),
        "few": (sum(behind_shots), 0),
        "write": (0, sum(written)),
    }
    assert {(row["task"], row["examples_truncated"], row["examples_too_long"]) for row in tasks} == {
        (name, *counts) for name, counts in expected.items()
    }
    printed = capsys.readouterr().out
    for name, (truncated, unasked) in expected.items():
        asked = len(SIZES) - unasked
        assert f"own: {name}: the prompts of {truncated} of {asked} examples are truncated" in printed
        assert f"length {LENGTH}, and {unasked} more examples are not asked" in printed
    verdicts = {(row["task"], row["metric"]): row["verdict"] for row in tasks}
    assert 2 * sum(behind_shots) > len(SIZES) > 2 * sum(alone)
    assert verdicts["choice", "acc"] is not None and verdicts["few", "acc"] is None, "most prompts are truncated"


def test_shipped_task_counts_truncated_prompts_and_text_windows_do_not(short_milestone: Path, tmp_path: Path) -> None:
    data_set = tmp_path / "mirror" / "facebook" / "belebele"
    (data_set / "data").mkdir(parents=True)
    (data_set / "README.md").write_text(
        "---\nconfigs:\n- config_name: nld_Latn\n  data_files:\n  - split: test\n    path: data/nld_Latn.parquet\n---\n"
    )
    answers = {f"mc_answer{number}": word for number, word in enumerate(["mat", "stoel", "bed", "tafel"], start=1)}
    rows: list[dict[str, Any]] = [
        {"flores_passage": "De kat. " * 68, "question": f"Waar? ({n})", **answers, "correct_answer_num": str(1 + n % 4)}
        for n in range(12)
    ]
    pq.write_table(pa.Table.from_pylist(rows), data_set / "data" / "nld_Latn.parquet")
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Er was eens een kat. " * 40}) + "\n", encoding="utf-8")
    shipped = Suite(name="shipped", language="nl", tasks=["belebele_nld_Latn"], data=str(tmp_path / "mirror"))
    texts = Suite.model_validate(
        {
            "name": "texts",
            "language": "",
            "texts": {"tales": {"language": "nl", "path": str(tmp_path / "texts.jsonl")}},
        }
    )
    tasks = evaluate(short_milestone, tmp_path / "results.json", shipped, texts)["tasks"]
    counts = {(row["task"], row["examples"], row["examples_truncated"], row["examples_too_long"]) for row in tasks}
    assert counts == {("belebele_nld_Latn", 12, 12, 0), ("tales", 1, 0, 0)}
    assert all(row["verdict"] is None and row["p_value"] is None for row in tasks if row["suite"] == "shipped")


def test_answer_longer_than_the_context_has_no_likelihood_request(short_milestone: Path, tmp_path: Path) -> None:
    likely = {"kind": "loglikelihood", "target": "{{answer}}", "delimiter": " ", "more": LIKELY}
    suite = write_suite(tmp_path / "own", likely=likely)
    data = tmp_path / "own" / "likely.jsonl"
    plain = evaluate(short_milestone, tmp_path / "plain.json", suite)["tasks"]
    with data.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"question": "v", "answer": "h" * 300, "right": 1}) + "\n")
    result = evaluate(short_milestone, tmp_path / "results.json", suite)["tasks"]
    protocols = {"protocol": None}  # the second one covers one more item
    assert [row | protocols for row in result] == [row | protocols | {"examples_too_long": 1} for row in plain]
