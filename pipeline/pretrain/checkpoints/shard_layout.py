"""Describe the shards of tensors that a process holds, as boxes of the full tensor, under every strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeline.model.torch_private import find_local_shape


@dataclass(frozen=True, order=True)
class Box:
    """A part of a tensor: the position of its first element, and its size in every dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """Return the common part of both boxes, or None."""
        first = tuple(map(max, self.offset, other.offset))
        ends = zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        shape = tuple(min(a + n, b + m) - start for start, (a, n, b, m) in zip(first, ends, strict=True))
        return Box(first, shape) if all(extent > 0 for extent in shape) else None

    def slices_within(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices of this box in a tensor that holds the box `outer`."""
        starts = (position - first for position, first in zip(self.offset, outer.offset, strict=True))
        return tuple(slice(start, start + extent) for start, extent in zip(starts, self.shape, strict=True))


def full_box(shape: Sequence[int]) -> Box:
    """Return the box of a full tensor."""
    return Box((0,) * len(shape), tuple(shape))


def list_range_boxes(start: int, length: int, shape: Sequence[int]) -> Iterator[Box]:
    """Yield in order the boxes of a range of the flattened tensor: at most three of a matrix."""
    if length <= 0:
        return
    if len(shape) <= 1:
        yield Box((start,), (length,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), (start + length) // row  # the full rows
    if first > last:  # within one row
        for box in list_range_boxes(start - last * row, length, shape[1:]):
            yield Box((last, *box.offset), (1, *box.shape))
        return
    for box in list_range_boxes(start - (first - 1) * row, first * row - start, shape[1:]):
        yield Box((first - 1, *box.offset), (1, *box.shape))
    if last > first:
        yield Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]))
    for box in list_range_boxes(0, start + length - last * row, shape[1:]):
        yield Box((last, *box.offset), (1, *box.shape))


@dataclass(frozen=True)
class TensorShard:
    """The part of a tensor, such as `model.NAME` of full `shape`, that a process holds, without a copy."""

    name: str
    shape: tuple[int, ...]
    box: Box
    tensor: Tensor

    @property
    def key(self) -> str:
        """Return the key in a file: the tensor's name, with the offset if it is not the full tensor."""
        return self.name if self.box == full_box(self.shape) else f"{self.name}@{','.join(map(str, self.box.offset))}"


def list_local_shards(name: str, tensor: Tensor) -> Iterator[TensorShard]:
    """Yield this process's shard of a tensor, which may be distributed: one, or none."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        yield TensorShard(name, shape, full_box(shape), tensor.detach())
        return
    extent, offset = find_local_shape(shape, tensor.device_mesh, tensor.placements)
    if prod(extent):
        yield TensorShard(name, shape, Box(tuple(offset), tuple(extent)), tensor.to_local().detach())


def list_flat_shards(name: str, shape: Sequence[int], start: int, flat: Tensor) -> Iterator[TensorShard]:
    """Yield the shards of a range of the flattened tensor from `start` on; `flat` may end with padding."""
    length, used = min(flat.numel(), prod(shape) - start), 0
    for box in list_range_boxes(start, length, shape):
        yield TensorShard(name, tuple(shape), box, flat.detach().narrow(0, used, box.elements).view(box.shape))
        used += box.elements


def assign_writers(holdings: Sequence[Sequence[tuple[str, tuple[int, ...], Box]]]) -> list[set[tuple[str, Box]]]:
    """Assign to each process the boxes that it writes, of those that it holds by name and full shape.

    A box that several processes hold is written once, by the one with the smallest load; the largest boxes come first.
    """
    holders: dict[tuple[str, Box], list[int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for process, held in enumerate(holdings):
        for name, shape, box in held:
            holders.setdefault((name, box), []).append(process)
            shapes[name] = shape
    counted = dict.fromkeys(shapes, 0)
    for name, box in holders:
        counted[name] += box.elements
    for name, shape in shapes.items():
        if counted[name] != prod(shape):
            raise RuntimeError(f"the processes hold {counted[name]} elements of {name}, which has {prod(shape)}")
    load = [0] * len(holdings)
    chosen: list[set[tuple[str, Box]]] = [set() for _ in holdings]
    for name, box in sorted(holders, key=lambda entry: (len(holders[entry]), -entry[1].elements, entry)):
        process = min(holders[name, box], key=lambda number: (load[number], number))
        load[process] += box.elements
        chosen[process].add((name, box))
    return chosen
