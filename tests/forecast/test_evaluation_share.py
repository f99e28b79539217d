"""The share of evaluation, validation and checkpoints in a plan, recounted by hand from the files of the tasks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.evaluate.settings import Suite
from pipeline.forecast.evaluation_share import FORMULAS, add_evaluation_share, measure_suites
from pipeline.plan.estimate import estimate
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


def test_the_share_by_hand() -> None:
    items, size = text_of_tasks()
    model = planned({"checkpoints": "all", "untrained": True}, validation_tokens=512)["models"]["base"]
    assert model["evaluation_items"] == items == 160
    assert model["evaluation_tokens"] == round(3 * size / 4), "two milestones, and the model before its first step"
    assert math.isclose(model["evaluation_share"], 2 * 69_280 * 3 * size / 4 / model["model_flops"])
    assert model["validation_share"] == 2 * 512 / 3 / 2048 and model["checkpoint_writes"] == 2
    one = planned({"checkpoints": "final", "untrained": False})
    assert math.isclose(one["models"]["base"]["evaluation_share"], model["evaluation_share"] / 3)
    assert one["models"]["base"]["validation_share"] is None, "held-out tokens are not known before the run"
    assert any("by operations, because the time is unknown" in note for note in one["notes"]["base"])
    assert FORMULAS.items() <= one["formulas"].items()


def test_where_the_time_is_known_the_share_is_of_device_hours_and_energy() -> None:
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


def test_a_limit_counts_and_what_is_not_known_is_named(tmp_path: Path) -> None:
    whole = measure_suites([Suite(name="nl", language="nl", folder="config/tasks/dutch")])
    half = measure_suites([Suite(name="nl", language="nl", folder="config/tasks/dutch", limit=20)])
    assert (whole.items, half.items) == (80, 40) and abs(half.bytes - whole.bytes / 2) <= 1
    mirror = tmp_path / "mirror/org/set"
    mirror.mkdir(parents=True)
    (mirror / "README.md").write_text("# A data set")
    (mirror / "test.jsonl").write_text('{"question": "Wat?"}\n')
    shipped = Suite(name="shipped", language="nl", tasks=["arc_nl"], data=str(tmp_path / "mirror"))
    missing = Suite(name="gone", language="nl", folder=str(tmp_path))
    known = measure_suites([shipped, missing])
    assert known.items == 0 and [one.partition(":")[0] for one in known.unknown] == ["shipped", "gone"]


def test_examples_in_a_prompt_are_no_items(tmp_path: Path) -> None:
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
    size = measure_suites([Suite(name="own", language="nl", folder=str(tmp_path))])
    assert size == (3, 3 * len("vier4"), ())
