"""The forecast of a run by two simulated small runs, against hand-computed values."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import CostForecast
from pipeline.forecast.forecast_inputs import collect_forecast_inputs
from pipeline.forecast.workload import WORKLOADS
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings
from pipeline.workflow.steps import REPORTED, STEPS, step_settings
from tests.record_content import attempt_content, record_content

MODEL: dict[str, Any] = {
    "architecture": {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 2},
    "training": {
        "backend": "fsdp",
        "strategy": "full_shard",
        "sequence_length": 64,
        "batch_size": 4,
        "micro_batch_size": 2,
        "steps": 8,
        "learning_rate": 0.003,
        "warmup_steps": 2,
    },
}
DATA = [step for step in WORKLOADS if not step.startswith(("opt_out.", "pretrain.", "evaluate."))]


def raw(folder: Path, size: int, **sections: Any) -> dict[str, Any]:
    """Return a configuration with one source, a file of the given bytes."""
    file = folder / "texts" / f"{size}.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"a" * size)
    source = {"name": "laws", "path": str(file), "language": "nl", "license": "CC0-1.0"}
    rights = {"basis": "public-domain", "holder": "the Kingdom"}
    return {"run": {"name": f"of_{size}"}, "sources": [{**source, "rights": rights}], **sections}


def figure(joules: float, spread: float) -> dict[str, Any]:
    ends = {"joules": joules, "low_joules": joules / spread, "high_joules": joules * spread}
    return {**ends, "measured_joules": joules, "meters": ["rapl, measured: counter"] if joules else []}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def seal(run: Path) -> None:
    """Write the record of the report, with the hash of the energy accounting."""
    sha256 = hashlib.sha256((run / "report/energy.json").read_bytes()).hexdigest()
    outputs = [{"path": "report/energy.json", "sha256": sha256}]
    read = [
        {"path": path.relative_to(run).as_posix(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(run.glob("models/*/metrics.jsonl"))
    ]
    frozen = {"path": "provenance/frozen/1.json", "sha256": "0"}
    content = record_content("report.page", inputs=read, outputs=outputs, frozen=frozen)
    write(run / "provenance/records/report.page.json", content)


def made(folder: Path, size: int, *, spread: float = 1.0, steps: list[str] = DATA, **sections: Any) -> Path:
    """Write a finished run: two jobs a step, together 1 s and 10 J plus as much for each 1,000 bytes; one was lost."""
    run = folder / f"pilot_{size}"
    write(run / "provenance/frozen/1.json", {"configuration": raw(folder, size, **sections)})
    files = [{"name": "a.txt", "bytes": size, "sha256": "0"}]
    write(run / "sources/laws/manifest.json", {"units": {"0": {"sha256": "0", "files": files}}})
    seconds, joules = 1 + size / 1000, 10 + size / 100
    jobs = {}
    for step in steps:
        for number, share in enumerate((0.25, 0.75)):
            name = f"{step}.{number}.20260301T0700"
            jobs[name] = {**figure(share * joules, spread), "step": step, "instance": {}, "fate": "finished"}
            write(run / f"provenance/attempts/{name}.json", attempt_content(step, wall_seconds=share * seconds))
        jobs[f"{step}.0.lost"] = {**figure(999.0, 1.0), "step": step, "instance": {}, "fate": "lost"}
    total = figure(joules * len(steps), spread)
    sums = dict.fromkeys(("total", "finished", "lost", "idle", "snakemake"), total)
    write(run / "report/energy.json", {**sums, "steps": {}, "jobs": jobs, "components": {}, "nodes": {}})
    seal(run)
    return run


def planned(folder: Path, runs: list[Path], size: int = 100_000, **sections: Any) -> Config:
    return parse_configuration({**raw(folder, size, **sections), "energy": {"calibration": [str(run) for run in runs]}})


def plan_of(config: Config) -> dict[str, Any]:
    settings = step_settings(config, "plan.estimate", {})
    return estimate(EstimateSettings.model_validate(json.loads(json.dumps(settings.result_settings()))))


@pytest.fixture
def pilots(tmp_path: Path) -> list[Path]:
    return [made(tmp_path, 1000), made(tmp_path, 10_000)]


def test_step_forecast_has_a_startup_cost_and_a_cost_per_byte(tmp_path: Path, pilots: list[Path]) -> None:
    # 20 J and 2 s for 1,000 bytes, 110 J and 11 s for 10,000: 10 J + 0.01 J a byte, 1 s + 0.001 s a byte
    forecast = plan_of(planned(tmp_path, pilots))["forecast"]
    step = forecast["steps"]["corpus.filter"]
    assert forecast["label"] == "estimated" and step["unit"] == "bytes of raw text" and step["work"] == 100_000
    assert step["joules"] == pytest.approx(1010) and step["seconds"] == pytest.approx(101)
    prediction = CostForecast.fit([(1000, 2, 20), (10_000, 11, 110)]).predict(100_000)
    assert step["low_joules"] == pytest.approx(prediction.low) and step["low_joules"] < 1010 < step["high_joules"]
    assert step["high_seconds"] == pytest.approx(prediction.seconds_high)


def test_chain_forecast_is_the_sum_and_narrower_than_its_steps(tmp_path: Path, pilots: list[Path]) -> None:
    forecast = plan_of(planned(tmp_path, pilots))["forecast"]
    steps, chain = forecast["steps"], forecast["chain"]
    not_asked = {"corpus.count_items", "corpus.equal_keys", "corpus.quality", "corpus.scores", "corpus.perplexity"}
    not_asked |= {"corpus.classify", "interleaved.assemble", "interleaved.extract"}
    assert set(steps) == set(DATA) - {"sources.split", "sources.dataset"} - not_asked
    assert chain["joules"] == pytest.approx(1010 * len(steps))
    step = steps["corpus.filter"]
    assert chain["high_joules"] / chain["joules"] < step["high_joules"] / step["joules"]


def test_energy_uncertainty_widens_the_forecast(tmp_path: Path, pilots: list[Path]) -> None:
    (tmp_path / "vague").mkdir()
    vague = [made(tmp_path / "vague", 1000, spread=3.0), made(tmp_path / "vague", 10_000, spread=2.0)]
    sharp = plan_of(planned(tmp_path, pilots))["forecast"]["steps"]["tokens.shard"]
    wide = plan_of(planned(tmp_path, vague))["forecast"]
    factor = math.exp(math.hypot(math.log(sharp["high_joules"] / 1010), math.log(3)))
    assert wide["steps"]["tokens.shard"]["high_joules"] == pytest.approx(1010 * factor)
    assert wide["steps"]["tokens.shard"]["low_joules"] == pytest.approx(1010 / factor)
    assert wide["chain"]["high_joules"] > 3 * wide["chain"]["joules"], "the same model error is in all steps"


def test_single_calibration_size_is_refused(tmp_path: Path, pilots: list[Path]) -> None:
    plan = plan_of(planned(tmp_path, pilots[:1]))
    assert all(
        "joules" not in step and "all of one size" in step["refused"] for step in plan["forecast"]["steps"].values()
    )
    assert "there is none for any step" in plan["forecast"]["chain"]["refused"]


def test_step_missing_from_calibration_runs_has_no_forecast(tmp_path: Path) -> None:
    runs = [made(tmp_path, size, steps=["sources.manifest", "corpus.filter"]) for size in (1000, 10_000)]
    forecast = plan_of(planned(tmp_path, runs))["forecast"]
    assert "joules" in forecast["steps"]["corpus.filter"]
    assert f"{runs[0]} has no job of tokens.shard" in forecast["steps"]["tokens.shard"]["refused"]
    assert "tokens.shard" in forecast["chain"]["refused"] and "joules" not in forecast["chain"]


def test_job_with_unknown_energy_is_not_zero_joules(tmp_path: Path, pilots: list[Path]) -> None:
    path = pilots[0] / "report/energy.json"
    content = json.loads(path.read_text())
    content["jobs"]["corpus.filter.0.20260301T0700"] |= figure(0.0, 1.0)
    write(path, content)
    seal(pilots[0])
    forecast = plan_of(planned(tmp_path, pilots))["forecast"]
    assert "1 of 2 jobs of corpus.filter" in forecast["steps"]["corpus.filter"]["refused"]
    assert "joules" in forecast["steps"]["corpus.signatures"]


def test_training_work_is_counted_in_planned_operations(tmp_path: Path, pilots: list[Path]) -> None:
    plan = plan_of(planned(tmp_path, pilots, models={"base": MODEL}))
    steps = plan["forecast"]["steps"]
    assert steps["pretrain.segment"]["work"] == plan["totals"]["model_flops"]
    assert steps["pretrain.export"]["work"] == plan["models"]["base"]["parameters"]


def trained(run: Path, seconds: float) -> Path:
    """Write the metrics of a training with the given step times, and sign the run; return the metrics."""
    segment = record_content("pretrain.segment", counts={"world_size": 2})
    write(run / "provenance/records/pretrain.segment.base.8.json", segment)
    path = run / "models/base/metrics.jsonl"
    path.parent.mkdir(parents=True)
    lines = [{"step": step, "loss": 2.0, "ended_unix_seconds": step * seconds} for step in range(1, 9)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    seal(run)
    return path


def test_measured_step_times_of_finished_trainings_are_read(tmp_path: Path) -> None:
    runs = [made(tmp_path, size, models={"base": MODEL}) for size in (1000, 10_000)]
    metrics = trained(runs[1], 0.25)
    forecast_plan = collect_forecast_inputs(planned(tmp_path, runs))
    assert forecast_plan and forecast_plan.runs[0].trainings == {}, "it has no metrics"
    (training,) = forecast_plan.runs[1].trainings.values()
    assert training.step_seconds == 0.25 and training.processes == 2
    assert training.model.training.batch_size == 4 and training.model.vocabulary_size > 4
    write(runs[1] / "provenance/records/pretrain.segment.base.8.json", record_content("pretrain.segment"))
    seal(runs[1])
    unknown = collect_forecast_inputs(planned(tmp_path, runs))
    assert unknown and unknown.runs[1].trainings == {}, "its number of processes is unknown"
    metrics.write_text(metrics.read_text().replace("2.0", "0.1"), encoding="utf-8")
    (runs[1] / "provenance/records/report.page.json").touch()  # the run is read again
    with pytest.raises(InputError, match=r"base/metrics\.jsonl changed after its report was written"):
        collect_forecast_inputs(planned(tmp_path, runs))


def test_truncated_file_counts_with_its_size_on_disk(tmp_path: Path, pilots: list[Path]) -> None:
    part = {"sha256": "0", "files": [{"name": "b.txt.gz", "bytes": 70_000, "sha256": "0"}]}
    path = pilots[1] / "sources/laws/manifest.json"
    write(path, {"units": {**json.loads(path.read_text())["units"], "4200000": part}})
    content = record_content("sources.split", inputs=[{"path": "data:b.txt.gz", "bytes": 40_000}])
    write(pilots[1] / "provenance/records/sources.split.laws.42.json", content)
    forecast_plan = collect_forecast_inputs(planned(tmp_path, pilots))
    assert forecast_plan and forecast_plan.runs[1].steps["corpus.filter"].work == 50_000


def test_unfetched_data_set_has_unknown_size(tmp_path: Path, pilots: list[Path]) -> None:
    source = raw(tmp_path, 1000)["sources"][0]
    del source["path"]
    dataset = {**source, "name": "web", "dataset": {"name": "some/thing", "split": "train", "revision": "0" * 40}}
    content = raw(tmp_path, 100_000)
    config = parse_configuration(
        {**content, "sources": [*content["sources"], dataset], "energy": {"calibration": [*map(str, pilots)]}}
    )
    steps = plan_of(config)["forecast"]["steps"]
    assert steps["corpus.filter"]["work"] is None and "data set (web)" in steps["corpus.filter"]["refused"]


def test_another_calibration_reruns_only_the_plan(tmp_path: Path, pilots: list[Path]) -> None:
    config = planned(tmp_path, pilots)
    before = {step: _settings(config, step) for step in ("plan.estimate", "sources.manifest", "report.page")}
    made(tmp_path, 1000, spread=1.5)
    after = {step: _settings(config, step) for step in before}
    assert [step for step in before if before[step] != after[step]] == ["plan.estimate"]


def _settings(config: Config, step: str) -> dict[str, Any]:
    return step_settings(config, step, {"source": "laws"}).result_settings()


def test_plan_without_calibration_runs_has_no_forecast(tmp_path: Path) -> None:
    assert plan_of(parse_configuration(raw(tmp_path, 1000)))["forecast"] is None


def move_run_away(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def unfinished(run: Path) -> None:
    (run / "provenance/records/report.page.json").unlink()


def without_account(run: Path) -> None:
    (run / "report/energy.json").unlink()


def altered(run: Path) -> None:
    path = run / "report/energy.json"
    path.write_text(path.read_text().replace("20", "10"), encoding="utf-8")


def foreign(run: Path) -> None:
    write(run / "report/energy.json", {"power": 12})
    seal(run)


def without_attempt(run: Path) -> None:
    next((run / "provenance/attempts").glob("corpus.filter*")).unlink()


def without_manifest(run: Path) -> None:
    (run / "sources/laws/manifest.json").unlink()


def of_another_pipeline(run: Path) -> None:
    write(run / "provenance/frozen/1.json", {"configuration": {"run": {"name": "other"}, "steps": []}})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (move_run_away, "there is no such folder"),
        (unfinished, "the run is not finished"),
        (without_account, "it has no report/energy.json"),
        (altered, "changed after its report was written"),
        (foreign, "is no energy accounting"),
        (without_attempt, "provenance/attempts/corpus.filter"),
        (without_manifest, "manifest.json"),
        (of_another_pipeline, "sources"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calibration_folder_without_a_finished_run_is_named(
    tmp_path: Path, pilots: list[Path], damage: Any, words: str
) -> None:
    damage(pilots[1])
    with pytest.raises(InputError) as error:
        collect_forecast_inputs(planned(tmp_path, pilots))
    assert str(error.value).startswith(f"energy.calibration: {pilots[1]}: ") and words in str(error.value)
    assert "\n" not in str(error.value)


def test_run_cannot_calibrate_itself_and_counts_once(tmp_path: Path, pilots: list[Path]) -> None:
    with pytest.raises(InputError, match="the folder of this run"):
        collect_forecast_inputs(planned(tmp_path, [Path("results/of_100000")]))
    with pytest.raises(InputError, match="twice"):
        planned(tmp_path, [pilots[0], pilots[0]])


def test_every_forecast_step_has_a_work_measure() -> None:
    assert [*WORKLOADS] == [step for step in STEPS if STEPS[step].stage in REPORTED and step != "plan.estimate"]
    assert all(
        (work.unit == "bytes of raw text") == (step.split(".")[0] not in ("pretrain", "evaluate"))
        for step, work in WORKLOADS.items()
    )


def test_planned_steps_are_those_with_jobs(tmp_path: Path, pilots: list[Path]) -> None:
    config = planned(tmp_path, pilots, models={"base": MODEL})
    forecast_plan = collect_forecast_inputs(config)
    assert forecast_plan and [*forecast_plan.work] == [step for step in WORKLOADS if STEPS[step].instances.jobs(config)]
