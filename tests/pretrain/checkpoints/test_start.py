"""A training starts from the same weights under any sharding, and each process makes only its own."""

from collections.abc import Callable, Iterator

import pytest
import torch

from pipeline.model import networks
from pipeline.model.networks import initial_state, parameter_shapes
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.shard_layout import Box, TensorShard, list_range_boxes
from pipeline.pretrain.settings import SegmentSettings

VOCABULARY = 304


def rows(shape: torch.Size, process: int, of: int) -> Iterator[Box]:
    """Yield FSDP's part of a process: a chunk of the rows."""
    size = -(-shape[0] // of)
    if (extent := min(size, shape[0] - process * size)) > 0:
        yield Box((process * size, *(0,) * (len(shape) - 1)), (extent, *shape[1:]))


def columns(shape: torch.Size, process: int, of: int) -> Iterator[Box]:
    """Yield the tensor parallel part of a matrix that closes a branch."""
    size = shape[-1] // of
    yield Box((*(0,) * (len(shape) - 1), process * size), (*shape[:-1], size))


def flat(shape: torch.Size, process: int, of: int) -> Iterator[Box]:
    """Yield ZeRO's part of a process: a range of the flattened parameter."""
    size = -(-shape.numel() // of)
    yield from list_range_boxes(process * size, min(size, shape.numel() - process * size), shape)


@pytest.mark.parametrize("cut", [rows, columns, flat])
@pytest.mark.parametrize("processes", [1, 2, 16])
def test_every_layout_starts_from_the_same_weights(
    cut: Callable[[torch.Size, int, int], Iterator[Box]],
    processes: int,
    settings: Callable[..., SegmentSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(networks, "BLOCK_ELEMENTS", 300)
    start = SegmentStart(None, settings(), VOCABULARY)
    expected = initial_state(start.settings.architecture, VOCABULARY, start.settings.seed)
    for name, shape in parameter_shapes(start.settings.architecture, VOCABULARY).items():
        result = torch.full(shape, torch.nan)
        for process in range(processes):
            for box in cut(shape, process, processes):
                tensor = torch.full(box.shape, torch.nan)
                moment = torch.zeros(box.shape)
                pieces = [
                    TensorShard(f"model.{name}", shape, box, tensor),
                    TensorShard(f"exp_avg.{name}", shape, box, moment),
                ]
                start.load(pieces)
                result[tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))] = tensor
                assert not moment.any()
        assert torch.equal(result, expected[name]), name
