"""Stale records are found, whether Snakemake remembers their jobs or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.config.configuration_file import load_configuration
from pipeline.core.archived_run_files import FileStore
from pipeline.core.attestation_log import ATTEMPT_BEGAN, EVIDENCE_CHANGED, read_log
from pipeline.core.hashing import hash_file
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.stale_records import StaleRecords
from tests.conftest import Project, new_project
from tests.rules.test_determinism import hashes
from tests.rules.test_reruns import TRAINING
from tests.stored import forget_record, read_attempts

RECORDS = "results/micro/provenance/records"
BATCHES = "results/micro/provenance/batches"


def stale(project: Project, monkeypatch: pytest.MonkeyPatch) -> StaleRecords:
    """Return the stale records of a project of which Snakemake forgot everything."""
    monkeypatch.chdir(project.folder)
    return StaleRecords(Dag(load_configuration(Path("config/micro.yaml"))), Path("nothing"))


@pytest.mark.slow
def test_invalid_record_file_is_outdated(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stale(project, monkeypatch)
    assert result.find_outdated() == [] == result.find_missing_outputs()
    records = [f"{RECORDS}/{name}.json" for name in ("tokens.index.main", "tokenizer.train.main")]
    Path(records[0]).write_text('{"step": "tokens.in')
    Path(records[1]).write_text("[]")
    assert {str(path) for path in result.find_outdated()} == set(records)


@pytest.mark.slow
def test_folder_with_a_missing_file_is_incomplete(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stale(project, monkeypatch)
    (project.results / "models/base/final/model.safetensors").unlink()
    assert result.find_missing_outputs() == [Path(f"{RECORDS}/pretrain.export.base.json")]


@pytest.mark.slow
def test_batch_with_a_missing_unit_file_is_incomplete(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stale(project, monkeypatch)
    (project.results / "corpus/main/final/nl_brieven.1.parquet").unlink()
    forget_record(project.results, "corpus.signatures.main.nl_gids.0")
    lost = ("corpus.signatures.main.nl_gids.0", "corpus.decontaminate.main.nl_brieven.1")
    assert result.find_missing_outputs() == [Path(f"{BATCHES}/{name}.json") for name in lost]


@pytest.mark.slow
def test_job_that_read_other_bytes_is_detected_by_its_record(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stale(project, monkeypatch)
    assert result.find_batches_with_changed_raw_files() == [] == result.find_changed_tokens("base", "4")
    batch = f"{BATCHES}/corpus.filter.main.nl_gids.0.json"
    assert result.find_changed_batch(batch, result.dag.batch_hash({"source": "nl_gids", "batch": "0"})) == []
    manifest = project.results / "sources/nl_gids/manifest.json"
    content = json.loads(manifest.read_text())
    content["units"]["0"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    assert result.find_changed_batch(batch, result.dag.batch_hash({"source": "nl_gids", "batch": "0"})) == [Path(batch)]
    raw = project.path("config/corpus/nl_gids.jsonl")
    raw.write_bytes(raw.read_bytes() + b"\n")
    result = stale(project, monkeypatch)  # an invocation lists the raw files once
    assert result.find_batches_with_changed_raw_files() == [Path(f"{BATCHES}/sources.fingerprint.nl_gids.0.json")]
    index = project.results / "tokens/main/index.json"
    index.write_text(index.read_text() + " ")
    assert result.find_changed_tokens("base", "4") == [Path(f"{RECORDS}/pretrain.segment.base.4.json")]


@pytest.mark.slow
def test_jobs_after_a_checkpoint_rerun_although_snakemake_forgot_it(project: Project) -> None:
    shutil.rmtree(project.path(".snakemake"))
    project.edit("config/micro.yaml", "vocabulary_size: 600", "vocabulary_size: 640")
    before = sorted(path.name for path in (project.folder / RECORDS).iterdir())
    project.run("--dry-run")
    assert sorted(path.name for path in (project.folder / RECORDS).iterdir()) == before
    ran = project.ran()
    assert {stage: ran[stage] for stage in TRAINING} == TRAINING


@pytest.mark.slow
def test_invocation_refused_by_a_lock_deletes_nothing(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    lock, old = (
        project.path(".snakemake/locks/0.output.lock"),
        project.path(f"{BATCHES}/corpus.filter.main.gone.0.json"),
    )
    for path, text in ((lock, "results/micro/plan/plan.json\n"), (old, "{}")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert "LockException" in project.run("plan", check=False) and old.exists()
    lock.unlink()
    project.run("plan")
    assert not old.exists()


@pytest.mark.slow
def test_unit_removed_from_a_source_keeps_its_attempts(project: Project) -> None:
    project.train_alone()
    run, gone = project.results, "nl_brieven.1"
    before = {name for name in read_attempts(run) if f".{gone}." in name}
    listed = json.loads((run / "sources/nl_brieven/listing/1.json").read_text())["files"]
    for file in listed:
        (project.path("config/corpus/nl_brieven") / Path(file["name"]).name).unlink()
    output = project.run("plan", "--dry-run")
    assert "files belong to units that the sources no longer have" in output
    assert (run / f"corpus/main/final/{gone}.parquet").exists() and len(_records_of(run, gone)) == len(before) == 6
    project.run("plan")
    assert _records_of(run, gone) == [] == [*run.glob(f"corpus/main/f*/{gone}.parquet")]
    lines = [line for line in read_log(run) if line.statement.kind not in (ATTEMPT_BEGAN, EVIDENCE_CHANGED)]
    entries = [entry for line in lines for entry in (*line.statement.subject, *line.statement.byproducts)]
    attested, store = {entry.name: entry.sha256 for entry in entries}, FileStore(run)
    for name in before:
        path = f"{layout.ATTEMPTS}/{name}"
        assert hash_file(store.find(path)) == attested[path]


def _records_of(run: Path, unit: str) -> list[str]:
    return [file.name for file in FileStore(run).find_all(layout.RECORD) if file.name.endswith(f".{unit}.json")]


@pytest.mark.slow
def test_damaged_archive_is_refused_before_anything_is_deleted_or_run(project: Project) -> None:
    archive = next(path for path in layout.BATCH_ARCHIVE.glob(project.results) if ".corpus.filter." in path.name)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-40])
    before = hashes(project.results)
    output = project.run(check=False)
    assert f"{archive.name} is damaged: it cannot be read as a ZIP file: restore it from a backup" in output
    assert hashes(project.results) == before
    archive.write_bytes(whole)
    assert "Nothing to be done" in project.run("--dry-run")
