"""Train with PyTorch's fully sharded data parallelism (FSDP2), combined with all other kinds of parallelism.

Full sharding gathers the parameters of a block for its forward and again for its backward pass; other strategies keep
them in between. A hybrid strategy shards within groups that hold a copy each. A pipeline gathers once in a step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.decoder import Decoder
from pipeline.model.networks import get_network
from pipeline.model.size_and_cost import ulysses_degree
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.plan.training_cost_formulas import divide_layers
from pipeline.pretrain.checkpoints.checkpoint import MOMENTS, SegmentStart
from pipeline.pretrain.checkpoints.shard_layout import TensorShard, list_local_shards
from pipeline.pretrain.parallel import context_parallel, expert_parallel, process_groups, tensor_parallel
from pipeline.pretrain.parallel.backend import AcceptStep, Batch, layer_name
from pipeline.pretrain.parallel.optimizer import make_optimizer, set_learning_rate
from pipeline.pretrain.parallel.pipeline_parallel import Pipeline, PipelineStages, make_stages_class_for_model
from pipeline.pretrain.parallel.process_layout import make_layout
from pipeline.pretrain.settings import SegmentSettings


def _total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the joint norm of all tensors; expert weights may be on their own mesh."""
    by_mesh: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        by_mesh.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    norms = [nn.utils.get_total_norm(members) for members in by_mesh.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return whole[0] if len(whole) == 1 else torch.stack(whole).norm()


class FsdpBackend:
    """The `Backend` with FSDP2. Parameters are float32; bf16 concerns the computation only."""

    def __init__(
        self, settings: SegmentSettings, vocabulary_size: int, start: SegmentStart, device: torch.device
    ) -> None:
        self.settings, self.training, self.device = settings, settings.training, device
        self.strategy = STRATEGIES[self.training.strategy]
        processes = dist.get_world_size()
        self.layout = make_layout(self.training, processes, int(os.environ["LOCAL_WORLD_SIZE"]))
        self.data_rank, self.data_size = self.layout.data_rank(dist.get_rank()), self.layout.data
        self.mesh = process_groups.make_mesh(self.layout, device.type)
        self.stages = self.mesh["pipeline"]
        # Moving a model off the meta device would untie weights.
        with torch.device(device if settings.architecture.tie_embeddings else "meta"):
            self.model = self._make_model(settings, vocabulary_size)
        self.model.output.z_loss = self.training.z_loss
        set_execution_options(self.model, device, **self.training.execution_options())
        self._parallelize()
        self._allocate(start.optimizer_step)
        self.pipeline: Pipeline | None = None
        if isinstance(self.model, PipelineStages):
            dtype = torch.bfloat16 if self.training.precision == "bf16" else torch.float32
            split = self.layout.tensor * self.layout.context
            group, once = self.stages.get_group(), self.strategy.reduces_gradients_once
            self.pipeline = Pipeline(self.model, split, dtype, device, group, reduces_once=once)
        start.load(self.state_shards())

    def _make_model(self, settings: SegmentSettings, vocabulary_size: int) -> Decoder:
        model = get_network(settings.architecture.name).model
        if self.layout.pipeline == 1:
            return model(settings.architecture, vocabulary_size)
        rank, size, length = self.stages.get_local_rank(), self.layout.pipeline, self.training.sequence_length
        layers = divide_layers(settings.architecture, vocabulary_size, length, size * self.training.mesh.interleaving)
        is_first, is_last = rank == 0, rank == size - 1
        return make_stages_class_for_model(model)(
            settings.architecture, vocabulary_size, layers[rank::size], is_first=is_first, is_last=is_last
        )

    def _parallelize(self) -> None:
        """Parallelize the model over the mesh: first tensor, then context, then data parallelism."""
        training, sizes = self.training, self.layout
        if sizes.tensor > 1:
            tensor_parallel.apply(self.model, self.mesh["tensor"], asynchronous=training.async_tensor_parallel)
        self.context: context_parallel.ContextGroup | None = None
        if sizes.context > 1:
            parts = ulysses_degree(self.settings.architecture, sizes.tensor, sizes.context)
            self.context = context_parallel.ContextGroup(process_groups.make_context_group(sizes), parts)
            context_parallel.apply(self.model, self.context)
        policy = MixedPrecisionPolicy()
        if training.precision == "bf16":
            reduced = torch.float32 if training.gradient_reduction == "fp32" else torch.bfloat16
            # Rotary angles stay float32; hidden states are bf16 from the embedding on.
            policy = MixedPrecisionPolicy(torch.bfloat16, reduced, cast_forward_inputs=False)
        strategy = self.strategy
        two = sizes.replicate > 1 or strategy.is_replicated
        data = self.mesh["replicate", "shard"] if two else self.mesh["shard"]
        # In a pipeline, other micro-batches in flight read the same weights.
        again = strategy.reshards_after_forward and sizes.pipeline == 1
        if sizes.expert > 1:
            self._divide_experts(policy, two, again)
        groups: list[tuple[list[nn.Module], bool]] = [([block], again) for block in self.model.blocks]
        if not self.model.architecture.tie_embeddings:
            # Wrapped separately: the embedding is freed after its lookup, the output prefetched while blocks compute.
            groups += [([self.model.embedding], again), ([self.model.norm, self.model.output], False)]
        for modules, reshards in groups:
            if next(modules[0].parameters(), None) is not None:  # another pipeline stage may have them
                fully_shard(modules, mesh=data, mp_policy=policy, reshard_after_forward=reshards)
        if isinstance(self.model.embedding, FSDPModule):
            self.model.embedding.set_unshard_in_backward(False)  # its gradient needs no weights
        fully_shard(self.model, mesh=data, mp_policy=policy, reshard_after_forward=False)

    def _divide_experts(self, policy: MixedPrecisionPolicy, two: bool, reshards: bool) -> None:
        """Divide experts over the mesh `expert`, and shard each over the remaining data-parallel processes."""
        own = process_groups.make_expert_mesh(self.layout, self.device.type)
        expert_parallel.apply(self.model, own["expert"])
        data = own["replicate", "shard"] if two else own["shard"]
        for experts in expert_parallel.find_experts(self.model).values():
            fully_shard(
                [experts.gate, experts.up, experts.down],
                mesh=data,
                mp_policy=policy,
                reshard_after_forward=reshards,
                shard_placement_fn=lambda _: Shard(1),
            )

    @torch.no_grad()
    def _allocate(self, optimizer_step: int) -> None:
        """Allocate the parameters, and an optimizer that took so many steps."""
        self.model.to_empty(device=self.device)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = make_optimizer(self.parameters, self.settings, fused=self.training.fused_optimizer)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                counter = torch.tensor(float(optimizer_step), device=parameter.device)
                held = MOMENTS[:1] if group["orthogonalizes"] else MOMENTS
                moments = {moment: torch.zeros_like(parameter) for moment in held}
                self.optimizer.state[parameter] = {"step": counter, **moments}

    def _select_local_targets(self, batch: Batch) -> Batch:
        """Return the batch with the targets of this process's positions; the model splits the input itself."""
        if self.context is None:
            return batch
        return batch._replace(target_BT=self.context.select_local_positions(batch.target_BT))

    def _count_once(self, loss: Tensor) -> Tensor:
        """Return the loss on the first process of a tensor-parallel group, and zero on the others."""
        return loss if self.mesh.get_local_rank("tensor") == 0 else torch.zeros_like(loss)

    def accumulate_gradients(self, micro_batches: Sequence[Batch]) -> Tensor:
        """See Backend. Gradients are reduced after every micro-batch, so that they stay sharded, or only once."""
        assert isinstance(self.model, FSDPModule)
        of_micro_batch = self.training.micro_batch_size * self.training.sequence_length // self.layout.context
        tokens = len(micro_batches) * of_micro_batch
        sharers = self.context.group if self.context else None
        expert_parallel.set_load_balancing(self.model, self.training.load_balancing_loss, tokens, sharers)
        if self.pipeline:
            return self._count_once(
                self.pipeline.accumulate_gradients(
                    [self._select_local_targets(batch) for batch in micro_batches], tokens
                )
            )
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            if self.strategy.reduces_gradients_once:
                self.model.set_requires_gradient_sync(is_last)
                self.model.set_reshard_after_backward(is_last)
            else:
                self.model.set_requires_all_reduce(is_last)
            loss = self.model(*self._select_local_targets(batch))
            torch.autograd.backward(loss / tokens)
            total += loss.detach()
        return self._count_once(total)

    def update(self, learning_rate: float, accept: AcceptStep) -> Tensor:
        """See Backend. The fused AdamW reads the decision on the device, so that the host does not wait for it."""
        norm = self._clip_gradients()
        set_learning_rate(self.optimizer, learning_rate)
        accepted = accept(norm)
        if isinstance(accepted, Tensor) and self.training.fused_optimizer and self.training.optimizer == "adamw":
            # As PyTorch's GradScaler: kernels that find a one change nothing.
            self.optimizer.found_inf = accepted.logical_not().float()  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.found_inf  # type: ignore[attr-defined]
        elif accepted:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _clip_gradients(self) -> Tensor:
        """Clip the gradients; return the norm before clipping over all parameters and pipeline stages."""
        norm = _total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        if self.pipeline:
            norm = norm.square()
            dist.all_reduce(norm, group=self.stages.get_group())
            norm = norm.sqrt()
        for group in self.optimizer.param_groups:  # expert weights may be on their own mesh
            nn.utils.clip_grads_with_norm_(group["params"], self.training.gradient_clip or math.inf, norm)
        return norm

    @torch.no_grad()
    def norms_by_layer(self) -> dict[str, float]:
        """See Backend. Pipeline stages exchange the norms of their layers. The host waits for the device once."""
        layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            layers.setdefault(layer_name(name), []).append(parameter)
        norms: dict[str, Tensor] = {}
        for layer, members in layers.items():
            gradients = [p.grad for p in members if p.grad is not None]
            for kind, tensors in (("gradient", gradients), ("weight", members)):
                norms[f"{kind}_norm/{layer}"] = _total_norm(tensors)
        known: list[dict[str, float]] = [dict(zip(norms, torch.stack([*norms.values()]).tolist(), strict=True))]
        if self.pipeline:
            own, known = known[0], [{} for _ in range(self.layout.pipeline)]
            dist.all_gather_object(known, own, group=self.stages.get_group())
        return {name: norm for held in known for name, norm in held.items()}

    @torch.no_grad()
    def token_losses(self, batch: Batch) -> Tensor:
        own = self._select_local_targets(batch)
        loss_BT = self._count_once(self.pipeline.token_losses(own) if self.pipeline else self._losses_by_layer(own))
        if self.context is None:
            return loss_BT
        whole_BT = loss_BT.new_zeros(batch.target_BT.shape)
        whole_BT[:, self.context.positions(whole_BT.shape[1], whole_BT.device)] = loss_BT
        return whole_BT

    def _losses_by_layer(self, batch: Batch) -> Tensor:
        """Return the loss of every token, (B, T), keeping the weights of a layer until all rows have passed it."""
        if not self.strategy.reshards_after_forward:
            losses_BT: Tensor = self.model(*batch, after_layer=lambda _: None)
            return losses_BT
        sharded = [module for module in self.model.blocks.modules() if isinstance(module, FSDPModule)]

        def reshard(layer: nn.Module) -> None:
            for module in layer.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

        for module in sharded:
            module.set_reshard_after_forward(False, recurse=False)
        losses_BT = self.model(*batch, after_layer=reshard)
        for module in sharded:
            module.set_reshard_after_forward(True, recurse=False)
        return losses_BT

    def state_shards(self) -> list[TensorShard]:
        shards: list[TensorShard] = []
        for name, parameter in self.parameters.items():
            shards += list_local_shards(f"model.{name}", parameter)
            state = self.optimizer.state[parameter]
            for moment in (one for one in MOMENTS if one in state):
                shards += list_local_shards(f"{moment}.{name}", state[moment])
        return shards

    def optimizer_step_count(self) -> int:
        return int(next(iter(self.optimizer.state.values()))["step"])
