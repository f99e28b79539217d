"""PyTorch's fully sharded data parallelism (FSDP2) of the native model.

Strategies: full_shard gathers a block's parameters for its forward and again for its backward pass, shard_grad_op
keeps them in between, no_shard holds everything in every process and sums gradients (a mesh with shards of one).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeline.model.llama import Llama
from pipeline.model.prepare import prepare
from pipeline.pretrain.backend import Accept, Batch, adamw, token_loss_sum
from pipeline.pretrain.checkpoint import MOMENTS, Start
from pipeline.pretrain.pieces import Piece, placed
from pipeline.pretrain.settings import SegmentSettings


class FsdpBackend:
    """`pipeline.pretrain.backend.Backend` with FSDP2. Parameters are float32; bf16 concerns the computation only."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, start: Start, device: torch.device) -> None:
        self.training, self.device = settings.training, device
        # Moving a model off the meta device would part tied weights.
        with torch.device(device if settings.architecture.tie_embeddings else "meta"):
            self.model = Llama(settings.architecture, vocabulary_size)
        prepare(
            self.model,
            device,
            recomputation=self.training.recomputation,
            compile=self.training.compile,
            float8=self.training.float8,
            tiled_feed_forward=self.training.tiled_feed_forward,
        )
        self._shard()
        self.model.to_empty(device=device)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = adamw(self.parameters.values(), self.training, fused=device.type == "cuda")
        self._load(start)

    def _shard(self) -> None:
        world_size, strategy = dist.get_world_size(), self.training.strategy
        shape = (world_size, 1) if strategy == "no_shard" else (world_size,)
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        policy = MixedPrecisionPolicy()
        if self.training.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy == "full_shard")
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    @torch.no_grad()
    def _load(self, start: Start) -> None:
        for parameter in self.parameters.values():
            counter = torch.tensor(float(start.optimizer_step), device=parameter.device)
            moments = {moment: torch.zeros_like(parameter) for moment in MOMENTS}
            self.optimizer.state[parameter] = {"step": counter, **moments}
        start.load(self.pieces())

    def accumulate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """See Backend. Sharded gradients are reduced after every micro-batch, so that they stay sharded."""
        assert isinstance(self.model, FSDPModule)
        tokens = sum(target.numel() for _, target in micro_batches)
        total = torch.zeros((), device=self.device)
        for number, (input_BT, target_BT) in enumerate(micro_batches, start=1):
            self.model.set_requires_all_reduce(number == len(micro_batches))
            loss = token_loss_sum(self.model(input_BT), target_BT)
            torch.autograd.backward(loss / tokens)
            total += loss.detach()
        return total

    def update(self, learning_rate: float, accept: Accept) -> float:
        """See Backend."""
        limit = self.training.gradient_clip or float("inf")
        total = nn.utils.clip_grad_norm_(self.parameters.values(), limit)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if accept(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    @torch.no_grad()
    def loss_sum(self, batch: Batch) -> Tensor:
        """See Backend."""
        return token_loss_sum(self.model(batch[0]), batch[1])

    def pieces(self) -> list[Piece]:
        """See Backend."""
        found: list[Piece] = []
        for name, parameter in self.parameters.items():
            found += placed(f"model.{name}", parameter)
            for moment in MOMENTS:
                found += placed(f"{moment}.{name}", self.optimizer.state[parameter][moment])
        return found

    def optimizer_step(self) -> int:
        """See Backend."""
        return int(next(iter(self.optimizer.state.values()))["step"])
