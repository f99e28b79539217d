"""Boxes: a range of a flattened tensor and its boxes have the same elements, and each is written once."""

from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pretrain.checkpoints.shard_layout import Box, assign_writers, full_box, list_flat_shards, list_range_boxes

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@given(st.data(), SHAPES)
def test_range_is_its_boxes_in_order(data: st.DataObject, shape: list[int]) -> None:
    size = prod(shape)
    start = data.draw(st.integers(0, size))
    length = data.draw(st.integers(0, size - start))
    full = torch.arange(size).view(shape)
    boxes = list(list_range_boxes(start, length, shape))
    results = [full[box.slices_within(full_box(shape))].flatten() for box in boxes]
    assert torch.cat(results or [full.new_empty(0)]).tolist() == list(range(start, start + length))
    assert len(boxes) <= 2 * len(shape) - 1


@given(st.data(), SHAPES)
def test_intersections_cover_a_box_once(data: st.DataObject, shape: list[int]) -> None:
    size = prod(shape)
    cuts = sorted(data.draw(st.sets(st.integers(1, size), max_size=4)) | {0, size})
    stored = [box for a, b in pairwise(cuts) for box in list_range_boxes(a, b - a, shape)]
    first = [data.draw(st.integers(0, extent - 1)) for extent in shape]
    wanted = Box(tuple(first), tuple(data.draw(st.integers(1, n - f)) for f, n in zip(first, shape, strict=True)))
    counted = torch.zeros(wanted.shape)
    for box in stored:
        if common := wanted.intersect(box):
            assert common == box.intersect(wanted)
            counted[common.slices_within(wanted)] += 1
    assert (counted == 1).all()


def test_pieces_of_a_flat_part_are_its_memory_without_padding() -> None:
    flat = torch.arange(10.0)
    pieces = list(list_flat_shards("model.w", (4, 3), 4, flat))
    assert [piece.key for piece in pieces] == ["model.w@1,1", "model.w@2,0"]
    pieces[1].tensor.zero_()
    assert flat.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 8, 9]


def test_replicas_are_written_once_and_the_work_is_balanced() -> None:
    tensors = [(f"model.{n}", (size, 4), full_box((size, 4))) for n, size in enumerate((8, 8, 4, 4, 4, 4))]
    divided = assign_writers([tensors, tensors])
    assert divided[0] | divided[1] == {(name, box) for name, _, box in tensors} and not divided[0] & divided[1]
    assert [sum(box.elements for _, box in part) for part in divided] == [64, 64]
    with pytest.raises(RuntimeError, match=r"hold 32 elements of model.0, which has 64"):
        assign_writers([[("model.0", (16, 4), Box((0, 0), (8, 4)))]])
