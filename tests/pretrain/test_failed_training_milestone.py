"""A cell that runs out of memory or diverges has that as its result, which every later step passes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.core.errors import Diverged, InputError, OutOfMemory
from pipeline.evaluate import baselines, samples, suites
from pipeline.evaluate.item_results import read_item_answers
from pipeline.evaluate.settings import BaselineSettings, SamplesSettings, SuitesSettings
from pipeline.pretrain import export, failed_training_milestone, segment
from pipeline.pretrain.checkpoints.recovery import Rewinds
from pipeline.pretrain.monitors import memory_estimate
from pipeline.pretrain.monitors.held_out_document_losses import read_document_losses
from pipeline.pretrain.processes import supervisor, trainer
from pipeline.pretrain.settings import ExportSettings, SegmentSettings

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]


def train(settings: SegmentSettings, tokens: Tokens, folder: Path, previous: list[Path]) -> dict[str, Any]:
    places = {"milestone": folder / str(settings.last_step), "scratch": folder / "scratch"}
    return segment.run(settings, **tokens, **places, previous=previous, launch="")


def cell(settings: SegmentSettings) -> SegmentSettings:
    return settings.model_copy(update={"records_outcome": True})


def ended(folder: Path, step: int = 10) -> Path:
    """Return a milestone, or a final model, with an outcome."""
    failed_training_milestone.write_failure(
        folder,
        failed_training_milestone.TrainingFailure("diverged", "loss is inf", 3, step),
        [{"step": 1, "loss": 5.0}],
    )
    return folder


def test_outcome_replaces_leftovers_of_an_earlier_attempt(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5/weights").write_text("half of them")
    assert sorted(path.name for path in ended(tmp_path / "5").iterdir()) == ["metrics.jsonl", "outcome.json"]


def test_divergence_is_the_result_of_a_cell(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    asked = settings(last_step=5, learning_rate=1e30, warmup_steps=0, stability={"skips_in_a_row": 1})
    with pytest.raises(Diverged, match=r"in batch 2 of step \d"):
        train(asked, tokens, tmp_path, [])
    assert not (tmp_path / "5").exists(), "an ordinary model fails and leaves nothing"
    counts = train(cell(asked), tokens, tmp_path, [])
    failure = failed_training_milestone.read_failure(tmp_path / "5")
    assert failure is not None and counts["outcome"] == failure._asdict() and failure.step == 5
    assert failure.status == "diverged" and "lower learning_rate" in failure.reason
    assert counts["steps"] == failure.reached_step < 5 and counts["tokens"] == counts["steps"] * 4 * 32
    assert sorted(path.name for path in (tmp_path / "5").iterdir()) == ["metrics.jsonl", "outcome.json"]
    behind = settings(first_step=5, last_step=10, steps=10)
    later = train(cell(behind), tokens, tmp_path, [tmp_path / "5"])
    assert later["outcome"] == {**failure._asdict(), "step": 10} and later["steps"] == 0
    outputs = {name: tmp_path / name for name in ("final", "metrics", "document_losses", "tensorboard")}
    result = export.run(ExportSettings(), milestones=[tmp_path / "10", tmp_path / "5"], **outputs)
    assert result["outcome"]["step"] == 10 and result["steps"] == counts["steps"] == failure.reached_step
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["outcome.json"]
    assert not len(read_document_losses(tmp_path / "document_losses")), "a diverged cell is compared by no document"
    assert len((tmp_path / "metrics").read_text().splitlines()) >= result["steps"]


@pytest.mark.parametrize("status", ["out of memory", "diverged", "refused", "failed"])
def test_process_status_determines_the_outcome(
    settings: Make, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(supervisor, "_run_processes", lambda *given: {"status": status, "error": "because"})
    if status in ("refused", "failed"):
        with pytest.raises((InputError, RuntimeError), match="because"):
            train(cell(settings()), tokens, tmp_path, [])
        return
    counts = train(cell(settings()), tokens, tmp_path, [])
    assert counts["outcome"] == {"status": status, "reason": "because", "reached_step": 0, "step": 10}
    with pytest.raises((OutOfMemory, Diverged), match="because"):
        train(settings(), tokens, tmp_path / "ordinary", [])


def test_process_reports_that_it_ran_out_of_memory(
    settings: Make, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    paths = {"index": tokens["index"], "scratch": tmp_path}
    one = {"identity": "", "launcher": "none", "platform": None, "world_size": 1, "number": 1}
    arguments = supervisor.WorkerArguments(settings=settings(), paths=paths, **one)
    (tmp_path / "arguments.json").write_text(arguments.model_dump_json(), encoding="utf-8")

    def full(*given: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    with (
        pytest.raises(OutOfMemory, match="out of memory"),
        memory_estimate.explain_out_of_memory(settings(), tokens["index"], 1),
    ):
        full()
    monkeypatch.setattr(trainer, "Trainer", full)
    monkeypatch.setattr(trainer.sys, "argv", ["worker", str(tmp_path / "arguments.json")])
    assert trainer.main() == 2
    assert json.loads((tmp_path / "outcome.json").read_text())["status"] == "out of memory"
    assert not torch.distributed.is_initialized()


def test_too_many_rewinds_are_a_divergence(tmp_path: Path) -> None:
    rewind = {"back_to": 3, "data_steps": [3], "step": 4, "reason": "loss is inf"}
    rewinds = Rewinds(tmp_path / "rewinds.json", "x")
    rewinds.record_rewind(rewind, 1)
    with pytest.raises(Diverged, match="after 2 rewinds"):
        rewinds.record_rewind(rewind, 1)


def test_failed_training_is_not_evaluated_and_the_reason_is_recorded(tmp_path: Path) -> None:
    milestone = ended(tmp_path / "10")
    files = {"results": tmp_path / "results.json", "answers": tmp_path / "items.parquet"}
    asked = {"suites": [], "seed": 42, "batch_size": 8}
    settings = SuitesSettings.model_validate({"model": "x", "step": 10, **asked})
    none = {"tasks": [], "index": tmp_path / "none", "baselines": []}
    assert suites.run(settings, milestone=milestone, **none, **files) == {"tasks": 0, "examples": 0}  # type: ignore[arg-type]
    content = json.loads(files["results"].read_text())
    assert content["tasks"] == [] and content["not_asked"] == [{"task": "all", "reason": "loss is inf"}]
    assert read_item_answers(files["answers"]).likely == {}
    untrained = BaselineSettings.model_validate({"name": "untrained-x", "untrained_seed": 7, **asked})
    assert baselines.run(untrained, model=[milestone], tasks=[], **files) == {"tasks": 0, "examples": 0}
    assert json.loads(files["results"].read_text())["step"] is None
    written = tmp_path / "samples.json"
    sample_settings = SamplesSettings(model="x", tokens=40, minimum_characters=40, held_out=5)
    places = {"index": milestone, "tokenizer": milestone, "suffixes": [], "harmful": [], "samples": written}
    samples.run(sample_settings, final=ended(tmp_path / "final"), **places)  # type: ignore[arg-type]
    content = json.loads(written.read_text())
    assert content["samples"] == [] and content["written"]["characters"] == 0
    assert content["outcome"]["status"] == "diverged"


def test_invalid_outcome_file_is_refused(tmp_path: Path) -> None:
    assert failed_training_milestone.read_failure(tmp_path) is None
    for text in ("{", '{"status": "diverged"}'):
        (tmp_path / failed_training_milestone.OUTCOME_FILE).write_text(text)
        with pytest.raises(InputError, match=r"outcome\.json is no outcome .* remove"):
            failed_training_milestone.read_failure(tmp_path)
