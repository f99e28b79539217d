"""A document on the opt-out list is removed with its copy in another source, and the report proves it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.audit.document_lineage import trace_document
from pipeline.cli.entry_point import main
from tests.conftest import Project
from tests.rules.test_reruns import MICRO, TOKENIZER, TRAINING, new_letter
from tests.stored import read_attempts


def done(project: Project, before: set[str]) -> dict[str, list[str]]:
    """Return the repeated units by corpus stage."""
    results: dict[str, list[str]] = {}
    attempts = read_attempts(project.results)
    for name in sorted(attempts.keys() - before):
        attempt = attempts[name]
        if "unit" in attempt["instance"]:
            unit = f"{attempt['instance']['source']}.{attempt['instance']['unit']}"
            results.setdefault(attempt["step"].split(".")[1], []).append(unit)
    return results


def final_ids(results: Path) -> set[str]:
    files = (results / "corpus/main/final").glob("*.parquet")
    return {name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist()}


@pytest.mark.slow
def test_document_is_forgotten(project: Project) -> None:
    project.train_alone()
    results = project.results
    rows: list[dict[str, Any]] = pq.read_table(results / "corpus/main/final/nl_gids.0.parquet").to_pylist()
    document = max(rows, key=lambda row: len(row["text"]))
    shutil.copytree(results, results.parent / "earlier")
    project.path("config/corpus/nl_brieven/zz-kopie.txt").write_text(document["text"][:-20])
    project.path("config/opt-out.txt").write_text("nergens.nl\n")
    project.edit(MICRO, "{name: nl_gids, ", "{name: nl_gids, opt_out: config/opt-out.txt, ")
    project.run("corpus")
    assert document["id"] in final_ids(results)
    assert json.loads((results / "corpus/main/forgotten.json").read_text())["before"] == {"documents": 0, "copies": 0}

    before = project.attempts()
    original = document["id"].rsplit("/", 1)[1]
    project.path("config/opt-out.txt").write_text(f"date: 2026-02-01\nnergens.nl\nid: {original}\n")
    ran = project.ran()
    gids, copy = ["nl_gids.0"], "nl_brieven.1"
    again = {"filter": gids, "reserved": gids, "signatures": gids, "deduplicate": [copy, *gids]}
    assert done(project, before) == {**again, "matches": gids, "decontaminate": gids}
    assert {**TOKENIZER, **TRAINING, "sources_manifest": 1, "opt_out_remains": 1}.items() <= ran.items()

    copy_id = "nl_brieven/zz-kopie.txt/0"
    assert not {document["id"], copy_id} & final_ids(results)
    assert "which is reserved, id" in "\n".join(trace_document(results, copy_id))
    proof = json.loads((results / "corpus/main/forgotten.json").read_text())
    assert proof["before"] == {"documents": 1, "copies": 1} and proof["after"] == {"documents": 0, "copies": 0}
    assert proof["sources"]["nl_gids"]["entries_without_documents"]["domains"] == ["nergens.nl"]
    assert proof["searched"]["documents"] == len(final_ids(results))
    remains = json.loads((results / "report/remains.json").read_text())
    assert remains["tokens"]["main"] == {"documents": len(final_ids(results)), "found": 0}
    named = {place["path"] for place in remains["places"] if place["certain"]}
    assert {f"earlier/{name}" for name in ("corpus/main/final", "tokens/main", "models/base/final")} <= named
    assert {path for path in named if path.startswith("micro/")} == {"micro/corpus/main/filtered"}
    page = (results / "report/index.html").read_text()
    assert "reserved documents: 1, copies of them: 1" in page and "earlier/models/base/milestones/8" in page
    assert main(["verify", str(results)]) == 0

    shutil.rmtree(results.parent / "earlier")
    assert dict(project.planned()) == {"opt_out_remains": 1, "report_page": 1, "provenance_crate": 1}


@pytest.mark.slow
def test_new_file_with_an_opt_out_entry_is_excluded_immediately(project: Project) -> None:
    listed = project.path("config/opt-out.txt")
    listed.write_text("nergens.nl\n")
    project.edit(MICRO, "{name: nl_brieven, ", "{name: nl_brieven, opt_out: config/opt-out.txt, ")
    project.keep_sources("nl_brieven")
    project.run("corpus")
    new_letter(project)
    listed.write_text("nergens.nl\nid: nl_brieven/zz-nieuw.txt/0\n")
    project.run("corpus")
    assert "nl_brieven/zz-nieuw.txt/0" not in final_ids(project.results)
    proof = json.loads((project.results / "corpus/main/forgotten.json").read_text())
    assert proof["before"] == {"documents": 1, "copies": 0} and proof["after"] == {"documents": 0, "copies": 0}
