"""Provider answers: shown as stated, otherwise as not stated with their key, and counted."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.report.settings import NOT_IN_PAPERS, Crawler, Disclosure, Generator, Text
from pipeline.workflow.steps import step_settings
from tests.report.example import Run
from tests.report.test_page import made

DAY = datetime.date(2026, 5, 4)
TEXTS = [name for name, field in Disclosure.model_fields.items() if field.annotation in (str | None, Text | None)]
BY_SOURCE = {"disclosure.license_evidence", "disclosure.source_descriptions"}
OTHERS = {
    "summary_url": "https://voorbeeld.nl/samenvatting",
    "model_documentation": "https://voorbeeld.nl/model",
    "placed_on_market": DAY,
    "released": DAY,
    "latest_data": DAY,
    "summary_changed": DAY,
    "languages": ["nl", "en"],
    "crawlers": [Crawler(name="Spin", purpose="law", behavior="asks", first_day=DAY, last_day=DAY)],
    "synthetic_data": [Generator(name="Maker", provider="Huis", purpose="dialogues")],
}


def papers(run_folder: Run, **changes: object) -> str:
    arguments = made(run_folder, **changes)
    files = [arguments["model_card"], *sorted(arguments["papers"].glob("*.en.md"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def count_missing_answers(text: str) -> list[tuple[int, int]]:
    """Return the number of answers in each paper, and how many of them are missing."""
    result = re.findall(r"Of (\d+) answers that the provider alone can give, (\d+) (?:is|are) not stated", text)
    return [(int(count), int(missing)) for count, missing in result]


def test_every_missing_answer_is_requested_and_counted(run_folder: Run) -> None:
    text = papers(run_folder, provider=None, contact=None)
    fields = [f"disclosure.{name}" for name in Disclosure.model_fields if name not in NOT_IN_PAPERS]
    fields += ["run.provider", "run.contact"]
    assert {*re.findall(r"not stated \(`([\w.]+)`\)", text)} == {*fields, *BY_SOURCE}
    assert count_missing_answers(text) == [(len(fields), len(fields))]


@pytest.mark.parametrize("name", [*TEXTS, *OTHERS])
def test_stated_answers_are_shown_and_not_requested_again(run_folder: Run, name: str) -> None:
    value = OTHERS.get(name, f"the words of {name.replace('_', ' ')}")
    before, after = papers(run_folder), papers(run_folder, disclosure=Disclosure.model_validate({name: value}))
    assert f"`disclosure.{name}`" in before and f"`disclosure.{name}`" not in after
    assert [missing for _, missing in count_missing_answers(after)] == [
        missing - 1 for _, missing in count_missing_answers(before)
    ]
    shown = {"languages": "nl; en", "crawlers": "Spin, 05/2026 to 05/2026: law; asks"}
    shown |= {
        "synthetic_data": "Maker of Huis: dialogues",
        "placed_on_market": "04/05/2026 (4 May 2026)",
        "latest_data": "05/2026",
    }
    shown |= dict.fromkeys(("released", "summary_changed"), "04/05/2026 (4 May 2026)")
    text = shown.get(name, str(value)).replace("https://", "")
    assert text in after and text not in before


def test_none_is_an_answer_and_an_empty_value_is_not(run_folder: Run) -> None:
    text = papers(run_folder, disclosure=Disclosure(crawlers=[], synthetic_data=[]))
    assert "behavior and period**: none" in text and "Models that generated texts**: none" in text
    assert "behavior and period**: not stated (`disclosure.crawlers`)" in papers(run_folder)


def test_complete_answers_leave_nothing_open(run_folder: Run) -> None:
    everything = {**{name: "stated" for name in TEXTS}, **OTHERS}
    everything["license_evidence"] = {"laws": "letter.pdf", "tales": "b.pdf"}
    described = {"content": "texts", "collected": "not known"}
    everything["source_descriptions"] = {"laws": described, "tales": described}
    stated = Disclosure.model_validate(everything)
    hashes = {"tales": "e" * 64, "laws": "f" * 64}
    changes = {"provider": "P", "contact": "C", "disclosure": stated, "license_evidence_sha256": hashes}
    text = papers(run_folder, **changes)
    assert "`disclosure." not in text and count_missing_answers(text) == []
    assert text.count("answers that the provider alone can give are stated.") == 1
    assert f"laws: letter.pdf, sha256 {'f' * 64}; tales: b.pdf, sha256 {'e' * 64}" in text


def test_stated_text_is_not_interpreted_as_markup(run_folder: Run) -> None:
    text = papers(run_folder, disclosure=Disclosure(intended_use="a | b <script>", removal="[x](javascript:1)"))
    assert "a \\| b &lt;script&gt;" in text and "](javascript" not in text.replace("\\](", "")


def configured(tmp_path: Path, evidence: dict[str, str]) -> Config:
    (tmp_path / "a.txt").write_text("Een wet.")
    rights = {"basis": "license", "holder": "Staat"}
    source = {"name": "laws", "path": str(tmp_path / "*.txt"), "language": "nl", "license": "CC0-1.0", "rights": rights}
    return parse_configuration(
        {"run": {"name": "x"}, "sources": [source], "disclosure": {"license_evidence": evidence}}
    )


def test_evidence_is_shown_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "letter.pdf").write_bytes(b"yes")
    settings = step_settings(configured(tmp_path, {"laws": str(tmp_path / "letter.pdf")}), "report.page", {})
    told_hash = settings.model_dump()["license_evidence_sha256"]["laws"]
    assert told_hash == "8a798890fe93817163b10b5f7bd2ca4d25d84c52739a645a889c173eee7d9d3d"


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        ({"laws": "gone.pdf"}, r"license_evidence\.laws: there is no file gone\.pdf"),
        ({"tales": "a"}, "there is no source 'tales'"),
    ],
)
def test_missing_evidence_file_is_refused(tmp_path: Path, evidence: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        configured(tmp_path, evidence).license_evidence_hashes()
