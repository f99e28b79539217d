"""The report shows the proof, and every place that still contains forgotten text; without a list it shows nothing."""

from __future__ import annotations

from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline

PROOF = {
    "corpus": "main",
    "sources": {
        "tales": {
            "date": "2026-01-01",
            "sha256": "a" * 64,
            "entries": {"domains": 2, "ids": 1, "holders": 1},
            "entries_without_documents": {"domains": [HOSTILE], "ids": [], "holders": ["x"]},
            "documents": 17,
            "bytes": 4321,
            "copies": {"laws": 3},
        }
    },
    "before": {"documents": 17, "copies": 3},
    "after": {"documents": 0, "copies": 0},
    "searched": {"documents": 1581, "bytes": 7_588_800, "units": 2},
}
PLACE = {"run": "old", "kind": "milestone", "path": HOSTILE, "certain": True, "documents": 20, "why": HOSTILE}
SEARCH = {
    "tokens": {"main": {"documents": 1581, "found": 0}},
    "runs": ["old", "tiny"],
    "archives": 1,
    "places": [PLACE, {**PLACE, "kind": "archive", "certain": False, "documents": None}],
}


def test_proof_and_remains_are_shown_and_escaped(run_folder: Run) -> None:
    run_folder.write("corpus/main/forgotten.json", PROOF)
    run_folder.write("report/remains.json", SEARCH)
    written = made(run_folder)
    page = outline(written["page"])
    assert "Before, reserved documents: 17, copies of them: 3. After: 0 found in 1,581 documents" in page.text
    assert "Left out on request: 17 documents, copies of them: 3. Forgetting" in page.text.partition("1. Summary")[0]
    assert "tales 2026-01-01 aaaaaaaaaaaaaaaa… 2 1 1 2 17 4,321 laws 3" in page.text
    assert (
        "Token set main: 0 found in 1,581 documents. Searched besides, below the results folder: runs: 2" in page.text
    )
    assert f"Entries of the list of tales that name nothing: {HOSTILE}, x." in page.text
    assert "A text cannot be removed from weights: delete the model, or train it again" in page.text
    assert f"old milestone {HOSTILE} yes 20 {HOSTILE}" in page.text
    assert f"old archive {HOSTILE} suspected – {HOSTILE}" in page.text
    assert page.all("script") == [{}] and "#forgetting" in [link.get("href") for link in page.all("a")]
    summary = (written["papers"] / "training-content-summary.en.md").read_text()
    assert "reserved documents left out: 17, copies of them: 3; a search of the 1,581 used documents" in summary


def test_reservation_files_of_hosts_are_counted_in_page_and_papers(run_folder: Run) -> None:
    counted = {"ai.txt": {"hosts": 1, "documents": 0}, "robots.txt": {"hosts": 1200, "documents": 16}}
    sources = {"tales": {**PROOF["sources"]["tales"], "reservations": counted}, "laws": PROOF["sources"]["tales"]}
    run_folder.write("corpus/main/forgotten.json", {**PROOF, "sources": sources})
    run_folder.write("report/remains.json", SEARCH)
    written = made(run_folder)
    assert (
        "Files by which hosts of the source tales reserve rights: ai.txt: hosts 1, documents 0; "
        "robots.txt: hosts 1,200, documents 16." in outline(written["page"]).text
    )
    summary = (written["papers"] / "training-content-summary.en.md").read_text()
    assert "source tales: robots.txt of 1,200 hosts reserves rights, for 16 documents" in summary


def test_absence_of_remains_is_shown_only_with_opt_out_lists(run_folder: Run) -> None:
    text = outline(made(run_folder)["page"]).text
    assert "Forgetting" not in text and "Left out on request" not in text
    run_folder.write("corpus/main/forgotten.json", {**PROOF, "before": {"documents": 1, "copies": 0}})
    run_folder.write("report/remains.json", {**SEARCH, "places": []})
    text = outline(made(run_folder)["page"]).text
    assert "Nothing below the results folder still holds it." in text
    assert "Left out on request: 1 document, copies of it: 0." in text


def test_proof_must_match_what_the_stages_removed(run_folder: Run) -> None:
    run_folder.write("corpus/main/forgotten.json", PROOF)
    text = outline(made(run_folder)["jobs"]).text
    assert "removed as opt_out by filter = what the lists name 0 = 17 ✗" in text
    assert "removed as opt_out by deduplicate = what the lists name 0 = 3 ✗" in text
    assert "documents searched for what is forgotten = documents out 1,581 = 1,581 ✓" in text
    assert "corpus main: nothing that is forgotten is found 0 = 0 ✓" in text
