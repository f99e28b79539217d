from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipeline.plan.advice import advice
from pipeline.plan.settings import ModelPlan, PlatformPlan

GOOD = {"layers": 32, "width": 4096, "feed_forward_width": 14336, "heads": 32, "key_value_heads": 8}


def told(
    shape: Mapping[str, Any] = MappingProxyType({}), vocabulary_size: int = 128_256, devices: int = 4, **training: Any
) -> list[dict[str, str]]:
    written = {"sequence_length": 4096, "batch_size": 256, "micro_batch_size": 1, "steps": 1} | training
    model = ModelPlan.model_validate(
        {"architecture": GOOD | dict(shape), "training": written, "vocabulary_size": vocabulary_size}
    )
    return advice(model, PlatformPlan(devices=devices), {"devices_used": 16})


def test_a_good_shape_needs_none():
    assert told() == told(mesh={"tensor": 4}) == told(mesh={"pipeline": 4}) == []


def test_sizes_that_are_no_multiples():
    (head,) = told({"heads": 40, "key_value_heads": 8, "width": 3200})
    assert head["advice"] == "a head has 80: 128, such as by 25 heads" and "39 %" in head["gain"]
    odd, width = told({"heads": 30, "key_value_heads": 6, "width": 2400})
    assert (
        odd["advice"] == "a head has 80: 128, such as by head_width 128"
        and width["advice"] == "the width is 2400: 2432"
    )
    (forward,) = told({"feed_forward_width": 14400}, mesh={"tensor": 4})
    assert forward["advice"].startswith("the feed-forward width is 14400: 14592")
    assert told({"feed_forward_width": 14400}) == []
    (vocabulary,) = told(vocabulary_size=50_257)
    assert vocabulary["advice"] == "the vocabulary has 50,257: 50,304"
    assert vocabulary["gain"] == "of the output's product, 2 % of the operations"  # 6 D V of 49.6e9
    assert all(one["source"] for one in (head, odd, width, forward, vocabulary))


def test_key_value_heads_that_no_node_splits():
    shape = {"heads": 52, "key_value_heads": 13, "width": 6656, "feed_forward_width": 17920}
    (one,) = told(shape)
    assert one["advice"] == "13 key-value heads split over none of 2, 4 devices: 26 of 52 heads"
    assert "1/2 to 1/4" in one["gain"] and told(shape, devices=1) == []
    (one,) = told({"key_value_heads": 2}, mesh={"tensor": 4})
    assert (
        one["advice"] == "2 key-value heads split over none of 4 devices: 4 of 32 heads"
        and "leaves 1/4 of" in one["gain"]
    )
    (one,) = told({"heads": 25, "key_value_heads": 5, "width": 3200})
    assert one["advice"].endswith("a multiple of 2, and heads a multiple of it")


def test_stages_that_are_unequal_or_wait():
    (uneven,) = told({"layers": 30}, mesh={"pipeline": 4})
    assert uneven["advice"].startswith("30 layers on 4 stages: 32") and "6.7%" in uneven["gain"]
    (few,) = told(batch_size=32, mesh={"pipeline": 4})
    assert few["advice"].startswith("8 micro-batches on 4 stages: 16")
    assert few["gain"] == "11 % of the step: the bubble is 27 %"
