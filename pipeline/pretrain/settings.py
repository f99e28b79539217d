"""Settings of models and trainings, and of the steps that train them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.batch_schedule import BatchSchedule, RampStage
from pipeline.core.settings import Pretrained, Settings, optional_later_field
from pipeline.model.settings import Architecture
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, Backend, StrategyName, list_backend_strategies
from pipeline.tokens.settings import Sampling

EXECUTION_KEYS = frozenset(
    (
        *("backend", "strategy", "mesh", "micro_batch_size", "fused_optimizer", "threads", "compile"),
        *("recomputation", "tiled_feed_forward", "async_tensor_parallel", "flash_attention", "peak_flops_per_second"),
        "energy_policy",
        "deterministic",
        *("checkpoint_every", "keep_checkpoints", "keep_every", "validation_every", "validation_tokens", "norms_every"),
    )
)
"""Keys of how a training computes and reports, not of what: it can continue under other values."""


class Stability(Settings):
    """The response of a training to bad batches, dead processes and hangs."""

    bad_step: Literal["skip", "rewind", "fail"] = Field(
        default="skip",
        description="response to a loss or gradient that is a spike or not finite: skip the batch; rewind to the last "
        "regular checkpoint and skip all batches from there; or fail",
    )
    skips_in_a_row: int = Field(
        default=10, ge=1, description="limit of bad batches for one step, or of rewinds, before it fails"
    )
    window: int = Field(default=128, ge=8, description="recent steps that define a spike; earlier steps have no spikes")
    loss_deviations: float = Field(
        default=20, ge=0, description="a spike exceeds the median by so many median absolute deviations; 0: off"
    )
    gradient_norm_deviations: float = Field(default=100, ge=0, description="the same for the gradient norm")
    restarts: int = Field(default=3, ge=0, description="restarts in a row without progress after a process died")
    hang_seconds: float = Field(
        default=1800,
        gt=0,
        description="time without progress after which a process counts as hung; 4 times as long at the start",
    )


class Mesh(Settings):
    """The mesh of processes that share one model; the remaining dimension is data parallel."""

    tensor: int = Field(
        default=1,
        ge=1,
        description="tensor-parallel processes, which split every matrix, and the sequence between matrices",
    )
    pipeline: int = Field(default=1, ge=1, description="pipeline-parallel processes, which split the layers")
    interleaving: int = optional_later_field(
        1,
        ge=1,
        description="stages of each pipeline process, every `pipeline`-th one; more need less time and more memory",
    )
    context: int = Field(
        default=1,
        ge=1,
        description="context-parallel processes, which split a sequence, its attention by heads and then by queries",
    )
    expert: int = optional_later_field(
        1,
        ge=1,
        description="expert-parallel processes, of those that share the state, which divide the experts of each layer",
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
    """The training of a model; batches are global and do not depend on the number of processes."""

    backend: Backend = Field(default="fsdp", description="which library shards the training")
    strategy: StrategyName = Field(default="full_shard", description="which part of the state each process holds")
    mesh: Mesh = Mesh()
    sequence_length: int = Field(ge=2, description="tokens in one sequence")
    batch_size: int = Field(ge=1, description="sequences in one step, over all processes")
    ramp: list[RampStage] = optional_later_field(
        [], description="stages of smaller batches or shorter sequences at the start"
    )
    micro_batch_size: int = Field(ge=1, description="sequences in one forward pass of a process")
    sampling: Sampling = Sampling()
    start: StartingMilestone | None = optional_later_field(
        None, description="milestone of another model to continue from, such as {model: base, step: 4000}: a branch"
    )
    steps: int = Field(ge=1, description="last training step; the steps of `start` count")
    milestone_every: int | None = Field(
        default=None, ge=1, description="steps between milestones; default: only the last step"
    )
    learning_rate: float = Field(gt=0, description="the peak learning rate")
    minimum_learning_rate_fraction: float = Field(
        default=0.1, ge=0, le=1, description="share of the peak at the last step"
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps in which the learning rate rises linearly")
    schedule: Literal["cosine", "wsd"] = Field(
        default="cosine", description="cosine decay, or constant with a decay at the end (warmup-stable-decay)"
    )
    decay_fraction: float = Field(
        default=0.2, gt=0, le=1, description="share of the steps in which schedule wsd decays"
    )
    optimizer: Literal["adamw", "muon"] = optional_later_field(
        "adamw", description="muon updates the matrices of the blocks by Muon and all else by AdamW"
    )
    weight_decay: float = Field(default=0.1, ge=0, description="weight decay of matrices; norms have none")
    decay_embedding: bool = optional_later_field(
        True, description="whether the embedding has weight decay like other matrices; a tied output is the embedding"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the second moment")
    epsilon: float = Field(default=1e-8, gt=0, description="added to AdamW's denominator")
    gradient_clip: float = Field(default=1.0, ge=0, description="largest global norm of the gradient; 0: no limit")
    z_loss: float = optional_later_field(
        0.0,
        ge=0,
        description="weight of the squared log of the softmax's sum in the gradients; reported losses exclude it",
    )
    load_balancing_loss: float = optional_later_field(
        0.0,
        ge=0,
        description="weight of the load-balancing loss of experts in the gradients; reported losses exclude it",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="of the computation; the optimizer's weights are fp32"
    )
    gradient_reduction: Literal["fp32", "bf16"] = Field(
        default="fp32", description="precision of gradient reduction over processes with precision bf16"
    )
    fused_optimizer: bool = Field(default=True, description="update all parameters in one kernel")
    validation_every: int = Field(default=0, ge=0, description="steps between validations; 0: none")
    validation_tokens: int | None = Field(
        default=None,
        ge=1,
        description="held-out tokens of one validation, in proportion to sources and languages; default: all",
    )
    norms_every: int = optional_later_field(
        0, ge=0, description="steps between metrics of gradient and weight norms by layer; 0: none"
    )
    checkpoint_every: int = Field(default=500, ge=0, description="steps between recovery checkpoints; 0: none")
    keep_checkpoints: int = Field(default=2, ge=1, description="number of newest recovery checkpoints to keep")
    keep_every: int | None = Field(
        default=None, ge=1, description="keep also the recovery checkpoint of every so many steps"
    )
    threads: int = Field(default=1, ge=1, description="threads of one process on a CPU")
    compile: bool = Field(default=False, description="compile each block")
    recomputation: Literal["none", "selective", "full"] = Field(
        default="none", description="activations of a block to recompute in the backward pass"
    )
    tiled_feed_forward: int = Field(
        default=1, ge=1, description="parts into which the feed-forward block splits the sequence to save memory"
    )
    float8: bool = Field(
        default=False,
        description="matrix products of the blocks in 8 bits; needs compile, precision bf16, torchao and Hopper",
    )
    flash_attention: bool = optional_later_field(
        True, description="attention that keeps no scores; false keeps all scores of a block, for comparisons"
    )
    deterministic: bool = optional_later_field(True, description="use deterministic kernels only; slower on a GPU")
    async_tensor_parallel: bool = Field(
        default=False,
        description="overlap tensor-parallel communication with matrix products; needs compile and NVIDIA GPUs",
    )
    peak_flops_per_second: float | None = Field(
        default=None, gt=0, description="peak of one device, for the utilization; known for common GPUs"
    )
    energy_policy: str | None = optional_later_field(
        None, description="one of the platform's `energy_policies`: clock rates and power limits of its devices"
    )

    stability: Stability = Field(default_factory=Stability)

    @model_validator(mode="before")
    @classmethod
    def _refuse_cuda_graphs(cls, content: Any) -> Any:
        """Refuse the former key `cuda_graphs`; records of earlier versions have it with false."""
        if not isinstance(content, dict) or "cuda_graphs" not in content:
            return content
        if content["cuda_graphs"]:
            raise ValueError(
                "cuda_graphs would record each block again in each step, because its gathered weights have other "
                "addresses: remove it"
            )
        return {key: value for key, value in content.items() if key != "cuda_graphs"}

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        strategy = STRATEGIES[self.strategy]
        if strategy.backend != self.backend:
            choices = ", ".join(list_backend_strategies(self.backend))
            raise ValueError(
                f"strategy {self.strategy} is not available with backend {self.backend}: choose one of {choices}"
            )
        for key, value, fix in strategy.conflicts:
            if getattr(self, key) == value:
                raise ValueError(f"strategy {self.strategy} is not available with {key} {value}: {fix}")
        split = [f"mesh.{name} {n}" for name, n in self.mesh.model_dump(exclude={"shard"}).items() if n > 1]
        if split and self.backend == "deepspeed":
            raise ValueError(f"{split[0]} needs backend fsdp, because deepspeed is data parallel only: set it to 1")
        if self.mesh.interleaving > 1 and self.mesh.pipeline == 1:
            raise ValueError(
                f"mesh.interleaving {self.mesh.interleaving} needs a pipeline: set it to 1, or mesh.pipeline above 1"
            )
        if self.mesh.shard is not None and not strategy.is_hybrid:
            raise ValueError(f"mesh.shard {self.mesh.shard} needs a hybrid strategy, not {self.strategy}: remove it")
        if self.async_tensor_parallel and not (self.compile and self.mesh.tensor > 1):
            raise ValueError("async_tensor_parallel needs compile and mesh.tensor above 1: set it to false")
        if not self.flash_attention:
            self._check_no_flash_attention()
        for size in self.batch_schedule.batch_sizes:
            if size % self.micro_batch_size:
                wanted = f"micro_batch_size {self.micro_batch_size}"
                raise ValueError(f"batch_size {size} is not divisible by {wanted}: change one of them")
        if self.steps <= self.first_step:
            raise ValueError(
                f"steps {self.steps} must exceed start.step {self.first_step}, because it counts the steps before"
            )
        self.sampling.mixtures(self.steps)
        self.batch_schedule.check(self.steps)
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceeds steps {self.steps}: shorten the warm-up")
        for key in ("compile", "float8"):
            if self.backend == "deepspeed" and getattr(self, key):
                raise ValueError(f"{key} is not available with backend deepspeed: set {key} to false")
        if self.float8 and not (self.compile and self.precision == "bf16"):
            raise ValueError(
                "float8 needs compile, which joins the casts with other kernels, and precision bf16: set compile to "
                "true and precision to bf16, or float8 to false"
            )
        if self.optimizer == "muon" and self.backend == "deepspeed":
            raise ValueError("optimizer muon needs full matrices, which deepspeed does not gather: set backend to fsdp")
        if self.stability.bad_step == "rewind" and not self.checkpoint_every:
            raise ValueError("stability.bad_step rewind needs recovery checkpoints: set checkpoint_every above 0")
        return self

    def _check_no_flash_attention(self) -> None:
        if self.sampling.mask_documents:
            raise ValueError(
                "flash_attention false does not support document masks: set sampling.mask_documents to false"
            )
        if self.recomputation == "selective":
            raise ValueError("recomputation selective keeps the result of flash attention: set flash_attention to true")

    def execution_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `pipeline.model.compilation_and_precision.set_execution_options`."""
        keys = {"recomputation", "compile", "float8", "tiled_feed_forward", "flash_attention"}
        return {key: getattr(self, key) for key in keys}

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Return the sizes of the batches by data step."""
        return BatchSchedule(self.sequence_length, self.batch_size, self.ramp)

    @property
    def first_step(self) -> int:
        """Return the number of steps before this training."""
        return self.start.step if self.start else 0

    def milestone_steps(self) -> list[int]:
        """Return the steps of the milestones in order; the last one is the last step."""
        every = self.milestone_every or self.steps
        return [*(step for step in range(every, self.steps, every) if step > self.first_step), self.steps]

    def segment_start(self, step: int) -> int:
        """Return the step after which the segment up to a milestone starts."""
        return max((one for one in self.milestone_steps() if one < step), default=self.first_step)


class Model(Settings):
    """One model of a run."""

    tokens: str = Field(default="main", description="the token set that the model is trained on")
    seed: int | None = Field(
        default=None, ge=0, description="seed of the initial weights and of the order of sequences; default: the run's"
    )
    architecture: Architecture
    pretrained: Pretrained | None = optional_later_field(
        None, description="pretrained model to start from, instead of random weights"
    )
    training: Training

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.architecture.base_width and self.training.optimizer == "muon":
            raise ValueError(
                "architecture.base_width scales the rates of adamw: remove it or set training.optimizer to adamw"
            )
        if self.architecture.window is not None and not self.training.flash_attention:
            raise ValueError(
                "training.flash_attention false does not support a window: set it to true or remove architecture.window"
            )
        self._check_experts()
        return self

    def _check_experts(self) -> None:
        training, experts = self.training, self.architecture.experts
        if experts is None:
            if training.load_balancing_loss or training.mesh.expert > 1:
                key = "load_balancing_loss" if training.load_balancing_loss else "mesh.expert"
                raise ValueError(f"training.{key} needs an architecture with experts: remove it")
            return
        refused = [
            (training.optimizer == "muon", "optimizer muon does not support stacked matrices: set it to adamw"),
            (training.tiled_feed_forward > 1, "tiled_feed_forward would balance experts within tiles: set it to 1"),
            (training.float8, "float8 does not support experts: set it to false"),
            (
                training.compile and training.mesh.expert > 1,
                "compile does not support mesh.expert: set one of them to its default",
            ),
            (
                training.compile and training.precision == "fp32",
                "compile does not support experts in fp32: set precision to bf16 or compile to false",
            ),
        ]
        for holds, sentence in refused:
            if holds:
                raise ValueError(f"with architecture.experts training.{sentence}")


class AdoptSettings(Settings):
    """The expected shape of a pretrained model and its folder; its license and origin concern no weight."""

    architecture: Architecture
    folder: str


class SegmentSettings(Settings):
    """One segment of training, from one milestone to the next."""

    architecture: Architecture
    training: Training
    seed: int
    first_step: int = Field(ge=0, description="steps done before")
    last_step: int = Field(ge=1)
    records_outcome: bool = Field(
        default=False,
        description="whether running out of memory or diverging is a result, as for a cell, and no failure",
    )
    index_sha256: str | None = optional_later_field(
        None, description="hash of the token index of the finished segments before it, which stay whatever is edited"
    )

    energy_options: str | None = optional_later_field(
        None, description="options of sbatch for the platform's energy policy"
    )

    def non_result_fields(self) -> dict[str, Any]:
        """Return the keys that change no weight: intervals of validations and checkpoints, timeouts, purpose."""
        keys = [
            "validation_every",
            "validation_tokens",
            "norms_every",
            "keep_checkpoints",
            "keep_every",
            "peak_flops_per_second",
        ]
        if self.training.stability.bad_step != "rewind":  # a rewind goes back to a checkpoint
            keys.append("checkpoint_every")
        training = {**dict.fromkeys(keys, True), "stability": {"restarts", "hang_seconds"}}
        return {"training": training, "records_outcome": True, "index_sha256": True, "energy_options": True}


class ExportSettings(Settings):
    """Settings of the export of a trained model."""

    hyperparameters: dict[str, bool | int | float | str] = Field(
        default={}, description="hyperparameters for TensorBoard; they change no weight"
    )
    first_step: int = optional_later_field(0, ge=0, description="steps done before")
