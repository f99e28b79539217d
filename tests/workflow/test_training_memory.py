"""What the plan says of memory: a column for each model that is traced, a sentence where one is not or is too big."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.plan.settings import EstimateSettings
from pipeline.workflow.steps import step_settings
from pipeline.workflow.training_memory import estimate_training_memory

pytestmark = pytest.mark.usefixtures("warm_commands")
MICRO = yaml.safe_load((Path(__file__).parents[2] / "config/micro.yaml").read_text(encoding="utf-8"))
NAME, MODEL = next(iter(MICRO["models"].items()))


def lines(platform: str, **training: object) -> list[str]:
    model = {**MODEL, "training": {**MODEL["training"], **training}}
    config = parse_configuration({**MICRO, "models": {NAME: model}, "platform": platform})
    settings = EstimateSettings.model_validate(step_settings(config, "plan.estimate", {}).model_dump())
    return estimate_training_memory(config, settings).lines()


def test_a_model_that_fits_has_its_parts_and_no_sentence() -> None:
    head, *rows = lines("local")
    assert head.split() == ["memory", "of", "a", "device,", "estimated", NAME]
    labels = ["peak", "parameters", "optimizer", "gradients", "gathered", "communication", "loss", "activations"]
    assert [row.split()[0] for row in rows[:8]] == labels
    assert rows[8].startswith("peak in") and rows[8].rstrip().endswith(("forward", "backward"))
    assert len(rows) == 10 and "CUDA" in rows[9]


def test_one_that_does_not_fit_is_told_what_does(monkeypatch) -> None:
    monkeypatch.setattr("pipeline.workflow.preflight._process_memory_bytes", lambda *_: 1000)
    assert lines("local")[-1].endswith("no strategy of fsdp fits, so use more or larger devices")
    peak = float(lines("local", sequence_length=64, micro_batch_size=4, batch_size=8)[1].split()[1])
    monkeypatch.setattr("pipeline.workflow.preflight._process_memory_bytes", lambda *_: int(peak * 1e6))
    told = lines("local", sequence_length=64, micro_batch_size=4, batch_size=8)[-1]
    assert "does not fit" in told and "does, with" in told, told


def test_deepspeed_is_traced_too() -> None:
    head, *rows = lines("local", backend="deepspeed", strategy="zero2")
    assert head.split()[-1] == NAME and rows[8].startswith("peak in") and len(rows) == 10
