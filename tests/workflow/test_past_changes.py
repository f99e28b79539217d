"""Which keys concern steps that are done: every key of a training, in what it comes to in these steps."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.pretrain.settings import SegmentSettings, Training
from pipeline.workflow.finished_training_protection import list_finished_step_changes
from tests.workflow.test_finished_training_protection import ARCHITECTURE, TRAINING


def segment(first: int = 20, last: int = 40, **changes: Any) -> SegmentSettings:
    training = Training.model_validate({**TRAINING, **changes})
    return SegmentSettings.model_validate(
        {"architecture": ARCHITECTURE, "training": training, "seed": 1, "first_step": first, "last_step": last}
    )


# Every key of a training, with another value and the keys that are told of a segment of steps 21 to 40 of 100.
CONCERN_WHAT_WAS_DONE: dict[str, tuple[Any, ...]] = {
    "sequence_length": (128,),
    "batch_size": (16,),
    "ramp": ([{"to_step": 30, "batch_size": 4}],),
    "sampling": ({"epochs": {"laws": 2}},),
    "learning_rate": (0.002,),
    "warmup_steps": (30,),
    "schedule": ("cosine",),
    "optimizer": ("muon",),
    "weight_decay": (0.2,),
    "decay_embedding": (False,),
    "beta1": (0.8,),
    "beta2": (0.9,),
    "epsilon": (1e-6,),
    "gradient_clip": (0.5,),
    "z_loss": (1e-4,),
    "load_balancing_loss": (0.01,),
}
CONCERN_WHAT_IS_TO_COME: dict[str, tuple[Any, ...]] = {
    "backend": ("deepspeed", {"strategy": "zero2"}),
    "strategy": ("no_shard",),
    "mesh": ({"tensor": 2, "pipeline": 2, "interleaving": 2},),
    "micro_batch_size": (4,),
    "steps": (200,),  # the rate of these steps is the same
    "milestone_every": (10,),
    "minimum_learning_rate_fraction": (0.0,),
    "decay_fraction": (0.5,),
    "precision": ("bf16",),
    "gradient_reduction": ("bf16",),
    "fused_optimizer": (False,),
    "validation_every": (5,),
    "validation_tokens": (1000,),
    "norms_every": (10,),
    "checkpoint_every": (7,),
    "keep_checkpoints": (4,),
    "keep_every": (50,),
    "threads": (2,),
    "compile": (True,),
    "recomputation": ("full",),
    "tiled_feed_forward": (2,),
    "float8": (True, {"compile": True, "precision": "bf16"}),
    "flash_attention": (False,),
    "deterministic": (False,),
    "async_tensor_parallel": (True, {"compile": True, "mesh": {"tensor": 2}}),
    "peak_flops_per_second": (1e12,),
    "energy_policy": ("min_energy",),
    "stability": ({"bad_step": "rewind"},),
    "start": ({"model": "other", "step": 5},),  # the milestone that was read tells it: no settings do
}


def test_every_key_of_a_training_is_known_here() -> None:
    assert {*CONCERN_WHAT_WAS_DONE} | {*CONCERN_WHAT_IS_TO_COME} == {*Training.model_fields}


@pytest.mark.parametrize("key", CONCERN_WHAT_WAS_DONE)
def test_a_key_that_concerns_what_was_done_is_told_with_both_values(key: str) -> None:
    value, *beside = CONCERN_WHAT_WAS_DONE[key]
    found = list_finished_step_changes(segment(), segment(**{key: value}, **(beside[0] if beside else {})))
    assert found and all(change.startswith(f"training.{key}") and ", now " in change for change in found)


@pytest.mark.parametrize("key", CONCERN_WHAT_IS_TO_COME)
def test_a_key_that_concerns_what_is_to_come_leaves_what_was_done(key: str) -> None:
    value, *beside = CONCERN_WHAT_IS_TO_COME[key]
    today = segment(**{key: value}, **(beside[0] if beside else {}))
    if key == "start":
        today = today.model_copy(update={"training": today.training.model_copy(update={"start": None})})
    assert list_finished_step_changes(segment(), today) == []


@pytest.mark.parametrize(
    ("changes", "steps", "concerned"),
    [
        ({"steps": 200}, (60, 80), []),  # of 100 steps wsd decays from 80 on
        ({"steps": 200}, (60, 81), ["steps"]),
        ({"decay_fraction": 0.5}, (40, 60), ["decay_fraction"]),
        ({"minimum_learning_rate_fraction": 0.2}, (80, 100), ["minimum_learning_rate_fraction"]),
        ({"batch_size": 16, "ramp": [{"to_step": 40, "batch_size": 8}]}, (20, 40), []),
        ({"batch_size": 16, "ramp": [{"to_step": 39, "batch_size": 8}]}, (20, 40), ["batch_size", "ramp"]),
        ({"ramp": [{"to_step": 50, "sequence_length": 16}]}, (60, 80), ["ramp"]),
        # What is less than one sequence of the smallest batch is ordered otherwise, in the steps before too.
        ({"ramp": [{"to_step": 50}, {"to_step": 60, "batch_size": 4}]}, (20, 40), ["ramp"]),
        ({"ramp": [{"to_step": 50}, {"to_step": 60, "sequence_length": 16}]}, (20, 40), []),
        ({"sampling": {"mask_documents": True}}, (20, 40), ["sampling.mask_documents"]),
        ({"sampling": {"phases": [{"from_step": 60}]}}, (40, 60), []),
        # Another name divides what was one stream, whose order is another then, in the steps before too.
        ({"sampling": {"phases": [{"from_step": 60, "epochs": {"laws": 2}}]}}, (40, 60), ["sampling.phases"]),
        ({"sampling": {"phases": [{"from_step": 60, "epochs": {"laws": 2}}]}}, (60, 80), ["sampling.phases"]),
        ({"sampling": {"phases": [{"from_share": 0.5, "epochs": {"laws": 2}}]}}, (40, 60), ["sampling.phases"]),
    ],
)
def test_a_schedule_and_a_mixture_concern_the_steps_in_which_they_differ(
    changes: dict[str, Any], steps: tuple[int, int], concerned: list[str]
) -> None:
    found = list_finished_step_changes(segment(*steps), segment(*steps, **changes))
    assert [change.split()[0].removeprefix("training.") for change in found] == concerned


def test_shape_seed_and_the_milestone_before_are_told() -> None:
    made = segment()
    wider = made.architecture.model_copy(update={"width": 64})
    others = {"architecture": wider, "seed": 2, "first_step": 10}
    assert list_finished_step_changes(made, made.model_copy(update=others)) == [
        "architecture.width 32, now 64",
        "milestone_every: the milestone before it is of step 20, now 10",
        "seed 1, now 2",
    ]


LAWS, BOTH, WEIGHTS = {"epochs": {"laws": 2}}, {"epochs": {"laws": 2, "news": 3}}, {"weights": {"laws": 1, "news": 2}}


@pytest.mark.parametrize(
    ("made", "phase", "concerned"),
    [
        (LAWS, {"from_step": 60, "epochs": {"laws": 4}}, False),
        (LAWS, {"from_step": 50, "epochs": {"laws": 4}}, True),  # within the steps that are done
        (LAWS, {"from_step": 60, "epochs": {"news": 4}}, True),  # news were among the rest
        (LAWS, {"from_step": 60, "weights": {"laws": 1}}, True),  # by weights each is by itself
        (BOTH, {"from_step": 60, "epochs": {"laws": 4}}, False),
        (WEIGHTS, {"from_step": 60, "epochs": {"laws": 4}}, False),
        ({}, {"from_step": 60, "weights": {"laws": 1}}, True),
    ],
)
def test_a_phase_concerns_what_was_done_where_it_divides_one_stream(
    made: dict[str, Any], phase: dict[str, Any], concerned: bool
) -> None:
    now = {**made, "phases": [phase]}
    assert bool(list_finished_step_changes(segment(40, 60, sampling=made), segment(40, 60, sampling=now))) is concerned


def test_a_default_that_is_not_written_is_told_as_what_it_is() -> None:
    assert list_finished_step_changes(segment(), segment(optimizer="muon", z_loss=1e-4, decay_embedding=False)) == [
        "training.decay_embedding true, now false",
        'training.optimizer "adamw", now "muon"',
        "training.z_loss 0.0, now 0.0001",
    ]


def test_the_own_width_as_base_width_changes_nothing() -> None:
    made = segment()
    for width, changes in ((32, []), (16, ["architecture.base_width null, now 16"])):
        shape = made.architecture.model_copy(update={"base_width": width})
        assert list_finished_step_changes(made, made.model_copy(update={"architecture": shape})) == changes
