"""Memory in the plan: the parts of each traced model, a sentence for an untraced or oversized one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.plan.settings import EstimateSettings
from pipeline.workflow.steps import step_settings
from pipeline.workflow.training_memory import MemoryPlan, estimate_training_memory

pytestmark = pytest.mark.usefixtures("warm_commands")
MICRO = yaml.safe_load((Path(__file__).parents[2] / "config/micro.yaml").read_text(encoding="utf-8"))
NAME, MODEL = next(iter(MICRO["models"].items()))


def plan(platform: str, **training: object) -> MemoryPlan:
    model = {**MODEL, "training": {**MODEL["training"], **training}}
    config = parse_configuration({**MICRO, "models": {NAME: model}, "platform": platform})
    settings = EstimateSettings.model_validate(step_settings(config, "plan.estimate", {}).model_dump())
    return estimate_training_memory(config, settings)


def test_model_that_fits_has_memory_parts_without_advice() -> None:
    result = plan("local")
    parts = result.traced[NAME].model_dump()
    assert parts.pop("peak_in").endswith(("forward", "backward")) and parts.pop("stage") == 0
    assert parts.pop("peak_bytes") == sum(parts.values()) > 0 and result.notes == []


def test_model_that_does_not_fit_gets_fitting_settings(monkeypatch) -> None:
    monkeypatch.setattr("pipeline.workflow.preflight._process_memory_bytes", lambda *_: 1000)
    assert plan("local").notes[-1].endswith("no strategy of fsdp fits, so use more or larger devices")
    sizes = {"sequence_length": 64, "micro_batch_size": 4, "batch_size": 8}
    peak = plan("local", **sizes).traced[NAME].peak_bytes
    monkeypatch.setattr("pipeline.workflow.preflight._process_memory_bytes", lambda *_: peak)
    advice = plan("local", **sizes).notes[-1]
    assert "does not fit" in advice and "does, with" in advice, advice


def test_deepspeed_memory_is_traced() -> None:
    result = plan("local", backend="deepspeed", strategy="zero2")
    assert result.traced[NAME].peak_bytes > 0 and result.traced[NAME].peak_in and result.notes == []
