"""The PROV-JSON of a run agrees with its records, and the PROV library reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prov.model import ProvActivity, ProvDerivation, ProvDocument, ProvEntity, ProvUsage

from pipeline import layout
from tests.provenance.conftest import describe
from tests.stored import read_records


def read(folder: Path, kind: type) -> list[Any]:
    return list(ProvDocument.deserialize(str(folder / layout.PROV)).get_records(kind))


def test_prov_library_reads_jobs_files_and_times(finished: Path) -> None:
    records = [record for record in read_records(finished) if record["step"] != "provenance.crate"]
    activities_by_id = {str(activity.identifier): activity for activity in read(finished, ProvActivity)}
    activities = {name: activity for name, activity in activities_by_id.items() if "attempt/" not in name}
    assert len(activities) == len(records) == len(activities_by_id) - 2, "two attempts left no record"
    starts = sorted(activity.get_startTime().isoformat() for activity in activities.values())
    assert starts == sorted(record["started"].replace(".000", "") for record in records)
    labels = [activity.label for activity in activities.values()]
    assert len(set(labels)) == len(labels) and "corpus.statistics (corpus=main)" in labels
    files = {(entry["path"], entry["sha256"]) for r in records for entry in (*r["inputs"], *r["outputs"])}
    assert len(read(finished, ProvEntity)) == len(files)
    assert len(read(finished, ProvUsage)) == sum(len(record["inputs"]) for record in records)


def test_single_output_is_derived_from_the_inputs_of_its_job(finished: Path) -> None:
    labels = {str(entity.identifier): str(entity.label) for entity in read(finished, ProvEntity)}
    made = {labels[str(record.args[0])] for record in read(finished, ProvDerivation)}
    assert any("statistics.json" in name for name in made)
    assert not [name for name in made if "filtered" in name]


def test_failed_attempts_are_activities_without_outputs(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    name = run.attempt("corpus.ngrams", {"corpus": "main"}, "failed", error="no")
    describe(run.folder, [], provider="Institute")
    assert f"run:attempt/{name}" in {str(activity.identifier) for activity in read(run.folder, ProvActivity)}
    assert '"Institute"' in (run.folder / layout.PROV).read_text()
