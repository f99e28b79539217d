"""Pipeline parallelism: each process holds some of the layers; 1F1B, interleaved or not (Narayanan et al. 2021), by
PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.utils.rnn import pad_sequence

from pipeline.model.decoder import Decoder
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.backend import Batch


class _MissingPart(nn.Module):
    """Placeholder of a part of the model that another process has."""


class PipelineStages(Decoder):
    """The layers of a process's stages under their names in the full model; see `make_stages_class_for_model`."""

    def __init__(
        self,
        architecture: Architecture,
        vocabulary_size: int,
        layers: Sequence[range],
        *,
        is_first: bool,
        is_last: bool,
    ) -> None:
        super().__init__(architecture, vocabulary_size)
        self.layers, self.is_first, self.is_last = layers, is_first, is_last
        own = {number for stage in layers for number in stage}
        for number in range(architecture.layers):
            if number not in own:
                self.blocks[number] = _MissingPart()
        if not is_first:
            self.embedding = _MissingPart()  # type: ignore[assignment]
        if not is_last:
            self.norm, self.output = _MissingPart(), _MissingPart()  # type: ignore[assignment]

    def forward(  # type: ignore[override]
        self,
        received: Tensor,
        tokens_BT: Tensor,
        target_BT: Tensor | None = None,
        documents: Tensor | None = None,
        *,
        stage: int = 0,
        by_token: bool = False,
    ) -> Tensor:
        """Return the hidden state after one of these stages, or after the last one the model's result.

        With `by_token` that is the loss of each token, (B, T).
        """
        x_BTD = self.embedding(tokens_BT) if self.is_first and stage == 0 else received
        x_BTD = self.run_layers(self.layers[stage], x_BTD, tokens_BT, documents)
        if not (self.is_last and stage == len(self.layers) - 1):
            return x_BTD
        if by_token:
            assert target_BT is not None
            return self.token_losses(x_BTD, target_BT)
        result: Tensor = self.output(self.norm(x_BTD), target_BT)
        return result


def make_stages_class_for_model(model: type[Decoder]) -> type[PipelineStages]:
    return type(f"{model.__name__}Stages", (PipelineStages, model), {})


class _SingleStage(nn.Module):
    """A stage that hides its FSDP module from PyTorch's schedules, which would keep full gradients."""

    def __init__(self, stages: PipelineStages, number: int, reduces_once: bool) -> None:
        super().__init__()
        self.stages, self.number, self.reduces_once = stages, number, reduces_once

    def forward(self, *received: Tensor, **given: Tensor) -> Tensor:
        x_BTD: Tensor = self.stages(*received, **given, stage=self.number)
        return x_BTD


class _Stage(PipelineStage):
    """A stage that reduces gradients over replicas, or at all, once, with buffers for micro-batches in flight only."""

    def _setup_forward_recv_info(self, *given: Any) -> None:
        super()._setup_forward_recv_info(*given)
        _free_buffers(*self.args_recv_info.values())

    def _setup_backward_recv_info(self, *given: Any) -> None:
        super()._setup_backward_recv_info(*given)
        _free_buffers(*self.grad_recv_info.values())

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._allocate_buffers(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if self.has_backward:
            self._allocate_buffers(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _allocate_buffers(self, infos: tuple[Any, ...]) -> None:
        for info in infos:
            if not info.is_root_arg:
                info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device)

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> None:
        """Run a micro-batch's backward pass and free everything except weight gradients."""
        stages = self.submod.stages
        if isinstance(stages, FSDPModule):
            is_last = bwd_chunk_id + 1 == self.chunks
            if self.submod.reduces_once:
                stages.set_requires_gradient_sync(is_last)
            else:
                stages.set_requires_all_reduce(is_last)
        super().backward_one_chunk(bwd_chunk_id, *given, **named)
        if self.has_backward:
            _free_buffers(self.args_recv_info[bwd_chunk_id], self.grad_recv_info[bwd_chunk_id])


def _free_buffers(*received: tuple[Any, ...]) -> None:
    for infos in received:
        for info in infos:
            info.buffer = None


class Pipeline:
    """Runs the micro-batches of a step through the stages, gathering sharded weights once.

    Schedules are made for a number and a shape of micro-batches, which a ramp changes.

    Args:
        split: the parts into which tensor and context parallelism split a sequence between stages.
        dtype: the precision of messages between stages.
        reduces_once: whether gradients are reduced with the last micro-batch only.
    """

    def __init__(
        self,
        stages: PipelineStages,
        split: int,
        dtype: torch.dtype,
        device: torch.device,
        group: dist.ProcessGroup,
        *,
        reduces_once: bool,
    ) -> None:
        self.reduces_once = reduces_once
        self.stages, self.split, self.dtype, self.device, self.group = stages, split, dtype, device, group
        self._tokens = 0
        # For training and evaluation: key, schedule, stages.
        self._schedules: dict[bool, tuple[tuple[int, ...], Any, list[_Stage]]] = {}
        if isinstance(stages, FSDPModule):
            stages.set_reshard_after_backward(False)

    def _make_schedule(self, micro_batches: int, shape: torch.Size, *, trains: bool) -> tuple[Any, list[_Stage]]:
        """Return the schedule and its stages for so many micro-batches of (B, T) tokens, cached."""
        key = micro_batches, *shape
        if self._schedules.get(trains, (None,))[0] != key:
            loss = self._mean_loss if trains else (lambda losses_BT, _: losses_BT)
            stages = self._make_stages(shape)
            one: Any = Schedule1F1B if trains else ScheduleGPipe
            made = (
                one(stages[0], micro_batches, loss_fn=loss, scale_grads=False)
                if len(stages) == 1
                else ScheduleInterleaved1F1B([*stages], micro_batches, loss_fn=loss, scale_grads=False)
            )
            self._schedules[trains] = key, made, stages
        return self._schedules[trains][1:]

    def _make_stages(self, shape: torch.Size) -> list[_Stage]:
        """Make this process's stages for micro-batches of (B, T) tokens."""
        rank, size, each = dist.get_rank(self.group), dist.get_world_size(self.group), len(self.stages.layers)
        streamed = shape[0], shape[1] // self.split, self.stages.architecture.width
        x_BTD = torch.empty(streamed, dtype=self.dtype, device="meta", requires_grad=True)
        return [
            _Stage(
                _SingleStage(self.stages, number, self.reduces_once),
                rank + number * size,
                size * each,
                self.device,
                input_args=x_BTD,
                output_args=x_BTD,
                group=self.group,
            )
            for number in range(each)
        ]

    def _mean_loss(self, loss: Tensor, _: Tensor) -> Tensor:
        """Return the loss to minimize; schedules pass the model's result and a target."""
        return loss / self._tokens

    def accumulate_gradients(self, micro_batches: Sequence[Batch], tokens: int) -> Tensor:
        """Accumulate the gradients of loss / `tokens`; return the sum of the losses on the last stage."""
        self._tokens = tokens
        target_BT = torch.cat([batch.target_BT for batch in micro_batches])
        schedule, stages = self._make_schedule(len(micro_batches), micro_batches[0].input_BT.shape, trains=True)
        losses = self._run(schedule.step, stages, micro_batches, target_BT=target_BT)
        return torch.stack(losses).sum().detach() * tokens if losses else torch.zeros((), device=self.device)

    def token_losses(self, batch: Batch) -> Tensor:
        """Return the loss of every token, (B, T), without a gradient, on the last stage; each row is a micro-batch."""
        number, length = batch.input_BT.shape
        schedule, stages = self._make_schedule(number, torch.Size((1, length)), trains=False)
        rows = enumerate(zip(torch.split(batch.input_BT, 1), torch.split(batch.target_BT, 1), strict=True))
        batches = [Batch(*tokens, None if batch.documents is None else batch.documents[row]) for row, tokens in rows]
        losses = self._run(schedule.eval, stages, batches, target_BT=batch.target_BT, by_token=True)
        return torch.cat(losses) if losses else torch.zeros(batch.target_BT.shape, device=self.device)

    def _run(
        self, run: Callable[..., object], stages: list[_Stage], micro_batches: Sequence[Batch], **of_last: Any
    ) -> list[Tensor]:
        """Run a schedule over micro-batches; return their losses on the last stage, which gets `of_last`."""
        losses: list[Tensor] = []
        tokens_BT = torch.cat([batch.input_BT for batch in micro_batches])
        target_BT = torch.cat([batch.target_BT for batch in micro_batches])
        documents = [batch.documents for batch in micro_batches if batch.documents is not None]
        end = micro_batches[0].input_BT.numel()  # pad with empty documents
        equal = {"documents": pad_sequence(documents, batch_first=True, padding_value=end)} if documents else {}
        received = (tokens_BT,) if self.stages.is_first else ()
        last = {**of_last, "target": target_BT, "losses": losses} if self.stages.is_last else {}
        run(*received, tokens_BT=tokens_BT, return_outputs=False, **equal, **last)
        for stage in stages:  # free its results, such as logits
            stage.clear_runtime_states()
        for module in self.stages.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return losses
