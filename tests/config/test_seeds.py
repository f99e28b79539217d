"""A model may have a seed of its own: one run then trains the same model twice, apart from nothing but chance."""

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
    """Return micro with `base`, whose seed is the run's, and copies of it that differ as is said."""
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    content["run"] |= run
    base = content["models"]["base"]
    content["models"] |= {name: {**base, **changes} for name, changes in models.items()}
    content["evaluation"] = {"untrained": True}
    return parse_configuration(content)


def settings(found: Config, of: str, **instance: str) -> Any:
    return STEPS[of].settings(found, instance)


def first_weights(segment: SegmentSettings) -> dict[str, torch.Tensor]:
    return initial_state(segment.architecture, 600, segment.seed)


def test_models_that_differ_in_their_seed_alone_begin_at_other_weights_and_their_baselines_too() -> None:
    found = config(OWN)
    segments = {name: settings(found, "pretrain.segment", model=name, step="4") for name in ("base", *OWN)}
    assert {name: one.seed for name, one in segments.items()} == {"base": 7, "own": 8, "zero": 0}
    alike = {one.model_copy(update={"seed": 7}).model_dump_json() for one in segments.values()}
    assert len(alike) == 1, "the seed is all that they differ in"
    base, own = first_weights(segments["base"]), first_weights(segments["own"])
    assert not any(torch.equal(base[name], own[name]) for name in base if base[name].dim() > 1)
    for name, one in segments.items():
        untrained = settings(found, "evaluate.baselines", baseline=f"untrained-{name}")
        assert untrained.untrained_seed == one.seed
        assert settings(found, "pretrain.export", model=name).hyperparameters["seed"] == one.seed
        assert settings(found, "evaluate.suites", model=name, step="8").seed == 42, "all are asked the same"


def test_a_run_of_another_seed_leaves_a_model_with_its_own_as_it_is() -> None:
    one, other = (
        {name: settings(found, "pretrain.segment", model=name, step="4") for name in ("base", "own")}
        for found in (config(OWN), config(OWN, seed=9))
    )
    assert one["own"] == other["own"] and one["base"] != other["base"]


def test_without_a_seed_the_settings_are_what_they_were() -> None:
    found = config({})
    assert found.dump_configuration()["models"]["base"].keys() == {"architecture", "training"}
    segment = settings(found, "pretrain.segment", model="base", step="4")
    keys = {"architecture", "training", "seed", "first_step", "last_step"}
    assert segment.result_settings().keys() == keys and "seed" not in segment.model_dump()["training"]
    asked_again = config({"base": {"seed": 7}})  # what the run says, said of the model
    assert settings(asked_again, "pretrain.segment", model="base", step="4") == segment
    told = settings(found, "plan.estimate").models["base"]
    assert not hasattr(told, "seed") and "seed" not in told.model_dump_json()


def test_models_that_differ_in_their_seed_alone_are_told() -> None:
    base = config({}).models["base"].training.model_dump(exclude_unset=True)
    others = {
        "slower": {"seed": 8, "training": base | {"learning_rate": 0.001}},
        "again": {"seed": 7},
        "watched": {"seed": 9, "training": base | {"keep_checkpoints": 5}},
    }
    found = settings(config(OWN | others), "evaluate.differences")
    assert found.seeds == [["again", "own", "watched", "zero"]], "of two with one seed the first"
    assert settings(config(others), "evaluate.differences").seeds == [["again", "watched"]]
    assert settings(config({"slower": others["slower"]}), "evaluate.differences").seeds == []


def test_a_seed_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"models\.base\.seed"):
        config({"base": {"seed": -1}})
