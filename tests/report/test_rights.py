"""Document licenses and damaged files are shown wherever a reader looks for the training data."""

from __future__ import annotations

import json
from typing import Any

from pipeline.report.data_section import count_tokens_by_license
from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline

LICENSES = {"CC-BY-4.0": {"documents": 500, "bytes": 10}, "CC0-1.0": {"documents": 1055, "bytes": 2_000_000}}
DAMAGED = [
    {"file": f"a-{HOSTILE}.jsonl.gz", "bytes": 20_000, "damage": "truncated", "value": None},
    {"file": "b.jsonl", "bytes": 10_000, "damage": "broken_records", "value": "3 of 4 records, first 1 (broken_json)"},
]


def mixed(run: Run, **changes: Any) -> None:
    """Give the documents of one source their own licenses, and damage to two of its files."""
    statistics = run.read("corpus/main/statistics.json")
    own = {"licenses": LICENSES, "refused_licenses": [["CC-BY-NC-4.0", 7], [HOSTILE, 2], ["", 3], [None, 5]]}
    sizes = {"raw_bytes": 3_000_000, "read_bytes": 2_970_000, "quarantined_bytes": 30_000, "quarantined": DAMAGED}
    statistics["sources"]["tales"] |= {**own, **sizes, **changes}
    statistics["licenses"] = LICENSES
    for part in (statistics["sources"]["tales"], statistics["totals"]):
        part["stages"][0]["removed"]["license_not_allowed"] = 7
    run.write("corpus/main/statistics.json", statistics)
    manifest = run.read("sources/tales/manifest.json")
    manifest["source"]["license_key"] = "metadata.license"
    run.write("sources/tales/manifest.json", manifest)


def test_mixed_source_shows_the_licenses_of_its_documents(run_folder: Run) -> None:
    mixed(run_folder)
    written = made(run_folder)
    page = outline(written["page"])
    assert page.text.count("CC0-1.0 × 1,055; CC-BY-4.0 × 500") == 2  # on the first page and in the table of sources
    assert "Licenses of the result: CC-BY-4.0 500 documents, 10 B; CC0-1.0 1,055 documents, 2.00 MB" in page.text
    refused = f"CC-BY-NC-4.0 × 7; {HOSTILE} × 2; nothing × 3; others × 5."
    assert f"Removed from tales because of the license field: {refused}" in page.text
    card = written["model_card"].read_text()
    assert (
        "CC0-1.0 × 1,055; CC-BY-4.0 × 500" in card and "documents of corpus main: CC-BY-4.0 500, CC0-1.0 1,055" in card
    )
    summary = (written["papers"] / "training-content-summary.en.md").read_text()
    assert "CC0-1.0 × 1,055; CC-BY-4.0 × 500" in summary
    graph = json.loads((written["papers"] / "spdx.json").read_text())["@graph"]
    concluded = [part["to"] for part in graph if part.get("relationshipType") == "hasConcludedLicense"]
    expressions = {part["spdxId"]: part.get("simplelicensing_licenseExpression") for part in graph if "spdxId" in part}
    assert [[expressions[one] for one in to] for to in concluded] == [["CC-BY-4.0 AND CC0-1.0"]]
    assert "| main | filter: license\\_not\\_allowed | 7 |" in summary


def test_damaged_files_are_highlighted_and_add_up(run_folder: Run) -> None:
    mixed(run_folder)
    written = made(run_folder)
    page = outline(written["page"])
    assert "✗ 2 damaged files (30.0 kB) were left out." in page.text
    assert f"tales a-{HOSTILE}.jsonl.gz 20,000 0.67 % truncated" in page.text
    assert "tales b.jsonl 10,000 0.33 % broken_records: 3 of 4 records, first 1 (broken_json)" in page.text
    held = "corpus main, source tales: bytes on disk = read + in damaged files 3,000,000 = 2,970,000 + 30,000 ✓ yes"
    assert held in outline(written["jobs"]).text
    card = written["model_card"].read_text()
    assert "b.jsonl of tales (10,000 bytes, broken" in card and "<script" not in card
    mixed(run_folder, read_bytes=1)
    assert "3,000,000 = 1 + 30,000 ✗ no" in outline(made(run_folder)["page"]).text


def test_undamaged_run_mentions_no_damaged_files(run_folder: Run) -> None:
    assert "damaged files" not in outline(made(run_folder)["page"]).text


def test_tokens_under_the_source_license_use_the_license_of_its_manifest(run_folder: Run) -> None:
    licenses = {"laws": "MIT", "others": "CC0-1.0"}
    sources = {
        "laws": {"documents": 1, "tokens": 10},
        "others": {"documents": 2, "tokens": 20},
        "tales": {"documents": 3, "tokens": 30},
    }
    own = {"MIT": {"documents": 2, "tokens": 15}, "CC-BY-4.0": {"documents": 1, "tokens": 15}}
    index = {"sources": sources, "licenses": {"": {"documents": 3, "tokens": 30}, **own}}
    assert count_tokens_by_license(index, licenses) == {
        "MIT": {"documents": 3, "tokens": 25},
        "CC-BY-4.0": {"documents": 1, "tokens": 15},
        "CC0-1.0": {"documents": 2, "tokens": 20},
    }
    assert count_tokens_by_license({"sources": sources, "licenses": own}, licenses) == own, (
        "as earlier versions counted"
    )
    content = run_folder.read("tokens/main/index.json")
    run_folder.write(
        "tokens/main/index.json", content | {"sources": {"laws": sources["laws"]}, "licenses": {"": sources["laws"]}}
    )
    page = outline(made(run_folder)["page"])
    assert "Tokens by license, both splits" in page.text and "CC0-1.0 1 10 100" in page.text
