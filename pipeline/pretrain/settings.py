"""What a model is, how it is trained, and what the steps of its training are told."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.settings import Pretrained, Settings, optional_later_field
from pipeline.core.training_steps import BatchSchedule, RampStage
from pipeline.model.settings import Architecture
from pipeline.plan.strategies import STRATEGIES, Backend, StrategyName, list_backend_strategies
from pipeline.tokens.settings import Sampling

HOW_NUMBERS_ARE_COMPUTED = frozenset(
    (
        *("backend", "strategy", "mesh", "micro_batch_size", "fused_optimizer", "threads", "compile", "cuda_graphs"),
        *("recomputation", "tiled_feed_forward", "async_tensor_parallel", "flash_attention", "peak_flops_per_second"),
        "energy_policy",
        "deterministic",
        *("checkpoint_every", "keep_checkpoints", "keep_every", "validation_every", "validation_tokens", "norms_every"),
    )
)
"""Keys of a training that say how its numbers are computed and looked at, not which: it goes on under others."""


class Stability(Settings):
    """What a training does when a batch, a process or a disk is bad."""

    bad_step: Literal["skip", "rewind", "fail"] = Field(
        default="skip",
        description="where loss or gradient is not finite or a spike: leave the batch out; go back to the last regular "
        "checkpoint and leave out all batches from there; or fail",
    )
    skips_in_a_row: int = Field(default=10, ge=1, description="more bad batches for one step, or rewinds, fail")
    window: int = Field(default=128, ge=8, description="steps that a spike is told from; before, there are none")
    loss_deviations: float = Field(
        default=20, ge=0, description="a spike is above the median by so many median absolute deviations; 0: none"
    )
    gradient_norm_deviations: float = Field(default=100, ge=0, description="likewise; clipped norms do little harm")
    restarts: int = Field(default=3, ge=0, description="starts in a row, after a process died, without progress")
    hang_seconds: float = Field(
        default=1800, gt=0, description="without progress in which a process counts as hung; 4 times that at the start"
    )


class Mesh(Settings):
    """How the processes share one model, besides sharing the data; the rest of the processes is data parallel."""

    tensor: int = Field(default=1, ge=1, description="processes that split every matrix, and the sequence in between")
    pipeline: int = Field(default=1, ge=1, description="processes that the layers are split over")
    interleaving: int = optional_later_field(
        1, ge=1, description="stages of each pipeline process, every `pipeline`th one; more wait less and hold more"
    )
    context: int = Field(
        default=1, ge=1, description="processes that split one sequence, its attention by heads and then by queries"
    )
    expert: int = optional_later_field(
        1, ge=1, description="processes, of those that share the state, that divide the experts of each layer"
    )
    shard: int | None = Field(
        default=None,
        ge=1,
        description="processes that hold one copy of the state in a hybrid strategy; default: a node",
    )


class StartingMilestone(Settings):
    """A milestone of another model of the run."""

    model: str = Field(description="the other model")
    step: int = Field(ge=1, description="the training step of its milestone")


class Training(Settings):
    """How a model is trained; batches are global, so the same at any number of processes."""

    backend: Backend = Field(default="fsdp", description="which library shards the training")
    strategy: StrategyName = Field(default="full_shard", description="which part of the state each process holds")
    mesh: Mesh = Mesh()
    sequence_length: int = Field(ge=2, description="tokens in one sequence")
    batch_size: int = Field(ge=1, description="sequences in one step, over all processes")
    ramp: list[RampStage] = optional_later_field(
        [], description="smaller batches or shorter sequences at first, stage by stage"
    )
    micro_batch_size: int = Field(ge=1, description="sequences that one process puts through the model at once")
    sampling: Sampling = Sampling()
    start: StartingMilestone | None = optional_later_field(
        None, description="the milestone that this training goes on from, such as {model: base, step: 4000}: a branch"
    )
    steps: int = Field(ge=1, description="the last one; those of `start` count")
    milestone_every: int | None = Field(default=None, ge=1, description="steps between milestones; default: one, last")
    learning_rate: float = Field(gt=0, description="the peak learning rate")
    minimum_learning_rate_fraction: float = Field(
        default=0.1, ge=0, le=1, description="share of the peak at the last step"
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps in which the learning rate rises linearly")
    schedule: Literal["cosine", "wsd"] = Field(
        default="cosine", description="cosine decay, or constant with a decay at the end (warmup-stable-decay)"
    )
    decay_fraction: float = Field(default=0.2, gt=0, le=1, description="share of the steps in which wsd decays")
    optimizer: Literal["adamw", "muon"] = optional_later_field(
        "adamw", description="muon: that of the matrices of the blocks, with adamw for all else"
    )
    weight_decay: float = Field(default=0.1, ge=0, description="of matrices; norms are not decayed")
    decay_embedding: bool = optional_later_field(
        True,
        description="whether the table of embeddings is decayed as the other matrices are; a tied output is that table",
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the second moment")
    epsilon: float = Field(default=1e-8, gt=0, description="added to AdamW's denominator")
    gradient_clip: float = Field(default=1.0, ge=0, description="largest global norm of the gradient; 0: no limit")
    z_loss: float = optional_later_field(
        0.0,
        ge=0,
        description="weight of the squared logarithm of the softmax's sum in what is minimised, not in what is told",
    )
    load_balancing_loss: float = optional_later_field(
        0.0,
        ge=0,
        description="weight of the loss that has experts get equally many tokens, in what is minimised, not in what "
        "is told",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="of the computation; the optimizer's weights are fp32"
    )
    gradient_reduction: Literal["fp32", "bf16"] = Field(
        default="fp32", description="in which gradients are summed over processes with precision bf16"
    )
    fused_optimizer: bool = Field(default=True, description="one kernel updates all parameters")
    validation_every: int = Field(default=0, ge=0, description="steps between validations; 0: none")
    validation_tokens: int | None = Field(
        default=None,
        ge=1,
        description="held-out tokens of one validation, of each source and language in their shares; default: all",
    )
    norms_every: int = optional_later_field(
        0, ge=0, description="steps between norms of each layer's gradients and weights in the metrics; 0: none"
    )
    checkpoint_every: int = Field(default=500, ge=0, description="steps between recovery checkpoints; 0: none")
    keep_checkpoints: int = Field(default=2, ge=1, description="newest recovery checkpoints that are kept")
    keep_every: int | None = Field(default=None, ge=1, description="recovery checkpoints of every so many steps stay")
    threads: int = Field(default=1, ge=1, description="threads of one process on a CPU")
    compile: bool = Field(default=False, description="compile each block")
    cuda_graphs: bool = Field(default=False, description="replay each block's kernels as one; needs compile and a GPU")
    recomputation: Literal["none", "selective", "full"] = Field(
        default="none", description="what of a block is computed again for its gradient instead of kept"
    )
    tiled_feed_forward: int = Field(default=1, ge=1, description="parts of the sequence in the feed-forward block")
    float8: bool = Field(default=False, description="matrix products of the blocks in 8 bits; needs torchao and Hopper")
    flash_attention: bool = optional_later_field(
        True,
        description="a kernel of attention that keeps no scores; false, to compare: all scores of a block in memory",
    )
    deterministic: bool = optional_later_field(
        True, description="no kernels but those that give the same bits every time; on a GPU that is slower"
    )
    async_tensor_parallel: bool = Field(
        default=False, description="overlap mesh.tensor's communication with its matrix products; compile, NVIDIA GPUs"
    )
    peak_flops_per_second: float | None = Field(default=None, gt=0, description="of one device; known for common GPUs")
    energy_policy: str | None = optional_later_field(
        None, description="one of the platform's `energy_policies`: how fast its devices run, and on how much power"
    )

    stability: Stability = Field(default_factory=Stability)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        strategy = STRATEGIES[self.strategy]
        if strategy.backend != self.backend:
            choices = ", ".join(list_backend_strategies(self.backend))
            raise ValueError(f"strategy {self.strategy} is none of {self.backend}'s: choose one of {choices}")
        for key, value, fix in strategy.conflicts:
            if getattr(self, key) == value:
                raise ValueError(f"strategy {self.strategy} is not available with {key} {value}: {fix}")
        split = [f"mesh.{name} {n}" for name, n in self.mesh.model_dump(exclude={"shard"}).items() if n > 1]
        if split and self.backend == "deepspeed":
            raise ValueError(f"{split[0]} needs backend fsdp: deepspeed is data parallel only; set it to 1")
        if self.mesh.interleaving > 1 and self.mesh.pipeline == 1:
            raise ValueError(
                f"mesh.interleaving {self.mesh.interleaving} divides the processes of a pipeline: set it to 1 or "
                "mesh.pipeline above 1"
            )
        if self.mesh.shard is not None and not strategy.is_hybrid:
            raise ValueError(
                f"mesh.shard {self.mesh.shard} is for the hybrid strategies, not {self.strategy}: remove it"
            )
        if self.async_tensor_parallel and not (self.compile and self.mesh.tensor > 1):
            raise ValueError("async_tensor_parallel needs compile and mesh.tensor above 1: set it to false")
        if self.cuda_graphs:
            self._check_graphs(split)
        if not self.flash_attention:
            self._check_scores()
        for size in self.batches.batch_sizes:
            if size % self.micro_batch_size:
                wanted = f"micro_batch_size {self.micro_batch_size}"
                raise ValueError(f"batch_size {size} is not divisible by {wanted}: change one of them")
        if self.steps <= self.first_step:
            raise ValueError(f"steps {self.steps} is not above start.step {self.first_step}: those before it count")
        self.sampling.mixtures(self.steps)
        self.batches.check(self.steps)
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is more than steps {self.steps}: shorten the warm-up")
        for key in ("compile", "float8"):
            if self.backend == "deepspeed" and getattr(self, key):
                raise ValueError(f"{key} is not available with backend deepspeed: set {key} to false")
        if self.optimizer == "muon" and self.backend == "deepspeed":
            raise ValueError(
                "optimizer muon needs whole matrices, which deepspeed does not gather: set backend to fsdp"
            )
        if self.stability.bad_step == "rewind" and not self.checkpoint_every:
            raise ValueError("stability.bad_step rewind goes back to a checkpoint: set checkpoint_every above 0")
        return self

    def _check_scores(self) -> None:
        if self.sampling.mask_documents:
            raise ValueError("flash_attention false attends to whole rows: set sampling.mask_documents to false")
        if self.recomputation == "selective":
            raise ValueError("recomputation selective keeps what a kernel gives: set flash_attention to true")

    def _check_graphs(self, split: list[str]) -> None:
        """Check that what a block computes can be recorded: no collectives, the same sizes and one batch at a time."""
        if not self.compile:
            raise ValueError("cuda_graphs records compiled blocks: set compile to true or cuda_graphs to false")
        if split:
            raise ValueError(f"cuda_graphs cannot record blocks with {split[0]}: set it to 1 or cuda_graphs to false")
        if self.sampling.mask_documents:
            raise ValueError(
                "cuda_graphs needs the same sizes at every step, and sampling.mask_documents has as many documents as "
                "there are: set one of them to false"
            )
        if len({*self.batches.sequence_lengths}) > 1:
            raise ValueError("cuda_graphs needs the same sizes at every step: set it to false, or no length in ramp")

    def switches(self) -> dict[str, Any]:
        """Return what `pipeline.model.execution_options.set_execution_options` takes."""
        keys = {"recomputation", "compile", "cuda_graphs", "float8", "tiled_feed_forward", "flash_attention"}
        return {key: getattr(self, key) for key in keys}

    @property
    def batches(self) -> BatchSchedule:
        """Return the sizes of the batches by data step."""
        return BatchSchedule(self.sequence_length, self.batch_size, self.ramp)

    @property
    def first_step(self) -> int:
        """Return how many steps were done before this training."""
        return self.start.step if self.start else 0

    def milestones(self) -> list[int]:
        """Return the steps after which a milestone is kept, in order; the last one is the last step."""
        every = self.milestone_every or self.steps
        return [*(step for step in range(every, self.steps, every) if step > self.first_step), self.steps]

    def segment_start(self, step: int) -> int:
        """Return the step from which the segment up to a milestone goes on."""
        return max((one for one in self.milestones() if one < step), default=self.first_step)


class Model(Settings):
    """One model of a run."""

    tokens: str = Field(default="main", description="the token set that the model is trained on")
    seed: int | None = Field(
        default=None, ge=0, description="of its first weights and the order of its sequences; default: the run's"
    )
    architecture: Architecture
    pretrained: Pretrained | None = optional_later_field(
        None, description="the model that the training begins with, instead of weights that are drawn"
    )
    training: Training

    @model_validator(mode="after")
    def _together(self) -> Self:
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
    index_sha256: str | None = optional_later_field(
        None, description="of the token index that the segments before it read, where these stay whatever is edited"
    )

    energy_options: str | None = optional_later_field(
        None, description="of sbatch, which the platform's energy policy stands for"
    )

    def operation(self) -> dict[str, Any]:
        """Return what changes no weight: how often a training looks and keeps, how long it waits, what it is for."""
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
    first_step: int = optional_later_field(0, ge=0, description="steps done before")
