"""Records that no longer say the truth are found, whether Snakemake remembers their jobs or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.config.configuration_file import load_configuration
from pipeline.workflow.dag import Dag
from pipeline.workflow.stale_records import StaleRecords
from tests.conftest import Project, new_project
from tests.rules.test_reruns import TRAINING

RECORDS = "results/micro/provenance/records"
BATCHES = "results/micro/provenance/batches"


def stale(project: Project, monkeypatch: pytest.MonkeyPatch) -> StaleRecords:
    """Return the stale records of a project of which Snakemake forgot everything."""
    monkeypatch.chdir(project.folder)
    return StaleRecords(Dag(load_configuration(Path("config/micro.yaml"))), Path("nothing"))


@pytest.mark.slow
def test_a_file_that_is_no_record_does_not_fit(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stale(project, monkeypatch)
    assert found.find_outdated() == [] == found.find_missing_outputs()
    records = [f"{RECORDS}/{name}.json" for name in ("tokens.index.main", "tokenizer.train.main")]
    Path(records[0]).write_text('{"step": "tokens.in')
    Path(records[1]).write_text("[]")
    assert {str(path) for path in found.find_outdated()} == set(records)


@pytest.mark.slow
def test_a_folder_of_which_a_file_is_gone_is_incomplete(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stale(project, monkeypatch)
    (project.results / "models/base/final/model.safetensors").unlink()
    assert found.find_missing_outputs() == [Path(f"{RECORDS}/pretrain.export.base.json")]


@pytest.mark.slow
def test_a_batch_of_which_a_unit_lost_a_file_is_incomplete(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stale(project, monkeypatch)
    (project.results / "corpus/main/final/nl_brieven.1.parquet").unlink()
    (project.folder / RECORDS / "corpus.signatures.main.nl_gids.0.json").unlink()
    lost = ("corpus.signatures.main.nl_gids.0", "corpus.decontaminate.main.nl_brieven.1")
    assert found.find_missing_outputs() == [Path(f"{BATCHES}/{name}.json") for name in lost]


@pytest.mark.slow
def test_a_job_that_read_other_bytes_is_known_by_its_record(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stale(project, monkeypatch)
    assert found.find_changed_raw_files() == [] == found.find_changed_tokens("base", "4")
    batch = f"{BATCHES}/corpus.filter.main.nl_gids.0.json"
    assert found.find_changed_batch(batch, found.dag.batch_hash({"source": "nl_gids", "batch": "0"})) == []
    manifest = project.results / "sources/nl_gids/manifest.json"
    content = json.loads(manifest.read_text())
    content["units"]["0"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    assert found.find_changed_batch(batch, found.dag.batch_hash({"source": "nl_gids", "batch": "0"})) == [Path(batch)]
    raw = project.path("config/corpus/nl_gids.jsonl")
    raw.write_bytes(raw.read_bytes() + b"\n")
    found = stale(project, monkeypatch)  # a start lists the raw files once
    assert found.find_changed_raw_files() == [Path(f"{BATCHES}/sources.fingerprint.nl_gids.0.json")]
    index = project.results / "tokens/main/index.json"
    index.write_text(index.read_text() + " ")
    assert found.find_changed_tokens("base", "4") == [Path(f"{RECORDS}/pretrain.segment.base.4.json")]


@pytest.mark.slow
def test_what_follows_a_checkpoint_runs_again_although_snakemake_forgot_it(project: Project) -> None:
    shutil.rmtree(project.path(".snakemake"))
    project.edit("config/micro.yaml", "vocabulary_size: 600", "vocabulary_size: 640")
    before = sorted(path.name for path in (project.folder / RECORDS).iterdir())
    project.run("--dry-run")
    assert sorted(path.name for path in (project.folder / RECORDS).iterdir()) == before
    ran = project.ran()
    assert {stage: ran[stage] for stage in TRAINING} == TRAINING


@pytest.mark.slow
def test_a_start_that_is_refused_for_a_lock_deletes_nothing(tmp_path: Path) -> None:
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
