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
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.model.llama import Llama
from pipeline.pretrain.backend import Batch, adamw, token_loss_sum, token_losses
from pipeline.pretrain.checkpoint import MOMENTS, Start
from pipeline.pretrain.settings import SegmentSettings


class FsdpBackend:
    """`pipeline.pretrain.backend.Backend` with FSDP2. Parameters are float32; bf16 concerns the computation only."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, start: Start, device: torch.device) -> None:
        self.training, self.device = settings.training, device
        # Moving a model off the meta device would part tied weights.
        with torch.device(device if settings.architecture.tie_embeddings else "meta"):
            self.model = Llama(settings.architecture, vocabulary_size)
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
            if self.training.compile:
                block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy == "full_shard")
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def _placed(self, full: Tensor | None, like: nn.Parameter) -> DTensor:
        """Return a tensor that process 0 has in full, spread as `like`."""
        assert isinstance(like, DTensor)
        tensor = torch.empty(like.shape, device=self.device) if full is None else full.to(self.device)
        return distribute_tensor(tensor, like.device_mesh, like.placements)

    @torch.no_grad()
    def _load(self, start: Start) -> None:
        first = dist.get_rank() == 0
        for name, parameter in self.parameters.items():
            parameter.copy_(self._placed(start.weight(name) if first else None, parameter))
            if start.step:
                counter = torch.tensor(float(start.step), device=self.device)
                moments = {m: self._placed(start.moment(m, name) if first else None, parameter) for m in MOMENTS}
                self.optimizer.state[parameter] = {"step": counter, **moments}

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

    def update(self, learning_rate: float) -> float:
        """See Backend."""
        limit = self.training.gradient_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), limit)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    @torch.no_grad()
    def loss_sum(self, batch: Batch) -> Tensor:
        """See Backend."""
        return token_loss_sum(self.model(batch[0]), batch[1])

    @torch.no_grad()
    def token_losses(self, batch: Batch) -> Tensor | None:
        """See Backend."""
        return token_losses(self.model, batch)

    def _collected(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        collected = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if dist.get_rank() == 0:
                collected[name] = full.detach().cpu()
        return collected

    def weights(self) -> dict[str, Tensor]:
        """See Backend."""
        return self._collected(dict(self.parameters))

    def moments(self) -> dict[str, Tensor]:
        """See Backend."""
        state = self.optimizer.state
        return self._collected({f"{m}.{name}": state[p][m] for name, p in self.parameters.items() for m in MOMENTS})
