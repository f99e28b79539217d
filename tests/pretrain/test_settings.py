"""Training settings: learning rate, milestones, segments, and contradictions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.settings import Model, Training


def training(**changes: object) -> Training:
    usual = {"sequence_length": 8, "batch_size": 2, "micro_batch_size": 1, "steps": 100, "learning_rate": 1.0}
    return Training.model_validate({**usual, **changes})


def test_cosine_schedule_has_known_values() -> None:
    chosen = training(warmup_steps=20, minimum_learning_rate_fraction=0.1)
    values = [learning_rate_at(chosen, step) for step in (1, 10, 20, 60, 100)]
    assert values == pytest.approx([0.05, 0.5, 1.0, 0.55, 0.1])


def test_wsd_schedule_is_constant_then_linear() -> None:
    chosen = training(warmup_steps=10, schedule="wsd", decay_fraction=0.2, minimum_learning_rate_fraction=0.0)
    values = [learning_rate_at(chosen, step) for step in (5, 10, 45, 80, 90, 100)]
    assert values == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5, 0.0])


@given(
    steps=st.integers(1, 300),
    share=st.floats(0, 1),
    schedule=st.sampled_from(["cosine", "wsd"]),
    floor=st.floats(0, 1),
    decay=st.floats(0.01, 1),
)
def test_learning_rate_warms_up_then_decays_to_the_minimum(
    steps: int, share: float, schedule: str, floor: float, decay: float
) -> None:
    warmup = int(share * steps)
    fields = {"warmup_steps": warmup, "schedule": schedule, "decay_fraction": decay}
    chosen = training(steps=steps, minimum_learning_rate_fraction=floor, **fields)
    values = [learning_rate_at(chosen, step) for step in range(1, steps + 1)]
    assert all(0 <= value <= 1 + 1e-12 for value in values)
    assert values[:warmup] == sorted(values[:warmup])
    after = values[warmup:]
    assert all(earlier >= later - 1e-12 for earlier, later in pairwise(after))
    if warmup < steps:
        assert values[-1] == pytest.approx(floor, abs=1e-12)


@given(steps=st.integers(1, 500), every=st.integers(1, 600))
def test_milestones_increase_to_the_last_step(steps: int, every: int) -> None:
    result = training(steps=steps, milestone_every=every).milestone_steps()
    assert result == sorted(set(result)) and result[-1] == steps
    assert all(step % every == 0 for step in result[:-1]) and len(result) == -(-steps // every)


@given(steps=st.integers(2, 500), every=st.integers(1, 600), data=st.data())
def test_segments_of_a_branch_are_contiguous_from_its_start(steps: int, every: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, steps - 1))
    whole = training(steps=steps, milestone_every=every)
    branch = training(steps=steps, milestone_every=every, start={"model": "base", "step": first})
    assert branch.milestone_steps() == [step for step in whole.milestone_steps() if step > first]
    assert [branch.segment_start(step) for step in branch.milestone_steps()] == [first, *branch.milestone_steps()[:-1]]
    assert [whole.segment_start(step) for step in whole.milestone_steps()] == [0, *whole.milestone_steps()[:-1]]


def test_default_is_one_milestone() -> None:
    assert training().milestone_steps() == [100]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "zero2"}, "choose one of no_shard, shard_optimizer, shard_grad_op, hybrid_shard_zero2"),
        ({"backend": "deepspeed"}, "choose one of zero0"),
        ({"micro_batch_size": 3}, "micro_batch_size 3"),
        ({"warmup_steps": 101}, "warmup_steps 101"),
        ({"start": {"model": "base", "step": 100}}, "steps 100 must exceed start.step 100"),
        ({"backend": "deepspeed", "strategy": "zero0", "precision": "bf16"}, "choose zero1 or fp32"),
        ({"strategy": "shard_optimizer", "precision": "bf16", "gradient_reduction": "bf16"}, "choose fp32"),
        ({"backend": "deepspeed", "strategy": "zero1", "compile": True}, "compile"),
        ({"backend": "deepspeed", "strategy": "zero1", "float8": True}, "float8 to false"),
        ({"backend": "deepspeed", "strategy": "zero1", "optimizer": "muon"}, "set backend to fsdp"),
        ({"flash_attention": False, "recomputation": "selective"}, "flash_attention to true"),
        ({"flash_attention": False, "sampling": {"mask_documents": True}}, "mask_documents to false"),
        ({"float8": True, "precision": "bf16"}, "float8 needs compile, .* set compile to true and precision to bf16"),
        ({"float8": True, "compile": True}, "float8 needs compile, .* and precision bf16"),
        ({"cuda_graphs": True, "compile": True}, "cuda_graphs would record each block again .*: remove it"),
        ({"learning_rat": 1}, "learning_rat"),
    ],
)
def test_contradicting_settings_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        training(**changes)


def test_record_of_an_earlier_version_is_read_without_its_removed_key() -> None:
    assert training(cuda_graphs=False) == training()


def test_full_score_attention_is_refused_with_a_window() -> None:
    shape = {"layers": 1, "width": 32, "heads": 4, "window": 8}
    with pytest.raises(ValidationError, match=r"set it to true or remove architecture\.window"):
        Model(architecture=shape, training=training(flash_attention=False))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flash_attention", False),
        ("decay_embedding", False),
        ("z_loss", 1e-4),
        ("optimizer", "muon"),
        ("load_balancing_loss", 0.01),
    ],
)
def test_default_options_are_not_written_to_the_settings(key: str, value: object) -> None:
    assert key not in training().model_dump(mode="json")
    assert training(**{key: value}).model_dump(mode="json")[key] == value
