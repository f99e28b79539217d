"""Weights drawn in blocks do not depend on the sharding, and cost a process only its own part."""

import hashlib
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from pipeline.model import networks
from pipeline.model.networks import initial_weight
from pipeline.model.settings import Architecture

BLOCK = 40  # the last block of the shapes below has 16 elements or more, or fewer, which torch draws differently


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "BLOCK_ELEMENTS", BLOCK)


def by_the_rule(name: str, elements: int, deviation: float, seed: int) -> Tensor:
    """Return a flattened parameter by docs/explanation/determinism.md, block by block."""
    rows = []
    for number, length in enumerate(b - a for a, b in pairwise([*range(0, elements, BLOCK), elements])):
        words = f"{seed}/{name}/{number}" if number else f"{seed}/{name}"
        first = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big", signed=True)
        rows.append(torch.empty(length).normal_(0.0, deviation, generator=torch.Generator().manual_seed(first)))
    return torch.cat(rows)


@pytest.mark.parametrize("shape", [(5, 8), (7, 9), (10, 15), (3, 14), (4, 6, 10), (121, 1)])
def test_each_block_has_its_own_random_generator(shape: tuple[int, ...]) -> None:
    expected = by_the_rule("a.weight", math.prod(shape), 0.3, 11)
    assert torch.equal(networks.draw_normal("a.weight", shape, 0.3, 11), expected.view(shape))
    assert len(expected) <= BLOCK or not torch.equal(expected[:10], expected[BLOCK : BLOCK + 10])


@pytest.mark.parametrize(
    "part",
    [
        (slice(0, 9), slice(0, 7), slice(0, 5)),
        (slice(2, 5), slice(0, 7), slice(0, 5)),
        (slice(0, 9), slice(3, 6), slice(0, 5)),
        (slice(4, 5), slice(1, 7), slice(2, 4)),
        (slice(8, 9), slice(6, 7), slice(4, 5)),
        (slice(9, 9), slice(0, 7), slice(0, 5)),
    ],
)
def test_part_equals_the_slice_of_the_whole(part: tuple[slice, ...]) -> None:
    whole = networks.draw_normal("a", (9, 7, 5), 1.0, 3)
    result = networks.draw_normal("a", (9, 7, 5), 1.0, 3, part)
    assert torch.equal(result, whole[part]) and result.is_contiguous()


@pytest.mark.parametrize(
    "part, numbers",
    [
        ((slice(10, 14), slice(0, 20)), [5, 6]),
        ((slice(10, 15), slice(0, 20)), [5, 6, 7]),
        ((slice(0, 100), slice(0, 10)), list(range(50))),  # columns overlap all blocks, each once
        ((slice(6, 6), slice(0, 20)), []),
    ],
)
def test_only_blocks_that_overlap_a_part_are_drawn(
    part: tuple[slice, ...], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drew, block = [], networks._sample_normal_chunk
    monkeypatch.setattr(networks, "_sample_normal_chunk", lambda *given: drew.append(given[2]) or block(*given))
    networks.draw_normal("a", (100, 20), 1.0, 3, part)
    assert drew == numbers


def test_all_elements_have_one_standard_deviation() -> None:
    result = networks.draw_normal("a", (400, 1000), 0.02, 1)
    assert float(result.std()) == pytest.approx(0.02, rel=0.01) and abs(float(result.mean())) < 0.0002


def test_part_of_a_parameter_is_scaled_as_the_whole() -> None:
    shape = Architecture(layers=8, width=64, heads=4)
    for name, size in {"blocks.0.feed_forward.down.weight": (64, 256), "norm.weight": (64,)}.items():
        part = (slice(13, 14), *(slice(0, extent) for extent in size[1:]))
        whole = initial_weight(name, torch.Size(size), shape, 5)
        assert torch.equal(initial_weight(name, torch.Size(size), shape, 5, part), whole[part])
