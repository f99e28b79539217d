"""Pipeline parallelism: each process holds an equal share of the layers; 1F1B (Narayanan et al. 2021) by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from pipeline.model.decoder import Decoder
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.backend import Batch, cross_entropies


class _Elsewhere(nn.Module):
    """Stands for a part of the model that another process has."""

    def forward(self, x_BTD: Tensor, *others: object) -> Tensor:
        """Return the stream as it came."""
        return x_BTD


class _Received(nn.Module):
    """Stands for the embedding in later stages: the stream is what the stage before sent."""

    x_BTD: Tensor | None = None

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the stream that was received for these tokens."""
        x_BTD, self.x_BTD = self.x_BTD, None
        assert x_BTD is not None
        return x_BTD


class Stage(Decoder):
    """The layers of one stage under their names in the whole model; every stage is told the tokens.

    It is one together with the class of the model: `stage_of`.
    """

    def __init__(self, architecture: Architecture, vocabulary_size: int, index: int, stages: int) -> None:
        super().__init__(architecture, vocabulary_size)
        layers = architecture.layers // stages
        for number in range(architecture.layers):
            if number // layers != index:
                self.blocks[number] = _Elsewhere()
        self.is_first, self.is_last = index == 0, index == stages - 1
        if not self.is_first:
            self.embedding = _Received()  # type: ignore[assignment]
        if not self.is_last:
            self.norm, self.output = _Elsewhere(), _Elsewhere()  # type: ignore[assignment]

    def forward(  # type: ignore[override]
        self,
        received: Tensor,
        tokens_BT: Tensor,
        target_BT: Tensor | None = None,
        document_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the stream after these layers; of the last stage the logits, or with targets the sum of their losses.

        The first stage ignores what it received.
        """
        if not self.is_first:
            self.embedding.x_BTD = received
        return super().forward(tokens_BT, target_BT, document_BT)


def stage_of(model: type[Decoder]) -> type[Stage]:
    """Return the class of a stage of such a model."""
    return type(f"{model.__name__}Stage", (Stage, model), {})


class Pipeline:
    """Runs the micro-batches of a step through the stages; their gradient is that of the loss by `tokens`."""

    def __init__(
        self, stage: Stage, micro_batches: int, tokens: int, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        index, stages = dist.get_rank(group), dist.get_world_size(group)
        self.stage, self.tokens, self.device = stage, tokens, device
        made = [PipelineStage(stage, index, stages, device, group=group) for _ in range(2)]
        # In training the last stage computes the loss itself; the schedules want a function of it and a target.
        self.training = Schedule1F1B(made[0], micro_batches, loss_fn=lambda loss, _: loss / tokens, scale_grads=False)
        self.evaluation = ScheduleGPipe(made[1], 1, loss_fn=cross_entropies, scale_grads=False)

    def step(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Add up the gradients of all micro-batches; return the sum of their losses.

        It is zero on all processes but those of the last stage.
        """
        target_BT = torch.cat([batch.target_BT for batch in micro_batches])
        losses = self._run(self.training.step, micro_batches, target_BT=target_BT)
        return torch.stack(losses).sum().detach() * self.tokens if losses else torch.zeros((), device=self.device)

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of every token of a micro-batch likewise, (B, T), without a gradient."""
        losses = self._run(self.evaluation.eval, [batch])
        return losses[0] if losses else torch.zeros(batch.target_BT.shape, device=self.device)

    def _run(self, run: Callable[..., object], micro_batches: Sequence[Batch], **of_last: Tensor) -> list[Tensor]:
        """Let a schedule run over the micro-batches, which it gets joined and cuts again; return their losses.

        Only the last stage has them, and gets what is `of_last`.
        """
        losses: list[Tensor] = []
        tokens_BT = torch.cat([batch.input_BT for batch in micro_batches])
        target_BT = torch.cat([batch.target_BT for batch in micro_batches])
        documents = [batch.document_BT for batch in micro_batches if batch.document_BT is not None]
        limits = {"document_BT": torch.cat(documents)} if documents else {}
        received = (tokens_BT,) if self.stage.is_first else ()
        last = {**of_last, "target": target_BT, "losses": losses} if self.stage.is_last else {}
        run(*received, tokens_BT=tokens_BT, return_outputs=False, **limits, **last)
        return losses
