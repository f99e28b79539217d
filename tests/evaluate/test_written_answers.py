"""Tasks that let the model write: asked whole or not at all, and told in either case."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluate.settings import KNOWN_SUITES, KnownSuite, Suite
from tests.evaluate.test_suites import evaluate

DATA = {
    "tatoeba_nl_en": [{"nl": f"Ik zie {n} vogels.", "en": f"I see {n} birds."} for n in range(2, 7)],
    "gsm8k_en_test": [
        {"question": f"Ann has {n} pens and buys {n} more. How many has she?", "answer": "", "final": f"{2 * n}"}
        for n in range(5)
    ],
}


def suite_of(name: KnownSuite, data: Path) -> Suite:
    """Return a suite of the project that reads a few lines of our own."""
    for stem, rows in DATA.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{stem}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return KNOWN_SUITES[name].model_copy(update={"data": str(data), "limit": 3})


def reading(milestone: Path, tokens: int, folder: Path) -> Path:
    """Return a copy of the model that reads so many tokens."""
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
def test_what_the_model_writes_is_scored(
    milestone: Path, tmp_path: Path, name: KnownSuite, expected: set[tuple[str, str, str]]
) -> None:
    found = evaluate(reading(milestone, 1024, tmp_path), tmp_path / "results.json", suite_of(name, tmp_path))
    assert {(row["task"], row["metric"], row["language"]) for row in found["tasks"]} == expected
    for row in found["tasks"]:
        assert (row["examples"], row["examples_too_long"], row["verdict"], row["higher_is_better"]) == (3, 0, None, True)
        assert (row["signature"] or "").startswith("nrefs:1|") == (row["metric"] in {"bleu", "chrf"})
    assert found["not_asked"] == []
