"""The papers and bills of materials of an example with every kind of fact are those of `expected`, to the letter.

After a change of words, `pytest tests/report/papers/test_expected_documents.py --write-expected` writes them, to be
read in the difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.core.settings import Pretrained
from pipeline.report.papers.content_summary_rubric import format_score
from pipeline.report.papers.write import DOCUMENT_NAMES
from tests.report.example import Run
from tests.report.papers.test_content_summary_rubric import STATED, contact, score  # noqa: F401 - the fixture `contact`
from tests.report.papers.test_cyclonedx import CARD, fill_example  # noqa: F401 - the fixture `stated`
from tests.report.papers.test_papers import written
from tests.report.test_forgetting import PROOF
from tests.report.test_quality import CLASSIFIER

EXPECTED = Path(__file__).parent / "expected"
CRAWLED = {
    "data_categories": {"tales": "crawled"},
    "systems": "chat programs",
    "released": "2026-07-01",
    "license_evidence": {"tales": "letter.pdf", "laws": "law.pdf"},
    "crawlers": [
        {
            "name": "Spin",
            "purpose": "tales",
            "behavior": "asks first",
            "first_day": "2025-01-01",
            "last_day": "2025-03-01",
        }
    ],
}


@pytest.fixture
def varied(stated: Run) -> Path:
    """The papers of a run with a base model, a classifier, an opt-out, licenses of documents, years and domains."""
    laws = stated.read("sources/laws/manifest.json")
    laws["source"]["license_key"] = "license"
    laws["source"]["dataset"] = {"name": "overheid/wetten", "revision": "a" * 40, "split": "train"}
    stated.write("sources/laws/manifest.json", laws)
    counts = stated.read("corpus/main/statistics.json")
    counts["sources"]["laws"]["licenses"] = {
        "CC0-1.0": {"documents": 1000},
        "MIT OR CC-BY-4.0": {"documents": 26},
    }
    counts["sources"]["laws"]["stages"][0]["removed"] |= {"opt_out": 4, "harmful": 2}
    counts["totals"]["stages"][0]["removed"] |= {"opt_out": 4, "harmful": 2}
    counts["flags"] = {"scheldwoorden": {"flagged": 2, "removed": 1, "kept": 1}}
    counts["classifiers"] = {"edu": CLASSIFIER}
    stated.write("corpus/main/statistics.json", counts)
    listed = {**PROOF["sources"]["tales"], "reservations": {"robots.txt": {"hosts": 1200, "documents": 16}}}
    stated.write("corpus/main/forgotten.json", {**PROOF, "sources": {"tales": listed}})
    described = {
        "corpus": "main",
        "domains": {"tales": {"domains": 12, "largest": [["a.nl", 2, 1000], ["b.nl", 3, 900], ["c.nl", 1, 10]]}},
        "years": {"not stated": {"documents": 1000}, "1848": {"documents": 1}, "2019": {"documents": 580}},
        "lengths": {"nl": [[18, 66], [19, 50]]},
        "sources": {"laws": {"genre": "laws", "documents": 1026}, "tales": {"genre": "prose", "documents": 555}},
    }
    stated.write("corpus/main/dataset.json", described)
    index = stated.read("tokens/main/index.json")
    index["train"]["groups"] = [
        {"source": "laws", "language": "nl", "tokens": 1_000_000, "documents": 1000},
        {"source": "tales", "language": "en", "tokens": 540_000, "documents": 500},
    ]
    stated.write("tokens/main/index.json", index)
    losses = {"step": 500, "validation_loss": 2.5, "validation_bits_per_byte": 0.8}
    *lines, _ = (stated.root / "models/base/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    stated.write("models/base/metrics.jsonl", "\n".join([*lines, json.dumps(losses)]) + "\n")
    for step in ("250", "500"):
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = stated.read(name)
        shape = {
            "preset": "llama3",
            "layers": 4,
            "width": 64,
            "heads": 8,
            "key_value_heads": 2,
            "feed_forward_width": 96,
        }
        record["settings"] |= {"seed": 7, "architecture": shape}
        record["settings"]["training"] |= {"batch_size": 16, "sequence_length": 256, "optimizer": "adamw"}
        gpus = [{"name": "H100"}] * 2
        machines = {
            "n1": {"cpu_model": "B"},
            "n2": {"cpu_model": "A", "processors": 8, "gpus": gpus},
            "n3": {"cpu_model": "B"},
        }
        record["counts"] |= {"active_parameters": 3_000_000, "nodes": machines}
        stated.write(name, record)
    hashes = {"tales": "a" * 64, "laws": "b" * 64}
    taken = Pretrained(folder="{data}/models/Large", license="Apache-2.0", url="https://example.org/large")
    stated.settings = stated.settings.model_copy(
        update={"pretrained": {"base": taken}, "license_evidence_sha256": hashes}
    )
    return written(stated, **{**STATED, **CARD, **CRAWLED})


@pytest.fixture
def read_expected(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Return the function that reads an expected file, and that writes the text first with --write-expected."""

    def read(name: str, text: str) -> str:
        if request.config.getoption("--write-expected"):
            (EXPECTED / name).write_text(text, encoding="utf-8")
        return (EXPECTED / name).read_text(encoding="utf-8")

    return read


@pytest.mark.parametrize("name", DOCUMENT_NAMES)
def test_document_has_the_expected_text(varied: Path, name: str, read_expected: Callable[[str, str], str]) -> None:
    text = (varied / f"{name}.en.md").read_text(encoding="utf-8")
    assert text == read_expected(f"{name}.en.md", text)


@pytest.mark.parametrize("name", ["spdx", "cyclonedx"])
def test_bill_of_materials_has_the_expected_content(
    varied: Path, name: str, read_expected: Callable[[str, str], str]
) -> None:
    content = json.loads((varied / f"{name}.json").read_text(encoding="utf-8"))
    text = yaml.safe_dump(content, allow_unicode=True, default_flow_style=None, sort_keys=False, width=120)
    assert content == yaml.safe_load(read_expected(f"{name}.yaml", text))


def test_score_of_a_summary_without_statements_has_the_expected_lines(
    contact: Run,  # noqa: F811
    tmp_path: Path,
    read_expected: Callable[[str, str], str],
) -> None:
    lines = format_score(score(contact, tmp_path, data_categories={"tales": "crawled", "laws": "third-party"}))
    text = "\n".join(lines) + "\n"
    assert text == read_expected("score.txt", text)
