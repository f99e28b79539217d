"""Train the same model as the native backend with DeepSpeed's ZeRO (Rajbhandari et al. 2020).

Stage 1 shards the optimizer's state, stage 2 also the gradients, stage 3 also the parameters. Offloaded state is in
main memory, where the optimizer steps, or in memory-mapped files on a disk.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.core.errors import InputError
from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.decoder import Decoder
from pipeline.model.loss import token_cross_entropies
from pipeline.model.networks import get_network
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.checkpoints.checkpoint import MOMENTS, SegmentStart
from pipeline.pretrain.checkpoints.shard_layout import TensorShard, list_flat_shards
from pipeline.pretrain.parallel.backend import AcceptStep, Batch, layer_name
from pipeline.pretrain.parallel.expert_parallel import set_load_balancing
from pipeline.pretrain.parallel.optimizer import make_optimizer, set_learning_rate
from pipeline.pretrain.settings import SegmentSettings

# The process group exists already, on GPUs or on CPUs.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if dist.is_initialized() and dist.get_backend() != "gloo" else "cpu")


BUCKET_ELEMENTS = 200_000_000
"""Elements of a gradient bucket. A device holds two buckets; with DeepSpeed's default of 500 million elements they
take 2 GB in bf16 and 4 GB in float32."""

DISK_STEP_ELEMENTS = 100_000_000
"""Elements of state on a disk in one optimizer step, with 16 bytes of memory each."""


class DeepSpeedBackend:
    """`pipeline.pretrain.parallel.backend.Backend` with ZeRO.

    Args:
        disk: a folder on a disk of the node, for a strategy that keeps the optimizer's state there.
    """

    def __init__(
        self,
        settings: SegmentSettings,
        vocabulary_size: int,
        start: SegmentStart,
        device: torch.device,
        disk: Path | None = None,
    ) -> None:
        self.training, self.device = settings.training, device
        training = settings.training
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Use gloo on CPUs: DeepSpeed's shared memory needs a compiler and survives a kill.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.data_rank, self.data_size = dist.get_rank(), dist.get_world_size()
        self.strategy = STRATEGIES[training.strategy]
        self.stage = self.strategy.zero_stage
        self.disk: DiskTensors | None = None
        if self.strategy.optimizer_on_disk:
            assert disk  # a segment without one is refused
            self.disk = DiskTensors(disk)
        self.plain = self.stage == 0 and training.precision == "fp32"
        deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
        accumulation = training.batch_size // dist.get_world_size() // training.micro_batch_size
        config: dict[str, Any] = {
            "train_batch_size": training.batch_size,
            "train_micro_batch_size_per_gpu": training.micro_batch_size,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 0.0 if self.plain else training.gradient_clip,
            "zero_optimization": self._zero_config(
                parameter_count(settings.architecture, vocabulary_size), settings.architecture.width
            ),
            "zero_force_ds_cpu_optimizer": False,  # torch's kernel for CPUs needs no compiler
            "communication_data_type": training.gradient_reduction if training.precision == "bf16" else None,
            "bf16": {"enabled": training.precision == "bf16"},
            "data_types": {"grad_accum_dtype": "fp32"},
            "steps_per_print": 2**62,
        }
        with self._construction_context(config):
            model = get_network(settings.architecture.name).model(settings.architecture, vocabulary_size)
        model.output.z_loss = training.z_loss
        set_execution_options(model, device, **training.execution_options())
        optimizer = make_optimizer(dict(model.named_parameters()), settings, fused=training.fused_optimizer)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self.base: torch.optim.Optimizer = optimizer if self.plain else self.engine.optimizer.optimizer
        self.model: Decoder = self.engine.module
        self.parameters = dict(self.model.named_parameters())
        self._load(start)

    def _zero_config(self, parameters: int, width: int) -> dict[str, Any]:
        place = {"device": "cpu", "pin_memory": self.device.type == "cuda"}
        zero: dict[str, Any] = {
            "stage": self.stage,
            "reduce_bucket_size": min(parameters, BUCKET_ELEMENTS),  # none larger than the model
            # Gradients are copied into buckets as they appear, so that memory stays in one piece (the default), and
            # while one is reduced the backward pass fills another. A CPU takes the same way, one after the other.
            "overlap_comm": self.stage > 0,
            # Only norms are kept whole: by default all matrices of a small model would be.
            "stage3_param_persistence_threshold": width,
        }
        if self.strategy.offloads_optimizer:
            zero["offload_optimizer"] = place
        if self.disk:
            zero["sub_group_size"] = DISK_STEP_ELEMENTS
        if self.strategy.offloads_parameters:
            zero["offload_param"] = place
        return zero

    def _construction_context(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return the context for making parameters on the device, already sharded under stage 3."""
        if self.stage == 3:
            made: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=config)
            return made
        dtype = torch.bfloat16 if self.training.precision == "bf16" else torch.float32
        return deepspeed.OnDevice(dtype=dtype, device=self.device)  # type: ignore[no-any-return]

    def _flat_parameters(self) -> list[Tensor]:
        """Return the tensors that the optimizer updates: this process's parts of flattened parameters."""
        for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
            if hasattr(self.engine.optimizer, name):
                return list(getattr(self.engine.optimizer, name))
        return list(self.parameters.values())

    @torch.no_grad()
    def _load(self, start: SegmentStart) -> None:
        """Fill this process's parts of weights and optimizer state, and their bf16 copies."""
        for flat in self._flat_parameters():
            if self.disk:
                flat.data = self.disk.zeros(flat.numel()).copy_(flat)
            moments = {m: self.disk.zeros(flat.numel()) if self.disk else torch.zeros_like(flat) for m in MOMENTS}
            self.base.state[flat] = {"step": torch.tensor(float(start.optimizer_step), device=flat.device), **moments}
        if not self.plain and self.stage < 3:
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()
        start.load(self.state_shards())
        if self.stage == 3:
            for group in range(len(self._flat_parameters())):
                self.engine.optimizer._reassign_or_swap_out_partitioned_parameters(group)
        elif not self.plain:
            self.engine.optimizer.update_lp_params()
        if self.disk:
            self.disk.release_pages()

    def _local_part(self, parameter: Any, moment: str | None) -> tuple[Sequence[int], int, Tensor] | None:
        """Return the shape of a parameter, the offset of this process's flat part, and the part.

        Stages 1 and 2, and 0 in bf16, shard the parameters of a group as one flat row; a parameter may be in the parts
        of several processes or not in this one's. Stage 3 shards each parameter into equal parts, the last padded.
        """
        if self.plain:
            state = self.base.state[parameter][moment] if moment else parameter
            return parameter.shape, 0, state.flatten()
        if self.stage == 3:
            part, _ = self.engine.optimizer._get_fp32_opt_state_partition(parameter, False, moment)
            return parameter.ds_shape, parameter.ds_tensor.ds_numel * dist.get_rank(), part
        if parameter._hp_mapping is None:
            return None
        part = parameter._hp_mapping.get_hp_fragment(moment)
        return parameter.shape, parameter._hp_mapping.lp_fragment_address.start, part

    def state_shards(self) -> list[TensorShard]:
        shards: list[TensorShard] = []
        for name, parameter in self.parameters.items():
            for kind, moment in (("model", None), *((moment, moment) for moment in MOMENTS)):
                if held := self._local_part(parameter, moment):
                    shards += list_flat_shards(f"{kind}.{name}", *held)
        return shards

    def optimizer_step_count(self) -> int:
        return int(self.base.state[self._flat_parameters()[0]]["step"])

    def accumulate_gradients(self, micro_batches: Sequence[Batch]) -> Tensor:
        """See Backend. The engine divides by the number of micro-batches and averages over processes."""
        if len(micro_batches) != self.engine.gradient_accumulation_steps():  # a ramp
            of_all = len(micro_batches) * self.training.micro_batch_size * self.data_size
            self.engine.set_train_batch_size(of_all)
        tokens = sum(batch.target_BT.numel() for batch in micro_batches)
        set_load_balancing(self.model, self.training.load_balancing_loss, tokens)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(micro_batches, start=1):
            loss = self.engine(*batch)
            self.engine.backward(loss / batch.target_BT.numel())
            if number < len(micro_batches):
                self.engine.step()
            total += loss.detach()
        return total

    def update(self, learning_rate: float, accept: AcceptStep) -> float:
        """See Backend.

        The engine's step always clips and drops the gradients; its optimizer steps only if accepted. The engine calls
        the optimizer once for each part of the state after it computed the norm, and possibly not for an infinite norm.
        """
        set_learning_rate(self.base, learning_rate)
        limit = self.training.gradient_clip or float("inf")
        norm = float(nn.utils.clip_grad_norm_(self.parameters.values(), limit)) if self.plain else None
        step = self.base.step

        def step_if_accepted(*given: Any) -> Any:
            done = step(*given) if accept(self._gradient_norm() if norm is None else norm) else None
            if self.disk:
                self.disk.release_pages()
            return done

        vars(self.base)["step"] = step_if_accepted
        try:
            self.engine.step()
        finally:
            vars(self.base)["step"] = step
        return self._gradient_norm() if norm is None else norm

    @torch.no_grad()
    def norms_by_layer(self) -> dict[str, float]:
        """See Backend. The engine gathers gradients and float32 weights from all processes."""
        squares: dict[str, float] = {}
        for name, parameter in self.parameters.items():
            weight = parameter if self.plain else deepspeed.utils.safe_get_full_fp32_param(parameter)
            for kind, tensor in (("gradient", deepspeed.utils.safe_get_full_grad(parameter)), ("weight", weight)):
                key = f"{kind}_norm/{layer_name(name)}"
                squares[key] = squares.get(key, 0.0) + float(tensor.norm()) ** 2
        return {key: math.sqrt(square) for key, square in squares.items()}

    def _gradient_norm(self) -> float:
        """Return the engine's gradient norm, where -1 stands for infinite."""
        norm = float(self.engine.optimizer._global_grad_norm)
        return norm if norm >= 0 else float("inf")

    @torch.no_grad()
    def token_losses(self, batch: Batch) -> Tensor:
        """See Backend. Each sequence passes the model alone: stage 3 prefetches in the order of a training step."""
        rows = []
        for number in range(len(batch.input_BT)):
            row = slice(number, number + 1)
            documents = None if batch.documents is None else batch.documents[number]
            logits_BTV = self.engine(batch.input_BT[row], None, documents)
            rows.append(token_cross_entropies(logits_BTV, batch.target_BT[row]))
        return torch.cat(rows)


class DiskTensors:
    """Tensors of one process in memory-mapped files.

    Args:
        folder: the folder of the files; it is created.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mapped: list[mmap.mmap] = []

    def zeros(self, elements: int) -> Tensor:
        """Return float32 zeros in a new file.

        Raises:
            InputError: the disk is too small, which shows here and not at a later write.
        """
        size = elements * torch.float32.itemsize
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._mapped.append(mmap.mmap(file.fileno(), size))
        except OSError as error:
            more = sum(map(len, self._mapped)) + size
            raise InputError(
                f"{self.folder} does not hold the optimizer's state ({error.strerror}, at {more / 1e9:.3g} GB of one "
                "process): name a folder on a larger disk of the node, train on more nodes, or choose another strategy"
            ) from error
        return torch.frombuffer(self._mapped[-1], dtype=torch.float32)

    def release_pages(self) -> None:
        """Let the system free the pages in memory; their content stays on the disk."""
        for mapped in self._mapped:
            mapped.madvise(mmap.MADV_DONTNEED)
