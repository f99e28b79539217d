"""The share of evaluation, validation and checkpoints in a plan, recounted from the task files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.evaluate.settings import Suite
from pipeline.forecast.evaluation_share import FORMULAS, add_evaluation_share, forecast_evaluation, measure_suite_size
from pipeline.plan.estimate import estimate
from pipeline.plan.plan_tables import add_bound, format_evaluation_forecast
from pipeline.plan.settings import EstimateSettings
from pipeline.workflow.steps import step_settings

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))


def planned(evaluation: dict[str, Any], platform: str = "local", **training: Any) -> dict[str, Any]:
    base = MICRO["models"]["base"]
    models = {"base": {**base, "training": {**base["training"], **training}}}
    config = parse_configuration({**MICRO, "models": models, "evaluation": evaluation, "platform": platform})
    settings = EstimateSettings.model_validate(step_settings(config, "plan.estimate", {}).model_dump())
    return add_evaluation_share(config, estimate(settings))


def text_of_tasks() -> tuple[int, int]:
    """Return the items and the bytes of text of the suites dutch and english, from their files."""
    lines = [
        json.loads(line)
        for name in ("dutch", "english")
        for path in Path(f"config/tasks/{name}").glob("*.jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]
    texts = [
        text for row in lines for value in row.values() for text in (value if isinstance(value, list) else [value])
    ]
    return len(lines), sum(len(text.encode()) for text in texts if isinstance(text, str))


def test_evaluation_share_equals_a_hand_computed_value() -> None:
    items, size = text_of_tasks()
    model = planned({"checkpoints": "all", "untrained": True}, validation_tokens=512)["models"]["base"]
    assert model["evaluation_items"] == items == 160
    assert model["evaluation_tokens"] == round(3 * size / 4), "two milestones, and the model before its first step"
    assert math.isclose(model["evaluation_share"], 2 * 69_280 * 3 * size / 4 / model["model_flops"])
    assert model["validation_share"] == 2 * 512 / 3 / 2048 and model["checkpoint_writes"] == 2
    one = planned({"checkpoints": "final", "untrained": False})
    assert math.isclose(one["models"]["base"]["evaluation_share"], model["evaluation_share"] / 3)
    assert one["models"]["base"]["validation_share"] is None, "held-out tokens are unknown before the run"
    assert any("by operations, because the time is unknown" in note for note in one["notes"]["base"])
    assert FORMULAS.items() <= one["formulas"].items()


def test_known_time_gives_device_hours_and_energy_of_evaluation() -> None:
    training = {"precision": "bf16", "validation_tokens": 512, "checkpoint_every": 2}
    plan = planned({"checkpoints": "final", "untrained": False}, "snellius", **training)
    model, platform = plan["models"]["base"], plan["platform"]
    rate = platform["peak_flops_per_second"] * model["utilization_share"]
    device_seconds = model["evaluation_flops"] / rate
    assert math.isclose(model["evaluation_share"], device_seconds / (model["device_hours"] * 3600))
    joules = device_seconds * platform["device_power_watts"] * plan["energy"]["pue"]
    assert math.isclose(model["evaluation_energy_joules"], joules)
    assert math.isclose(model["validation_share"], model["validation_seconds"] / model["seconds"])
    assert model["checkpoint_writes"] == 4, "steps 2, 4, 6 and 8, of which 4 and 8 are milestones"
    assert model["checkpoint_share"] is None
    assert math.isclose(model["failure_share"], model["failure_seconds"] / model["seconds"])
    assert planned({"checkpoints": "final"})["models"]["base"]["failure_share"] is None, "the time is unknown"


def step(seconds: float, joules: float) -> dict[str, Any]:
    return {"seconds": seconds, "low_seconds": seconds / 1.5, "high_seconds": seconds * 2, "joules": joules}


def test_finished_runs_predict_the_share_of_time_and_energy() -> None:
    steps = {"evaluate.suites": step(30, 600), "evaluate.baselines": step(10, 200), "pretrain.segment": step(80, 3200)}
    plan: dict[str, Any] = {"forecast": {"steps": steps, "calibration": [{"folder": "results/small"}]}}
    result = forecast_evaluation(plan)
    assert (result["label"], result["time_share"], result["energy_share"]) == ("estimated", 0.5, 0.25)
    down, up = math.log(1.5), math.log(2)
    assert math.isclose(result["low_time_share"], 0.5 * math.exp(-math.hypot(down, up))), "and the training's upper end"
    assert math.isclose(result["high_time_share"], 0.5 * math.exp(math.hypot(up, down)))
    assert format_evaluation_forecast(result) == (
        "evaluation by finished runs (estimated): 50 % of the time of training jobs (95 %: 22.4 % to 112 %), 25 % of "
        "their energy; from results/small, with their suites"
    )


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (None, "energy.calibration names no finished run; `polder run"),
        ({"pretrain.segment": step(1, 1)}, "this run evaluates nothing"),
        ({"evaluate.suites": step(1, 1)}, "this run trains nothing"),
        ({"evaluate.suites": {"refused": "no job"}, "pretrain.segment": step(1, 1)}, "no job"),
    ],
)
def test_plan_without_finished_runs_of_both_kinds_gives_the_reason(steps: dict[str, Any] | None, reason: str) -> None:
    result = forecast_evaluation({"forecast": steps and {"steps": steps, "calibration": []}})
    assert result["refused"].startswith(reason)
    assert format_evaluation_forecast(result).startswith(f"evaluation by finished runs: unknown; {reason}")


def test_uncountable_suite_gives_a_lower_bound(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror/org/set"
    mirror.mkdir(parents=True)
    (mirror / "README.md").write_text("# A data set")
    (mirror / "test.jsonl").write_text('{"question": "Wat?"}\n')
    shipped = {"name": "shipped", "language": "nl", "tasks": ["arc_nl"], "data": str(tmp_path / "mirror")}
    for suites, shown in ((["dutch", shipped], "at least "), ([shipped], None), (["dutch"], 0.01)):
        model = planned({"suites": suites, "checkpoints": "final", "untrained": False})["models"]["base"]
        result = add_bound("evaluation_share", model, model["evaluation_share"])
        assert result is None if shown is None else str(result).startswith("at least") == (shown == "at least ")
    assert add_bound("seconds", {"evaluation_lower_bound": True}, 3.0) == 3.0


def test_limits_are_counted_and_unknown_suites_are_named(tmp_path: Path) -> None:
    whole = measure_suite_size([Suite(name="nl", language="nl", folder="config/tasks/dutch")])
    half = measure_suite_size([Suite(name="nl", language="nl", folder="config/tasks/dutch", limit=20)])
    assert (whole.items, half.items) == (80, 40) and abs(half.bytes - whole.bytes / 2) <= 1
    mirror = tmp_path / "mirror/org/set"
    mirror.mkdir(parents=True)
    (mirror / "README.md").write_text("# A data set")
    (mirror / "test.jsonl").write_text('{"question": "Wat?"}\n')
    shipped = Suite(name="shipped", language="nl", tasks=["arc_nl"], data=str(tmp_path / "mirror"))
    missing = Suite(name="gone", language="nl", folder=str(tmp_path))
    known = measure_suite_size([shipped, missing])
    assert known.items == 0 and [one.partition(":")[0] for one in known.unknown] == ["shipped", "gone"]


def test_few_shot_examples_are_not_items(tmp_path: Path) -> None:
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "own.jsonl", "fewshot": "examples.jsonl"}},
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(task))
    for name, rows in (("own", 3), ("examples", 5)):
        (tmp_path / f"{name}.jsonl").write_text(
            '{"question": "vier", "answer": "4", "source": "niet gelezen"}\n' * rows
        )
    size = measure_suite_size([Suite(name="own", language="nl", folder=str(tmp_path))])
    assert size == (3, 3 * len("vier4"), ())
