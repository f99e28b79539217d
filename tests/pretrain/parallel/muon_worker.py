"""One of four processes that update matrices by Muon together, compared with a single process."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from pipeline.core.lock_owner import die_with_parent
from pipeline.pretrain.parallel import optimizer as optimizers

SHAPES = [(6, 10), (12, 4), (8, 8), (5, 7), (9, 3), (4, 4), (2, 3)]
PLACEMENTS = [[Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Shard(0)]]
DRAW = torch.Generator().manual_seed(1)
DRAWN = [(torch.randn(shape, generator=DRAW), torch.randn(shape, generator=DRAW)) for shape in SHAPES]
calls: list[tuple[int, ...]] = []
received: list[int] = []
exchanged = dist.all_to_all_single
orthogonalised = optimizers.orthogonalize


def counted(matrix: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    """Orthogonalize a matrix, and record its shape."""
    calls.append(tuple(matrix.shape))
    return orthogonalised(matrix, precision)


def counted_exchange(out: torch.Tensor, given: torch.Tensor, *sizes: list[int], group: dist.ProcessGroup) -> None:
    """Run a collective, and count the bytes from other processes."""
    received.append((len(out) - sizes[0][dist.get_rank()]) * out.itemsize)
    exchanged(out, given, *sizes, group=group)


def moved(place: Callable[[int, torch.Tensor], torch.Tensor], precision: torch.dtype) -> list[torch.nn.Parameter]:
    """Return the matrices after two steps."""
    parameters = [torch.nn.Parameter(place(number, weight)) for number, (weight, _) in enumerate(DRAWN)]
    optimizer = optimizers.Muon([{"params": parameters, "orthogonalizes": True, "weight_decay": 0.1}], lr=0.01)
    optimizer.precision = precision
    for _ in range(2):
        for number, (parameter, (_, gradient)) in enumerate(zip(parameters, DRAWN, strict=True)):
            parameter.grad = place(number, gradient)
            optimizer.state.setdefault(parameter, {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter)})
        optimizer.step()
        assert all(parameter.grad is None for parameter in parameters)
    return parameters


def main() -> None:
    """Compare the matrices, and which of them each process orthogonalizes."""
    die_with_parent()
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (2, 2))
    optimizers.orthogonalize = counted
    dist.all_to_all_single = counted_exchange
    for precision in (torch.float32, torch.bfloat16):
        alone = moved(lambda _, matrix: matrix.clone(), precision)
        assert len(calls) == 2 * len(SHAPES)
        calls.clear()
        together = moved(lambda number, matrix: distribute_tensor(matrix, mesh, PLACEMENTS[number % 3]), precision)
        own = sorted(SHAPES, key=lambda shape: shape[0] * shape[1], reverse=True)[dist.get_rank() :: 4]
        assert calls == own * 2, (calls, own)
        calls.clear()
        # The missing shards of its own matrices, in float32, and its part of each update; a gather would send all.
        whole, held = (sum(x.numel() for x in each) for each in (alone, [p.to_local() for p in together]))
        lacking = sum(rows * columns for rows, columns in own)
        assert sum(received) / 2 <= 4 * lacking + precision.itemsize * held < 0.6 * (4 + precision.itemsize) * whole
        received.clear()
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one, other.full_tensor())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
