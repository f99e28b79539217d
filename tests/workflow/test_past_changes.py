"""Which keys affect finished steps: every key of a training, by its effect on these steps."""

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


# Every key of a training, with another value and the keys reported for a segment of steps 21 to 40 of 100.
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
    "start": ({"model": "other", "step": 5},),  # reported by the milestone that was read, not by settings
}


def test_every_training_key_is_classified() -> None:
    assert {*CONCERN_WHAT_WAS_DONE} | {*CONCERN_WHAT_IS_TO_COME} == {*Training.model_fields}


@pytest.mark.parametrize("key", CONCERN_WHAT_WAS_DONE)
def test_change_of_a_key_for_finished_steps_shows_both_values(key: str) -> None:
    value, *other_keys = CONCERN_WHAT_WAS_DONE[key]
    step_changes = list_finished_step_changes(
        segment(), segment(**{key: value}, **(other_keys[0] if other_keys else {}))
    )
    assert step_changes and all(change.startswith(f"training.{key}") and ", now " in change for change in step_changes)


@pytest.mark.parametrize("key", CONCERN_WHAT_IS_TO_COME)
def test_change_of_a_key_for_future_steps_keeps_finished_steps(key: str) -> None:
    value, *other_keys = CONCERN_WHAT_IS_TO_COME[key]
    today = segment(**{key: value}, **(other_keys[0] if other_keys else {}))
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
        # Amounts below one sequence of the smallest batch change the order, also in the steps before.
        ({"ramp": [{"to_step": 50}, {"to_step": 60, "batch_size": 4}]}, (20, 40), ["ramp"]),
        ({"ramp": [{"to_step": 50}, {"to_step": 60, "sequence_length": 16}]}, (20, 40), []),
        ({"sampling": {"mask_documents": True}}, (20, 40), ["sampling.mask_documents"]),
        ({"sampling": {"phases": [{"from_step": 60}]}}, (40, 60), []),
        # Another name divides the former stream, whose order changes, also in the steps before.
        ({"sampling": {"phases": [{"from_step": 60, "epochs": {"laws": 2}}]}}, (40, 60), ["sampling.phases"]),
        ({"sampling": {"phases": [{"from_step": 60, "epochs": {"laws": 2}}]}}, (60, 80), ["sampling.phases"]),
        ({"sampling": {"phases": [{"from_share": 0.5, "epochs": {"laws": 2}}]}}, (40, 60), ["sampling.phases"]),
    ],
)
def test_schedule_and_mixture_changes_affect_only_differing_steps(
    changes: dict[str, Any], steps: tuple[int, int], concerned: list[str]
) -> None:
    step_changes = list_finished_step_changes(segment(*steps), segment(*steps, **changes))
    assert [change.split()[0].removeprefix("training.") for change in step_changes] == concerned


def test_changed_shape_seed_and_previous_milestone_are_reported() -> None:
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
        (LAWS, {"from_step": 50, "epochs": {"laws": 4}}, True),  # within the finished steps
        (LAWS, {"from_step": 60, "epochs": {"news": 4}}, True),  # news were among the rest
        (LAWS, {"from_step": 60, "weights": {"laws": 1}}, True),  # by weights each is separate
        (BOTH, {"from_step": 60, "epochs": {"laws": 4}}, False),
        (WEIGHTS, {"from_step": 60, "epochs": {"laws": 4}}, False),
        ({}, {"from_step": 60, "weights": {"laws": 1}}, True),
    ],
)
def test_phase_change_affects_finished_steps_if_it_divides_a_stream(
    made: dict[str, Any], phase: dict[str, Any], concerned: bool
) -> None:
    now = {**made, "phases": [phase]}
    assert bool(list_finished_step_changes(segment(40, 60, sampling=made), segment(40, 60, sampling=now))) is concerned


def test_omitted_default_is_reported_with_its_value() -> None:
    assert list_finished_step_changes(segment(), segment(optimizer="muon", z_loss=1e-4, decay_embedding=False)) == [
        "training.decay_embedding true, now false",
        'training.optimizer "adamw", now "muon"',
        "training.z_loss 0.0, now 0.0001",
    ]


def test_own_width_as_base_width_changes_nothing() -> None:
    made = segment()
    for width, changes in ((32, []), (16, ["architecture.base_width null, now 16"])):
        shape = made.architecture.model_copy(update={"base_width": width})
        assert list_finished_step_changes(made, made.model_copy(update={"architecture": shape})) == changes
