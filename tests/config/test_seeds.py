"""A model may have its own seed: one run then trains the same model twice with different randomness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.model.networks import initial_state
from pipeline.pretrain.settings import SegmentSettings
from pipeline.workflow.steps import STEPS

OWN = {"own": {"seed": 8}, "zero": {"seed": 0}}


def config(models: dict[str, dict[str, Any]], **run: object) -> Config:
    """Return micro with `base`, whose seed is the run's, and copies of it with the given differences."""
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    content["run"] |= run
    base = content["models"]["base"]
    content["models"] |= {name: {**base, **changes} for name, changes in models.items()}
    content["evaluation"] = {"untrained": True}
    return parse_configuration(content)


def settings(config: Config, of: str, **instance: str) -> Any:
    return STEPS[of].settings(config, instance)


def first_weights(segment: SegmentSettings) -> dict[str, torch.Tensor]:
    return initial_state(segment.architecture, 600, segment.seed)


def test_models_that_differ_only_in_seed_have_other_initial_weights_and_baselines() -> None:
    result = config(OWN)
    segments = {name: settings(result, "pretrain.segment", model=name, step="4") for name in ("base", *OWN)}
    assert {name: one.seed for name, one in segments.items()} == {"base": 7, "own": 8, "zero": 0}
    distinct_settings = {one.model_copy(update={"seed": 7}).model_dump_json() for one in segments.values()}
    assert len(distinct_settings) == 1, "they differ only in the seed"
    base, own = first_weights(segments["base"]), first_weights(segments["own"])
    assert not any(torch.equal(base[name], own[name]) for name in base if base[name].dim() > 1)
    for name, one in segments.items():
        untrained = settings(result, "evaluate.baselines", baseline=f"untrained-{name}")
        assert untrained.untrained_seed == one.seed
        assert settings(result, "pretrain.export", model=name).hyperparameters["seed"] == one.seed
        assert settings(result, "evaluate.suites", model=name, step="8").seed == 42, "all are evaluated equally"


def test_run_seed_does_not_change_a_model_with_its_own_seed() -> None:
    one, other = (
        {name: settings(result, "pretrain.segment", model=name, step="4") for name in ("base", "own")}
        for result in (config(OWN), config(OWN, seed=9))
    )
    assert one["own"] == other["own"] and one["base"] != other["base"]


def test_settings_without_a_model_seed_are_unchanged() -> None:
    result = config({})
    assert result.dump_explicit_settings()["models"]["base"].keys() == {"architecture", "training"}
    segment = settings(result, "pretrain.segment", model="base", step="4")
    keys = {"architecture", "training", "seed", "first_step", "last_step"}
    assert segment.result_settings().keys() == keys and "seed" not in segment.model_dump()["training"]
    asked_again = config({"base": {"seed": 7}})  # the statement about the run, applied to the model
    assert settings(asked_again, "pretrain.segment", model="base", step="4") == segment
    planned = settings(result, "plan.estimate").models["base"]
    assert not hasattr(planned, "seed") and "seed" not in planned.model_dump_json()


def test_models_that_differ_only_in_seed_are_grouped() -> None:
    base = config({}).models["base"].training.model_dump(exclude_unset=True)
    others = {
        "slower": {"seed": 8, "training": base | {"learning_rate": 0.001}},
        "again": {"seed": 7},
        "watched": {"seed": 9, "training": base | {"keep_checkpoints": 5}},
    }
    result = settings(config(OWN | others), "evaluate.differences")
    assert result.seeds == [["again", "own", "watched", "zero"]], "the first of two with one seed"
    assert settings(config(others), "evaluate.differences").seeds == [["again", "watched"]]
    assert settings(config({"slower": others["slower"]}), "evaluate.differences").seeds == []


def test_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match=r"models\.base\.seed"):
        config({"base": {"seed": -1}})
