"""DeepSpeed's ZeRO (Rajbhandari et al. 2020) of Transformers' Llama, from the same weights as the native model.

Strategies: zero0 keeps everything in every process, zero1 shards the optimizer, zero2 gradients as well, zero3 the
parameters as well. Every process holds the whole model in its memory while it starts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.model import huggingface
from pipeline.pretrain.backend import Batch, adamw, token_loss_sum, token_losses
from pipeline.pretrain.checkpoint import MOMENTS, Start
from pipeline.pretrain.settings import SegmentSettings

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")

import deepspeed
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from transformers import LlamaConfig, LlamaForCausalLM


class DeepSpeedBackend:
    """`pipeline.pretrain.backend.Backend` with ZeRO."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, start: Start, device: torch.device) -> None:
        self.training, self.device = settings.training, device
        training = settings.training
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Processes on a CPU talk through gloo: DeepSpeed's own shared memory needs a compiler and outlives a kill.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.stage = int(training.strategy.removeprefix("zero"))
        self.plain = self.stage == 0 and training.precision == "fp32"
        shape = huggingface.configuration(settings.architecture, vocabulary_size, training.sequence_length)
        model: nn.Module = LlamaForCausalLM(LlamaConfig.from_dict({**shape, "use_cache": False}))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start.weight(huggingface.own_name(name)))
        deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
        accumulation = training.batch_size // dist.get_world_size() // training.micro_batch_size
        config: dict[str, Any] = {
            "train_batch_size": training.batch_size,
            "train_micro_batch_size_per_gpu": training.micro_batch_size,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 0.0 if self.plain else training.gradient_clip,
            "zero_optimization": {"stage": self.stage},
            "bf16": {"enabled": training.precision == "bf16"},
            "data_types": {"grad_accum_dtype": "fp32"},
            "steps_per_print": 2**62,
        }
        optimizer = adamw(model.parameters(), training, fused=False)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self.base: torch.optim.Optimizer = optimizer if self.plain else self.engine.optimizer.optimizer
        self.parameters = {huggingface.own_name(n): p for n, p in self.engine.module.named_parameters()}
        self._load(start)

    def _flat(self) -> list[Tensor]:
        """Return the tensors that the optimizer steps on: this process's parts of flattened parameters."""
        for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
            if hasattr(self.engine.optimizer, name):
                return list(getattr(self.engine.optimizer, name))
        return list(self.parameters.values())

    @torch.no_grad()
    def _load(self, start: Start) -> None:
        """Put float32 weights, which the engine may have rounded, and the optimizer's state into their parts.

        It is made here even for the first step: the engine would link it to the first group of parameters only.
        """
        for flat in self._flat():
            moments = {moment: torch.zeros_like(flat) for moment in MOMENTS}
            self.base.state[flat] = {"step": torch.tensor(float(start.step)), **moments}
        if not self.plain and self.stage < 3:
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()
        for name, parameter in self.parameters.items():
            self._set(parameter, start.weight(name), None)
            for moment in MOMENTS if start.step else ():
                self._set(parameter, start.moment(moment, name), moment)

    def _set(self, parameter: Any, value: Tensor, moment: str | None) -> None:
        value = value.to(self.device)
        if self.plain:
            (self.base.state[parameter][moment] if moment else parameter).copy_(value)
        elif self.stage == 3:
            # The function for the full value fails where it does not divide by the processes: cut it here.
            size = parameter.ds_tensor.ds_numel
            padded = F.pad(value.flatten(), (0, size * dist.get_world_size() - value.numel()))
            part = padded.narrow(0, size * dist.get_rank(), size)
            if moment:
                safe_set_local_optimizer_state(parameter, part, moment)
            else:
                safe_set_local_fp32_param(parameter, part)
        elif moment:
            safe_set_full_optimizer_state(parameter, value, moment)
        else:
            safe_set_full_fp32_param(parameter, value)

    def _get(self, parameter: nn.Parameter, moment: str | None) -> Tensor:
        if self.plain:
            value = self.base.state[parameter][moment] if moment else parameter
        else:
            get = safe_get_full_optimizer_state if moment else safe_get_full_fp32_param
            value = get(parameter, moment) if moment else get(parameter)
        full: Tensor = value.detach().float().cpu()
        return full

    def accumulate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """See Backend. The engine divides by the number of micro-batches and averages over processes."""
        total = torch.zeros((), device=self.device)
        for number, (input_BT, target_BT) in enumerate(micro_batches, start=1):
            loss = token_loss_sum(self.engine(input_ids=input_BT).logits, target_BT)
            self.engine.backward(loss / target_BT.numel())
            if number < len(micro_batches):
                self.engine.step()
            total += loss.detach()
        return total

    def update(self, learning_rate: float) -> float:
        """See Backend."""
        for group in self.base.param_groups:
            group["lr"] = learning_rate
        if self.plain:
            limit = self.training.gradient_clip or float("inf")
            norm = nn.utils.clip_grad_norm_(self.parameters.values(), limit)
            self.engine.step()
            return float(norm)
        self.engine.step()
        return float(self.engine.get_global_grad_norm())

    @torch.no_grad()
    def loss_sum(self, batch: Batch) -> Tensor:
        """See Backend."""
        return token_loss_sum(self.engine(input_ids=batch[0]).logits, batch[1])

    @torch.no_grad()
    def token_losses(self, batch: Batch) -> Tensor | None:
        """See Backend."""
        return token_losses(lambda input_BT: self.engine(input_ids=input_BT).logits, batch)

    def weights(self) -> dict[str, Tensor]:
        """See Backend."""
        full = {name: self._get(parameter, None) for name, parameter in self.parameters.items()}
        return full if dist.get_rank() == 0 else {}

    def moments(self) -> dict[str, Tensor]:
        """See Backend."""
        full = {f"{m}.{name}": self._get(p, m) for name, p in self.parameters.items() for m in MOMENTS}
        return full if dist.get_rank() == 0 else {}
