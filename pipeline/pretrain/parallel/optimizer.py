"""Make the optimizer, AdamW or Muon (Jordan et al. 2024; Liu et al. 2025, section 2.2).

`torch.optim.Muon` needs full matrices on each process and computes in bf16 only; of a sharded matrix it would multiply
the shards. Axes: R rows and C columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pipeline.model.size_and_cost import learning_rate_factor
from pipeline.model.torch_private import find_local_shape
from pipeline.pretrain.checkpoints.shard_layout import Box, full_box, list_local_shards
from pipeline.pretrain.parallel import process_groups
from pipeline.pretrain.settings import SegmentSettings

MOMENTUM = 0.95
UPDATE_RMS = 0.2
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5 in the polynomial that each step applies to the singular values."""
SMALLEST_NORM = 1e-7


def orthogonalize(matrix_RC: Tensor, precision: torch.dtype) -> Tensor:
    """Return a matrix with the same singular vectors and singular values of about 0.7 to 1.2, in that precision."""
    of_x, of_cube, of_fifth = COEFFICIENTS
    is_tall = matrix_RC.shape[0] > matrix_RC.shape[1]
    x: Tensor = (matrix_RC.T if is_tall else matrix_RC).to(precision)  # so that its square has the shorter side
    x = x / x.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        square = x @ x.T
        # addmm does not round between product and sum.
        factor = torch.addmm(square, square, square, beta=of_cube, alpha=of_fifth)
        x = torch.addmm(x, factor, x, beta=of_x)
    return x.T if is_tall else x


class _ShardingGroup:
    """The processes that share matrices; each orthogonalizes some of them for all."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        self._mesh = mesh
        self.number, self.rank = 1, 0
        if mesh is not None:
            ranks = mesh.mesh.flatten().tolist()
            self.number, self.rank = len(ranks), ranks.index(dist.get_rank())
            self._coordinates = [(mesh.mesh == rank).nonzero()[0].tolist() for rank in ranks]
            self._group = mesh.get_group() if mesh.ndim == 1 else process_groups.make_group(ranks)
        self._holders: dict[tuple[Any, ...], tuple[list[Box], dict[Box, list[int]]]] = {}

    def find_holders(self, matrix: Tensor) -> tuple[list[Box], dict[Box, list[int]]]:
        """Return which part of a matrix each process has, which may be empty, and who has each part.

        It is computed once for a shape: for hundreds of processes that takes longer than a step.
        """
        shape = tuple(matrix.shape)
        key = (shape, matrix.placements if isinstance(matrix, DTensor) else None)
        if key not in self._holders:
            boxes = [full_box(shape)]
            if self._mesh is not None and isinstance(matrix, DTensor):
                local_shapes = (
                    find_local_shape(shape, self._mesh, matrix.placements, place) for place in self._coordinates
                )
                boxes = [Box(tuple(offset), tuple(extent)) for extent, offset in local_shapes]
            holders: dict[Box, list[int]] = {}
            for number, box in enumerate(boxes):
                holders.setdefault(box, []).append(number)
            self._holders[key] = boxes, holders
        return self._holders[key]

    def exchange(self, sent: Sequence[Tensor], received: Sequence[int]) -> list[Tensor]:
        """Send the i-th flat tensor to process i; return one of so many elements from each."""
        if self.number == 1:
            return [*sent]
        output = sent[0].new_empty(sum(received))
        dist.all_to_all_single(output, torch.cat([*sent]), [*received], [*map(len, sent)], group=self._group)
        return [*output.split([*received])]  # type: ignore[no-untyped-call]


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with `orthogonalizes`, AdamW for the others.

    In each round, the processes that share matrices take as many as processes. Each gets the shards of one matrix,
    orthogonalizes it, and returns to each process its part. The largest come first, so that the matrices of a round
    take equally long.
    """

    precision = torch.float32
    """Precision of the iteration."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._groups: dict[DeviceMesh | None, _ShardingGroup] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the step of all groups; the gradients of orthogonalized matrices are consumed."""
        for group in self.param_groups:
            if group["orthogonalizes"]:
                of_meshes: dict[DeviceMesh | None, list[Tensor]] = {}
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
                        of_meshes.setdefault(mesh, []).append(parameter)
                for mesh, matrices in of_meshes.items():
                    matrices.sort(key=Tensor.numel, reverse=True)
                    if mesh not in self._groups:
                        self._groups[mesh] = _ShardingGroup(mesh)
                    sharers = self._groups[mesh]
                    for first in range(0, len(matrices), sharers.number):
                        self._update_matrices(matrices[first : first + sharers.number], sharers, group)
        super().step(closure)

    def _update_matrices(self, matrices: list[Tensor], sharers: _ShardingGroup, group: dict[str, Any]) -> None:
        """Update at most as many matrices as there are processes in the group; process i owns the i-th."""
        number, rank = sharers.number, sharers.rank
        layouts = [sharers.find_holders(matrix) for matrix in matrices]
        boxes, holders = [boxes for boxes, _ in layouts], [holders for _, holders in layouts]

        def find_shard_sender(box: Box, owner: int) -> int:
            """Return who sends one of equal shards: the owner, or else the next process."""
            return min(holders[owner][box], key=lambda n: (n - owner) % number)

        own = [self._momentum_gradient(matrix) for matrix in matrices]
        empty = own[0].new_empty(0)
        to_owner = [
            part.flatten() if find_shard_sender(boxes[owner][rank], owner) == rank else empty
            for owner, part in enumerate(own)
        ]
        to_owner += [empty] * (number - len(matrices))
        # What this process owns, if it does, from each.
        mine = boxes[rank] if rank < len(matrices) else []
        sizes = [box.elements if find_shard_sender(box, rank) == n else 0 for n, box in enumerate(mine)] or [0] * number
        shards = sharers.exchange(to_owner, sizes)
        back = [empty.to(self.precision)] * number
        if mine:
            whole_RC = empty.new_empty(matrices[rank].shape)
            full = full_box(whole_RC.shape)
            for box, shard in zip(mine, shards, strict=True):
                if len(shard):
                    whole_RC[box.slices_within(full)] = shard.view(box.shape)
            update_RC = orthogonalize(whole_RC, self.precision).contiguous()
            back = [update_RC[box.slices_within(full)].flatten() for box in mine]
        returned = sharers.exchange(back, [held[rank].elements for held in boxes] + [0] * (number - len(matrices)))
        for matrix, part in zip(matrices, returned, strict=False):
            self._apply_update(matrix, part.to(matrix.dtype), group)

    def _momentum_gradient(self, parameter: Tensor) -> Tensor:
        """Return this process's shard of the Nesterov momentum of the gradient, and consume the gradient."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(mean, MOMENTUM)
        parameter.grad = None  # AdamW then skips it
        return ahead.to_local() if isinstance(ahead, DTensor) else ahead

    def _apply_update(self, parameter: Tensor, part: Tensor, group: dict[str, Any]) -> None:
        rate = group["lr"]
        parameter.mul_(1 - rate * group["weight_decay"])
        for piece in list_local_shards("", parameter):
            scale = UPDATE_RMS * math.sqrt(max(parameter.shape))
            piece.tensor.add_(part.view(piece.box.shape), alpha=-rate * scale)


def make_optimizer(
    parameters: Mapping[str, nn.Parameter], settings: SegmentSettings, *, fused: bool
) -> torch.optim.AdamW:
    """Make AdamW (Loshchilov & Hutter 2019), or Muon, with weight decay on matrices and not on norms.

    Without `decay_embedding` the embedding has no weight decay either, as in OLMo 2 (Walsh et al. 2025). The learning
    rate of a group is multiplied by its `learning_rate_factor` and its weight decay is divided by it, so their product
    follows the settings.
    """
    training = settings.training
    muon = training.optimizer == "muon"
    groups: dict[tuple[bool, float, bool, bool], list[nn.Parameter]] = {}
    groups |= {(True, 1.0, False, False): [], (False, 1.0, False, False): []}
    for name, parameter in parameters.items():
        dimensions = len(getattr(parameter, "ds_shape", parameter.shape))  # DeepSpeed shards it into flat parts
        factor = learning_rate_factor(name, dimensions, settings.architecture)
        decays = dimensions >= 2 and (training.decay_embedding or name != "embedding.weight")
        orthogonalizes = muon and dimensions == 2 and name.startswith("blocks.")
        # Expert weights may be on their own mesh, where one kernel cannot update them with others.
        groups.setdefault((decays, factor, orthogonalizes, dimensions > 2), []).append(parameter)
    kind = Muon if muon else torch.optim.AdamW
    optimizer = kind(
        [
            {
                "params": members,
                "weight_decay": training.weight_decay / factor if decays else 0.0,
                "learning_rate_factor": factor,
                "orthogonalizes": orthogonalizes,
            }
            for (decays, factor, orthogonalizes, _), members in groups.items()
            if members
        ],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=fused,
    )
    if isinstance(optimizer, Muon) and training.precision == "bf16":
        optimizer.precision = torch.bfloat16
    set_learning_rate(optimizer, training.learning_rate)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of each group, multiplied by its factor."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["learning_rate_factor"]
