"""Settings of a plan: models, machine, energy. Lengths of training are in steps of global batches."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from pipeline.core.batch_schedule import BatchSchedule, RampStage
from pipeline.core.settings import Settings
from pipeline.model.settings import Architecture
from pipeline.plan.sharding_strategy_definitions import StrategyName

Precision = Literal["fp32", "bf16"]


class _PartialSettings(Settings):
    """The keys of a configuration section that a plan reads; it ignores the others."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


class MeshPlan(_PartialSettings):
    """The devices that share one model, and one copy of its state in a hybrid strategy."""

    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)
    interleaving: int = Field(default=1, ge=1, exclude_if=lambda parts: parts == 1)
    expert: int = Field(default=1, ge=1, exclude_if=lambda devices: devices == 1)
    shard: int | None = Field(default=None, ge=1)


class TrainingPlan(_PartialSettings):
    """The keys of a training that determine its compute and memory."""

    strategy: StrategyName = "full_shard"
    mesh: MeshPlan = MeshPlan()
    precision: Precision = "fp32"
    sequence_length: int = Field(ge=1)
    batch_size: int = Field(ge=1, description="sequences in one step, over all devices")
    ramp: list[RampStage] = Field(default=[], exclude_if=lambda ramp: not ramp)
    micro_batch_size: int = Field(ge=1, description="sequences on one device at once")
    first_step: int = Field(default=0, ge=0, description="steps done before, by another model of the run")
    steps: int = Field(ge=1)
    recomputation: Literal["none", "selective", "full"] = "none"
    optimizer: str = Field(default="adamw", exclude_if=lambda optimizer: optimizer == "adamw")
    gradient_reduction: Precision = "fp32"
    compile: bool = False
    float8: bool = Field(default=False, exclude_if=lambda value: not value)
    async_tensor_parallel: bool = False
    flash_attention: bool = True
    validation_every: int = Field(default=0, ge=0)
    validation_tokens: int | None = None
    checkpoint_every: int = Field(default=500, ge=0)
    milestone_every: int | None = None
    keep_checkpoints: int = Field(default=2, ge=1, exclude_if=lambda number: number == 2)

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Return the sizes of the batches by data step."""
        return BatchSchedule(self.sequence_length, self.batch_size, self.ramp)

    @property
    def own_steps(self) -> int:
        """Return the steps that this training takes itself."""
        return self.steps - self.first_step

    @property
    def milestone_count(self) -> int:
        """Return the number of milestones that this training writes."""
        every = self.milestone_every or self.steps
        return -(-self.steps // every) - self.first_step // every


class ModelPlan(_PartialSettings):
    """One model."""

    architecture: Architecture
    training: TrainingPlan
    vocabulary_size: int = Field(ge=1)
    pretrained: bool = Field(
        default=False, exclude_if=lambda value: not value, description="begins with trained weights"
    )


class AllocationPlan(_PartialSettings):
    """The smallest part of a node that is billed."""

    cpus: int = Field(ge=1)
    gpus: int = Field(default=0, ge=0)


class PartitionPlan(_PartialSettings):
    """The billed resources of a node, and the longest job."""

    cpus: int = Field(ge=1)
    gpus: int = Field(default=0, ge=0)
    minutes: int | None = Field(default=None, ge=1, description="the longest job")
    allocation: AllocationPlan | None = None


class PlatformPlan(_PartialSettings):
    """The machine; the plan leaves out what depends on an unknown figure."""

    name: str = "local"
    devices: int = Field(default=1, ge=1, description="devices of one node")
    nodes: int = Field(default=1, ge=1, description="nodes that train a model")
    peak_flops_per_second: float | None = Field(
        default=None, gt=0, description="of one device, dense, in the precision"
    )
    matrix_flops_per_second: float | None = Field(
        default=None, gt=0, description="measured rate of large matrix products on one device, in bf16"
    )
    attention_flops_per_second: float | None = Field(
        default=None, gt=0, description="of FlashAttention on one device in a training, in bf16"
    )
    memory_bytes_per_second: float | None = Field(default=None, gt=0, description="of one device")
    node_bytes_per_second: float | None = Field(
        default=None, gt=0, description="of one device to others of its node, in one direction"
    )
    network_bytes_per_second: float | None = Field(
        default=None, gt=0, description="of one device's share of its node's adapters, in one direction"
    )
    storage_bytes_per_second: float | None = Field(
        default=None, gt=0, description="write rate of one node to the folder of checkpoints"
    )
    failures_per_device_hour: float | None = Field(default=None, ge=0, description="failures that end a training")
    job_start_seconds: float | None = Field(
        default=None, ge=0, description="from the start of a training's job to its first step"
    )
    job_queue_seconds: float | None = Field(default=None, ge=0, description="wait of a training's job for its nodes")
    device_power_watts: float | None = Field(default=None, gt=0, description="of one device with its share of the node")
    memory_bytes_per_device: int | None = Field(default=None, gt=0)
    model_flops_utilization: float | None = Field(default=None, gt=0, le=1)
    price_euros_per_device_hour: float | None = Field(default=None, ge=0)
    partitions: dict[str, PartitionPlan] = {}

    def count_billed_cores_and_gpus(self, devices: int) -> tuple[int, int] | None:
        """Return the cores and GPUs that are billed for so many devices, in whole allocations; None if none is stated.

        A device has its share of a node's cores or, without GPUs, one core.
        """
        partition = self.partitions.get("gpu") or self.partitions.get("cpu")
        if partition is None or partition.allocation is None:
            return None
        smallest = partition.allocation
        cores = -(-devices * partition.cpus // partition.gpus) if partition.gpus else devices
        number = max(-(-cores // smallest.cpus), -(-devices // smallest.gpus) if smallest.gpus else 0)
        return number * smallest.cpus, number * smallest.gpus


class EnergyPlan(_PartialSettings):
    """Factors from energy to carbon and water."""

    pue: float = Field(default=1.2, ge=1)
    carbon_intensity_grams_per_kwh: float = Field(default=267.622, ge=0)
    water_liters_per_kwh: float | None = Field(default=None, ge=0)


class StepCost(Settings):
    """Work and cost of a step in a calibration run, summed over its jobs with valid outputs."""

    work: float = Field(ge=0, description="in the unit of the step")
    seconds: float = Field(ge=0)
    joules: float = Field(ge=0)
    low_joules: float = Field(ge=0, description="95 % interval of the energy accounting")
    high_joules: float = Field(ge=0)
    refused: str | None = Field(default=None, description="why it cannot be used, in one sentence")


class MeasuredTraining(Settings):
    """A finished training with the measured time of its steps."""

    model: ModelPlan
    processes: int = Field(ge=1)
    step_seconds: float = Field(gt=0, description="median, from the end of one to the end of the next")


class CalibrationRun(Settings):
    """A finished small run: its platform, the source of its joules, the cost of its steps, and its trainings."""

    folder: str
    platform: str
    known: str = Field(description="measured, estimated or stated, with shares")
    steps: dict[str, StepCost]
    trainings: dict[str, MeasuredTraining] = {}


class PlannedWork(Settings):
    """The work of a step of the planned run, or the reason why it is unknown before the run."""

    amount: float | None = Field(ge=0)
    unit: str
    refused: str | None = None


class ForecastPlan(Settings):
    """The inputs of a forecast: finished small runs, and the work of the planned run."""

    runs: list[CalibrationRun]
    work: dict[str, PlannedWork]


class EstimateSettings(Settings):
    """Settings of the step `plan estimate`."""

    models: dict[str, ModelPlan]
    platform: PlatformPlan
    energy: EnergyPlan
    forecast: ForecastPlan | None = Field(
        default=None, description="unset where the configuration names no calibration runs"
    )
    not_run: dict[str, str] = Field(
        default={}, description="cells of experiments that do not fit on the platform, with the reason"
    )
