"""The summary of a dry run shows which jobs run, why, and how long they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import layout
from pipeline.cli.plan_output import load_configuration
from pipeline.workflow.dry_run_summary import PlannedJob, plan_lines
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.job_time_estimates import JobTimes
from tests.conftest import Project

CHANGED = "params have changed since last execution"
AFTER = "input files updated by another job"


@pytest.fixture(scope="module")
def dag(finished: Project) -> Dag:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(finished.folder)
        return Dag(load_configuration(Path("config/micro.yaml")))


def rows(dag: Dag, jobs: list[PlannedJob]) -> list[str]:
    """Return the rows of the table with single spaces."""
    table = plan_lines(dag, jobs, 40, JobTimes(dag.config))[3:]
    return [" ".join(line.split()) for line in table[: table.index("")]]


def test_changed_settings_are_named_with_times_of_earlier_jobs(
    dag: Dag, finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.folder)
    segments = [
        PlannedJob("pretrain_segment", {"model": "base", "step": step}, [reason])
        for step, reason in (("4", AFTER), ("8", CHANGED))
    ]
    training = dag.config.models["base"].training.model_copy(update={"learning_rate": 0.5})
    other = dag.config.model_copy(
        update={"models": {"base": dag.config.models["base"].model_copy(update={"training": training})}}
    )
    jobs = [PlannedJob("report_page", {}, [AFTER]), *segments]
    first, second, total = rows(Dag(other), jobs)
    assert first.startswith("pretrain.segment 2 ") and first.endswith(
        "s settings changed (training.learning_rate), after other listed jobs"
    )
    assert second.startswith("report.page 1 ") and second.endswith("s after other listed jobs")
    assert total.startswith("total 3 ") and "not known" not in total
    assert plan_lines(dag, jobs, 40, JobTimes(dag.config))[0] == "3 jobs of 43 would run; 40 have valid results."


def test_unchanged_settings_are_reported_as_changed_inputs(
    dag: Dag, finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.folder)
    batch = {"corpus": "main", "source": "nl_gids", "batch": "0"}
    assert rows(dag, [PlannedJob("corpus_filter", batch, [CHANGED])])[0].endswith("other input data")
    gone = PlannedJob("corpus_ngrams", {"corpus": "gone"}, ["output files have to be generated"])
    assert rows(dag, [gone])[0].endswith("no result yet")


def test_step_without_an_earlier_job_has_no_time(dag: Dag, tmp_path: Path) -> None:
    run = dag.config.run.model_copy(update={"results": str(tmp_path)})
    empty = Dag(dag.config.model_copy(update={"run": run}))
    jobs = [PlannedJob("plan_estimate", {}, ["output files have to be generated"])]
    assert rows(empty, jobs) == ["plan.estimate 1 not known no result yet", "total 1 not known"]
    assert plan_lines(empty, jobs, 40, JobTimes(empty.config))[-1].endswith("energy: {calibration: [results/NAME]}")
    for run in (tmp_path / "a, b", empty.config.run_directory):
        (run / "report").mkdir(parents=True)
        (run / "report/energy.json").touch()
    (tmp_path / "begun/report").mkdir(parents=True)
    assert plan_lines(empty, jobs, 40, JobTimes(empty.config))[-1].endswith(
        f"energy: {{calibration: ['{tmp_path}/a, b']}}"
    )
    assert not any("Times are sums" in line for line in plan_lines(empty, jobs, 40, JobTimes(empty.config)))
    energy = empty.config.energy.model_copy(update={"calibration": ("results/small",)})
    calibrated = Dag(empty.config.model_copy(update={"energy": energy}))
    assert "run the target plan" in plan_lines(calibrated, jobs, 40, JobTimes(calibrated.config))[-1]
    (plan := layout.PLAN.path(empty.config.run_directory)).parent.mkdir(parents=True)
    plan.write_text("{}")
    assert "lack some steps or sizes" in plan_lines(calibrated, jobs, 40, JobTimes(calibrated.config))[-1]
