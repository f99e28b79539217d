"""What a model is, and what the steps of its training are told."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from pipeline.core.settings import Pretrained, Settings
from pipeline.model.settings import Architecture
from pipeline.pretrain.training_settings import Training


class Model(Settings):
    """One model of a run."""

    tokens: str = "main"
    seed: int | None = Field(
        default=None, ge=0, description="of its first weights and the order of its sequences; default: the run's"
    )
    architecture: Architecture
    pretrained: Pretrained | None = Field(
        default=None,
        exclude_if=lambda pretrained: pretrained is None,  # models without it stay trained
        description="the model that the training begins with, instead of weights that are drawn",
    )
    training: Training

    @model_validator(mode="after")
    def _together(self) -> Self:
        """Check what of a training the shape rules out."""
        if self.architecture.base_width and self.training.optimizer == "muon":
            raise ValueError(
                "architecture.base_width gives the rates of adamw: remove it or set training.optimizer to adamw"
            )
        if self.architecture.window is not None and not self.training.flash_attention:
            raise ValueError(
                "training.flash_attention false attends to whole rows: set it to true or remove architecture.window"
            )
        self._check_experts()
        return self

    def _check_experts(self) -> None:
        """Check that what a training says of experts, and what it cannot do with them, fit the shape."""
        training, experts = self.training, self.architecture.experts
        if experts is None:
            if training.load_balancing_loss or training.mesh.expert > 1:
                key = "load_balancing_loss" if training.load_balancing_loss else "mesh.expert"
                raise ValueError(f"training.{key} is for experts, which the architecture does not have: remove it")
            return
        refused = [
            (training.optimizer == "muon", "optimizer muon moves no stacks of matrices: set it to adamw"),
            (training.tiled_feed_forward > 1, "tiled_feed_forward would balance experts by tiles: set it to 1"),
            (training.float8, "float8 leaves experts as they are: set it to false"),
            (training.cuda_graphs, "cuda_graphs records blocks of the same sizes at every step: set it to false"),
            (
                training.compile and training.mesh.expert > 1,
                "compile takes no mesh.expert: set one of them to its default",
            ),
            (
                training.compile and training.precision == "fp32",
                "compile has no product of experts in fp32: set precision to bf16 or compile to false",
            ),
        ]
        for holds, sentence in refused:
            if holds:
                raise ValueError(f"with architecture.experts training.{sentence}")


class AdoptSettings(Settings):
    """What a model that was trained elsewhere has to be; whose it is concerns no weight."""

    architecture: Architecture
    folder: str


class SegmentSettings(Settings):
    """One stretch of training, from one milestone to the next."""

    architecture: Architecture
    training: Training
    seed: int
    first_step: int = Field(ge=0, description="steps done before")
    last_step: int = Field(ge=1)
    records_outcome: bool = Field(
        default=False, description="of a cell: that it runs out of memory, or diverges, is its result and no failure"
    )
    index_sha256: str | None = Field(
        default=None,
        exclude_if=lambda index: index is None,
        description="of the token index that the segments before it read, where these stay whatever is edited",
    )

    energy_options: str | None = Field(
        default=None,
        exclude_if=lambda options: options is None,
        description="of sbatch, which the platform's energy policy stands for",
    )

    def operation(self) -> dict[str, Any]:
        """Return how often a training looks and keeps, how long it waits, and what its device could do at best.

        Whether it is a cell neither: one that has reached its end is what an ordinary model would be.
        """
        keys = [
            "validation_every",
            "validation_tokens",
            "norms_every",
            "keep_checkpoints",
            "keep_every",
            "peak_flops_per_second",
        ]
        if self.training.stability.bad_step != "rewind":  # which goes back to a checkpoint
            keys.append("checkpoint_every")
        training = {**dict.fromkeys(keys, True), "stability": {"restarts", "hang_seconds"}}
        return {"training": training, "records_outcome": True, "index_sha256": True, "energy_options": True}


class ExportSettings(Settings):
    """The end of a model's training."""

    hyperparameters: dict[str, bool | int | float | str] = Field(
        default={}, description="by which TensorBoard tells models apart; they change no weight"
    )
    first_step: int = Field(default=0, ge=0, exclude_if=lambda step: step == 0, description="steps done before")
