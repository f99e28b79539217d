"""The used and remaining energy of an unfinished run, against hand-computed values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.application import main
from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import CostRange, ForecastJob, forecast_remaining_jobs
from pipeline.energy.run_energy_report_reader import EnergyAccounting, EnergyFigure, validate_accounting
from pipeline.workflow.energy_progress import (
    format_progress_table,
    job_sizes,
    load_started_configuration,
    measure_steps,
    read_unfinished_run,
)
from tests.forecast.test_forecast_inputs import MODEL, figure, raw, write
from tests.record_content import attempt_content, record_content

FORESEEN = {"joules": 90.0, "low_joules": 80.0, "high_joules": 100.0, "seconds": 9.0}


def finished(run: Path, step: str, name: str, joules: float, seconds: float, *, spread: float = 1.0) -> dict[str, Any]:
    """Write record and attempt of a job, and return its energy accounting."""
    attempt = f"{name}.20260301T0700"
    content = attempt_content(step, status="finished", wall_seconds=seconds)
    write(run / f"provenance/attempts/{attempt}.json", content)
    write(
        run / f"provenance/records/{name}.json", record_content(step, attempt=f"{attempt}.json", wall_seconds=seconds)
    )
    return {attempt: {**figure(joules, spread), "step": step, "instance": {}, "fate": "finished"}}


def make_accounting(jobs: dict[str, Any]) -> EnergyAccounting:
    sums = dict.fromkeys(("total", "finished", "lost", "idle", "snakemake"), figure(1.0, 1.0))
    return validate_accounting({**sums, "steps": {}, "jobs": jobs, "components": {}, "nodes": {}}, "made up")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A started and unfinished run of four token shards and a model in two segments."""
    monkeypatch.chdir(tmp_path)
    training = {**MODEL["training"], "milestone_every": 2}
    sections = {"tokens": {"main": {"shards": 4}}, "models": {"base": {**MODEL, "training": training}}}
    content = raw(tmp_path, 1000, **sections)
    run = tmp_path / "results/of_1000"
    write(run / "provenance/frozen/1.json", {"configuration": content})
    write(
        run / "plan/plan.json",
        {"forecast": {"steps": {"corpus.filter": {**FORESEEN, "low_seconds": 8.0, "high_seconds": 10.0}}}},
    )
    return run


def of(run: Path, config: Config, accounting: EnergyAccounting) -> dict[str, Any]:
    return {step.name: step for step in measure_steps(config, read_unfinished_run(run), accounting)}


def test_remaining_energy_of_a_step_follows_its_finished_jobs(run: Path) -> None:
    config = load_started_configuration(run, None)
    jobs = finished(run, "tokens.shard", "tokens.shard.main.0", 8.0, 1.0)
    jobs |= finished(run, "tokens.shard", "tokens.shard.main.2", 12.0, 3.0)
    steps = of(run, config, make_accounting(jobs))
    shards = steps["tokens.shard"]
    assert (shards.done, shards.jobs, shards.so_far.joules) == (2, 4, 20.0)
    forecast = forecast_remaining_jobs([ForecastJob(1, 1.0, 8.0), ForecastJob(1, 3.0, 12.0)], [1, 1])
    assert shards.joules.value == 20.0 and shards.seconds.value == 4.0
    assert shards.joules == pytest.approx((forecast.joules, forecast.low, forecast.high))
    assert shards.basis == "2 of its jobs"


def test_segment_counts_by_steps_and_a_lost_job_is_used_but_not_done(run: Path) -> None:
    config = load_started_configuration(run, None)
    work = job_sizes(config, "pretrain.segment")
    assert len(set(work.values())) == 1 and len(work) == 4, "four segments of two steps each"
    jobs = finished(run, "pretrain.segment", "pretrain.segment.base.2", 100.0, 10.0, spread=2.0)
    jobs["lost"] = {**figure(50.0, 1.0), "step": "pretrain.segment", "instance": {}, "fate": "lost"}
    segments = of(run, config, make_accounting(jobs))["pretrain.segment"]
    assert segments.so_far.joules == 150.0 and segments.joules.value == pytest.approx(300.0)
    assert segments.joules.high > 2 * 300, "the accounting itself may be off by a factor of two"


def test_steps_whose_energy_is_known_in_different_ways_are_labeled_one_by_one(run: Path) -> None:
    jobs = finished(run, "tokens.shard", "tokens.shard.main.0", 7200.0, 1.0)
    accounting = make_accounting(jobs)
    shards = of(run, load_started_configuration(run, None), accounting)["tokens.shard"]
    assert "so far (measured)" in format_progress_table([shards], accounting)[0]
    estimated = EnergyFigure(
        joules=3600.0, low_joules=1.0, high_joules=9000.0, estimated_joules=3600.0, meters=("model",)
    )
    other = replace(shards, name="tokens.index", so_far=estimated)
    head, first, second, *_ = format_progress_table([shards, other], accounting)
    assert "so far " in head and "(" not in head
    assert "2.00 Wh measured" in first and "1.00 Wh estimated" in second


def test_work_of_a_unit_is_its_bytes(run: Path) -> None:
    assert job_sizes(load_started_configuration(run, None), "corpus.filter") == {"corpus.filter.main.laws.0": 1000.0}


def test_steps_without_finished_jobs_use_the_forecast_or_nothing(run: Path) -> None:
    accounting = make_accounting({})
    steps = of(run, load_started_configuration(run, None), accounting)
    assert steps["corpus.filter"].joules == CostRange(90.0, 80.0, 100.0)
    assert steps["corpus.filter"].basis == "the plan's forecast"
    assert steps["tokens.index"].joules is None and steps["tokens.index"].so_far == EnergyFigure()
    text = "\n".join(format_progress_table([*steps.values()], accounting))
    assert "remaining: not known, because there is no estimate of sources.listing" in text and "not measured" in text
    progress = "\n".join(format_progress_table([steps["corpus.filter"]], accounting))
    assert "remaining, estimated by the plan's forecast: corpus.filter" in progress
    assert "between jobs Snakemake 0.278 mWh, idle nodes 0.278 mWh" in progress, "1 J each"
    assert "remaining, estimated: 0.0250 Wh (0.0222 to 0.0278 Wh; ends" in progress and "9 s (8 s to 10 s)" in progress


def test_finished_run_has_no_remaining_energy(run: Path) -> None:
    jobs: dict[str, Any] = {}
    for shard in range(4):
        jobs |= finished(run, "tokens.shard", f"tokens.shard.main.{shard}", 8.0, 1.0)
    accounting = make_accounting(jobs)
    shards = of(run, load_started_configuration(run, None), accounting)["tokens.shard"]
    assert shards.joules == CostRange(0.0, 0.0, 0.0)
    assert "remaining: nothing, every job is done" in format_progress_table([shards], accounting)


def test_command_reads_a_run_and_refuses_other_folders(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(run, "tokens.shard", "tokens.shard.main.0", 8.0, 1.0)
    assert main(["energy", str(run)]) == 0
    text = capsys.readouterr().out
    assert "1 of 4" in text and "Attempts without any reading" in text and "8 J" not in text
    assert main(["energy", str(run), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    steps = {step["step"]: step for step in content["steps"]}
    assert (steps["tokens.shard"]["done"], steps["tokens.shard"]["jobs"]) == (1, 4)
    assert steps["corpus.filter"]["remaining_joules"] == {"value": 90.0, "low": 80.0, "high": 100.0}
    assert steps["tokens.index"]["remaining_joules"] is None and content["so_far"]["joules"] == 0.0
    with pytest.raises(InputError, match="is not a run that was started"):
        main(["energy", str(run.parent)])
