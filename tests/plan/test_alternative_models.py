from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipeline.plan.alternative_models import advise_shapes
from pipeline.plan.settings import ModelPlan, PlatformPlan

GOOD = {"layers": 32, "width": 4096, "feed_forward_width": 14336, "heads": 32, "key_value_heads": 8}


def advice(
    shape: Mapping[str, Any] = MappingProxyType({}), vocabulary_size: int = 128_256, devices: int = 4, **training: Any
) -> list[dict[str, str]]:
    written = {"sequence_length": 4096, "batch_size": 256, "micro_batch_size": 1, "steps": 1} | training
    model = ModelPlan.model_validate(
        {"architecture": GOOD | dict(shape), "training": written, "vocabulary_size": vocabulary_size}
    )
    return advise_shapes(model, PlatformPlan(devices=devices), {"devices_used": 16})


def test_good_shape_has_no_advice():
    assert advice() == advice(mesh={"tensor": 4}) == advice({"layers": 34}, mesh={"pipeline": 4}) == []


def test_sizes_that_are_not_multiples():
    (head,) = advice({"heads": 40, "key_value_heads": 8, "width": 3200})
    assert head["advice"] == "the head width is 80; 128, with 25 heads, would be faster" and "39 %" in head["gain"]
    odd, width = advice({"heads": 30, "key_value_heads": 6, "width": 2400})
    assert (
        odd["advice"] == "the head width is 80; 128, with head_width 128, would be faster"
        and width["advice"] == "the width is 2,400; 2,432 would be faster"
    )
    (forward,) = advice({"feed_forward_width": 14400}, mesh={"tensor": 4})
    assert forward["advice"].startswith("the feed-forward width is 14,400; 14,592, a multiple of 64 on each")
    assert advice({"feed_forward_width": 14400}) == []
    (vocabulary,) = advice(vocabulary_size=50_257)
    assert vocabulary["advice"] == "the vocabulary size is 50,257; 50,304 would be faster"
    assert vocabulary["gain"] == "of the output's matrix product, which takes 2 % of the operations"  # 6 D V of 49.6e9
    assert all(one["source"] for one in (head, odd, width, forward, vocabulary))


def test_heads_that_no_node_divides_and_replicated_key_value_heads():
    shape = {"heads": 52, "key_value_heads": 13, "width": 6656, "feed_forward_width": 17920}
    assert advice(shape) == []
    (one,) = advice(shape, mesh={"tensor": 2})
    assert one["advice"] == "13 key-value heads do not divide over 2 devices; 26 would"
    assert one["gain"] == "each device computes 7 of them instead of 6.5 and holds the matrices of all"
    (one,) = advice(shape, mesh={"tensor": 4})
    assert "; 52 would" in one["advice"] and "computes 4 of them instead of 3.25" in one["gain"]
    (one,) = advice({"heads": 25, "key_value_heads": 5, "width": 3200})
    assert (
        one["advice"] == "25 heads do not divide over 2 or 4 devices; a multiple of 2 would"
        and "1/2 to 1/4" in one["gain"]
    )
    assert advice({"heads": 25, "key_value_heads": 5, "width": 3200}, devices=1) == []


def test_unequal_or_waiting_pipeline_stages():
    # The output takes 2.09 layers' operations: 8, 9, 9 and 6 layers, and of 34 9, 9, 9 and 7.
    (uneven,) = advice({"layers": 32}, mesh={"pipeline": 4})
    assert (
        uneven["advice"] == "32 layers and the output make 4 unequal stages; 34 layers would be more equal"
        and "5.6%" in uneven["gain"]
    )
    (few,) = advice({"layers": 34}, batch_size=32, mesh={"pipeline": 4})
    assert few["advice"].startswith("4 stages wait less with 16 than with 8 micro-batches")
    assert few["gain"] == "11 % of the step, of which the bubble takes 27 %"
