"""Refusals, messages and deletions of an invocation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.exceptions import WorkflowError

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.rule_factory import CheckpointInputs
from pipeline.workflow.stale_records import StaleRecords
from pipeline.workflow.startup import Startup
from pipeline.workflow.steps import STEPS
from tests.record_content import record_content


class StartupMessages(list[str]):
    def startup(self, *words: str, is_main_process: bool = True) -> Startup:
        return Startup([*words], is_main_process=is_main_process, warn=self.append)


def test_invalid_run_is_refused_and_a_dry_run_reports_it() -> None:
    message = StartupMessages()
    with pytest.raises(InputError, match="no"):
        message.startup("all").refuse("no")
    dry = message.startup("-n")
    dry.refuse("no")
    dry.refuse_once("never")
    dry.refuse_once("never")
    dry.warn_once("yes")
    dry.warn_once("yes")
    assert message == ["This would be refused: no", "This would be refused: never", "yes"]
    for _ in range(2):
        with pytest.raises(InputError):
            message.startup("all").refuse_once("no")


def test_job_process_prints_and_deletes_nothing(tmp_path: Path) -> None:
    message = StartupMessages()
    job = message.startup("all", is_main_process=False)
    job.refuse("no")
    job.warn("yes")
    job.delete_records([tmp_path], "is old")
    assert message == [] and not job.executes


def test_source_without_files_is_refused_before_any_work(
    everything: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.workflow.cache_between_invocations.cache_code_versions", lambda: None)
    raw = everything.dump_explicit_settings() | {"data": str(tmp_path)}
    with pytest.raises(InputError, match=r"models\.longer\.pretrained"):
        StartupMessages().startup("-n").build_dag(everything, lambda config: None)
    raw["sources"][0]["path"] = "nowhere/*.txt"
    with pytest.raises(InputError, match="nowhere"):
        StartupMessages().startup("-n").build_dag(parse_configuration(raw), lambda config: None)


def test_package_may_be_missing_that_no_job_of_the_run_needs(
    everything: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_against_lock(self: Any, step: str, lock: str, platform: str | None) -> dict[str, str]:
        if step == "corpus.classify":
            raise InputError("onnxruntime is missing")
        return {}

    monkeypatch.setattr("pipeline.job.environment_lock_comparison.Environment.check_against_lock", check_against_lock)
    assert Dag(everything).find_lock_mismatch() == "onnxruntime is missing"
    corpora = {name: section for name, section in everything.corpus.items() if name != "scored"}
    assert Dag(everything.model_copy(update={"corpus": corpora})).find_lock_mismatch() is None


def test_unresponsive_image_refuses_only_an_execution(everything: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers_nothing(config: Config) -> None:
        raise InputError("no image")

    monkeypatch.setattr("pipeline.workflow.cache_between_invocations.cache_code_versions", lambda: None)
    models = everything.model_copy(update={"models": {}, "experiments": {}})
    message = StartupMessages()
    message.startup("-n").build_dag(models, answers_nothing)
    assert message[0] == "This would be refused: no image"
    with pytest.raises(InputError, match="no image"):
        message.startup("all").build_dag(models, answers_nothing)


def _stale(folder: Path) -> Any:
    record = folder / "record.json"
    record.touch()
    none: Any = lambda: []  # noqa: E731
    kinds = ("damaged_archives", "removed_units", "missing_outputs", "batches_with_changed_raw_files")
    return SimpleNamespace(**{f"find_{kind}": none for kind in kinds}, find_outdated=lambda: [record])


@pytest.mark.parametrize(("word", "is_there"), [("all", False), ("-n", True), ("--unlock", True)])
def test_only_an_execution_deletes_a_stale_record(
    word: str, is_there: bool, tmp_path: Path, everything: Config
) -> None:
    message = StartupMessages()
    message.startup(word).delete_stale_records(Dag(everything), _stale(tmp_path))
    assert (tmp_path / "record.json").exists() == is_there
    assert len(message) == 1 and message[0].endswith("or is damaged: its step runs again")


def test_invocation_stopped_by_the_snakemake_lock_deletes_nothing(
    tmp_path: Path, everything: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = Dag(everything)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.output.lock").write_text(f"{dag.run}/report/index.html\n")
    StartupMessages().startup("all").delete_stale_records(dag, _stale(tmp_path))
    assert (tmp_path / "record.json").exists()


def _behind(everything: Config, startup: Startup) -> CheckpointInputs:
    dag = Dag(everything)
    done = SimpleNamespace(output="complete")
    checkpoints = SimpleNamespace(sources_complete=SimpleNamespace(get=lambda: done))
    return CheckpointInputs(dag, StaleRecords(dag, Path("nothing")), checkpoints, startup)


def test_forgotten_batch_with_changed_raw_files_is_rerun(everything: Config, tmp_path: Path) -> None:
    message = StartupMessages()
    startup = message.startup("all")
    behind = _behind(everything, startup)
    startup.delete_stale_records(behind.dag, _stale(tmp_path))
    job = {"corpus": "main", "source": "nl_gids", "batch": "0"}
    batch = Path(behind.dag.batch_record_path("corpus.filter", *job.values()))
    batch.parent.mkdir(parents=True)
    outputs: list[Any] = []
    batch.write_text(json.dumps({**record_content("corpus.filter", instance=job), "of": "others", "outputs": outputs}))
    assert behind.sources_complete(STEPS["corpus.filter"], job) == "complete"
    assert not batch.exists() and message[-1].endswith("read other raw files: its step runs again")


def test_segment_that_would_discard_a_training_is_refused(everything: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    message = StartupMessages()
    for word in ("all", "-n"):
        behind = _behind(everything, message.startup(word))
        monkeypatch.setattr(behind.dag.finished, "find_refusal", lambda model: f"{model} stays")
        if word == "all":
            with pytest.raises(WorkflowError, match="base stays"):
                behind.previous_milestone(STEPS["pretrain.segment"], {"model": "base", "step": "8"})
        else:
            result = behind.previous_milestone(STEPS["pretrain.segment"], {"model": "base", "step": "8"})
            assert [Path(path).name for path in result] == ["4"]
    assert message == ["This would be refused: base stays"]
