"""Make the optimizer, AdamW or Muon (Jordan et al. 2024; Liu et al. 2025, section 2.2).

`torch.optim.Muon` needs full matrices on each process and computes in bf16 only; of a sharded matrix it would multiply
the shards. Axes: R rows and C columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pipeline.model.size import learning_rate_factor
from pipeline.pretrain.checkpoints.shard_layout import full_box, list_local_shards
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
        self.mesh = mesh
        self.sizes = tuple(mesh.shape) if mesh else ()
        self.place = tuple(mesh.get_coordinate() or ()) if mesh else ()
        self.number = math.prod(self.sizes)

    def coordinate_of(self, number: int) -> tuple[int, ...]:
        """Return the mesh coordinate of a process in this group."""
        return tuple(int(x) for x in np.unravel_index(number, self.sizes)) if self.sizes else ()

    def broadcast(self, tensor: Tensor, source: tuple[int, ...]) -> None:
        """Broadcast from the process at a coordinate, one dimension of the mesh after another."""
        for dimension, (size, at) in enumerate(zip(self.sizes, source, strict=True)):
            if size > 1 and self.mesh and self.place[dimension + 1 :] == source[dimension + 1 :]:
                dist.broadcast(tensor, group=self.mesh.get_group(dimension), group_src=at)


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with `orthogonalizes`, AdamW for the others.

    In each round, the processes that share matrices gather as many matrices as processes, orthogonalize one each in
    parallel, and broadcast it. The largest come first, so that the matrices of a round take equally long.
    """

    precision = torch.float32
    """Precision of the iteration."""

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
                    sharers = _ShardingGroup(mesh)
                    for first in range(0, len(matrices), sharers.number):
                        self._update_matrices(matrices[first : first + sharers.number], sharers, group)
        super().step(closure)

    def _update_matrices(self, matrices: list[Tensor], sharers: _ShardingGroup, group: dict[str, Any]) -> None:
        """Update at most as many matrices as there are processes in the group."""
        places = [sharers.coordinate_of(number) for number in range(len(matrices))]
        own = Tensor()
        for parameter, place in zip(matrices, places, strict=True):
            whole_RC = self._momentum_gradient(parameter)
            if place == sharers.place:
                own = whole_RC
        if sharers.place in places:
            own = orthogonalize(own, self.precision).contiguous()
        for parameter, place in zip(matrices, places, strict=True):
            is_own = place == sharers.place
            update_RC = own if is_own else torch.empty(parameter.shape, dtype=self.precision, device=parameter.device)
            sharers.broadcast(update_RC, place)
            self._apply_update(parameter, update_RC.to(parameter.dtype), group)

    def _momentum_gradient(self, parameter: Tensor) -> Tensor:
        """Return the full Nesterov momentum of the gradient, and consume the gradient."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(mean, MOMENTUM)
        parameter.grad = None  # AdamW then skips it
        return ahead.full_tensor() if isinstance(ahead, DTensor) else ahead

    def _apply_update(self, parameter: Tensor, update_RC: Tensor, group: dict[str, Any]) -> None:
        rate = group["lr"]
        parameter.mul_(1 - rate * group["weight_decay"])
        for piece in list_local_shards("", parameter):
            part = update_RC[piece.box.slices_within(full_box(parameter.shape))]
            piece.tensor.add_(part, alpha=-rate * UPDATE_RMS * math.sqrt(max(parameter.shape)))


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
