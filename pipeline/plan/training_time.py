"""Estimate the time of a whole training: steps, validations, starts of jobs, and work lost to failures."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from pipeline.core.batch_schedule import StepRange
from pipeline.model.size_and_cost import active_parameter_count, flops_per_token, parameter_count, training_flops
from pipeline.plan import training_cost_formulas, training_step_operations
from pipeline.plan.settings import ModelPlan, PlatformPlan, TrainingPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.plan.step_time import Machine, StepTime, estimate_step_time

HOW_TO_MEASURE = {
    "peak_flops_per_second": "the device's data sheet has it: dense, in bf16",
    "matrix_flops_per_second": "run polder platform measure in a job on a node",
    "memory_bytes_per_second": "the data sheet has it, or run polder platform measure in a job on a node",
    "node_bytes_per_second": "the data sheet has it (half of the figure in both directions), or run polder platform "
    "measure in a job on a node",
    "network_bytes_per_second": "ibstat or the site's page shows a node's adapters and their rate: divide the sum by "
    "its devices; `polder platform check` measures what two nodes reach",
}
"""The platform figures that a time needs, and how to measure each."""
FORMULAS = {
    "step_seconds": "after a ramp: the sum of the parts below; else model_flops / (steps x devices_used x "
    "peak_flops_per_second x model_flops_utilization)",
    "step_compute_seconds": "each kernel by the slower of its operations / (0.885 matrix_flops_per_second) and its "
    "bytes / (0.525 memory_bytes_per_second), shares fitted on Korthikanti et al. 2022, table 5; attention by its "
    "operations / attention_flops_per_second, or / (0.6 matrix_flops_per_second)",
    "step_recomputation_seconds": "the same, of the recomputed kernels",
    "step_exchange_seconds": "bytes between devices that split matrices, a sequence or experts / (0.78 of the link)",
    "step_data_seconds": "bytes of weights and gradients / (0.78 of the link) and 3.4 us for each hop of a ring inside "
    "a node, 14 us between nodes: whole beyond the computation that overlaps them (Zhao et al. 2023), and 0.55 of the "
    "rest, fitted on 26 trainings by FSDP on H100",
    "step_pipeline_seconds": "(stages - 1) micro-batches, the output on the last stage, messages between stages "
    "(Narayanan et al. 2021)",
    "step_optimizer_seconds": "42 bytes of each parameter / (0.525 memory_bytes_per_second); with muon also "
    "10 m^2 (2 n + m) / (0.885 matrix_flops_per_second) of each matrix, m its shorter and n its longer side, that the "
    "busiest device orthogonalizes, and of all matrices 6 bytes of each element of a device's share, and 2 of its part "
    "from other copies of the state, / (0.78 of the link)",
    "tokens_per_second_per_device": "batch_size x sequence_length / (step_seconds x devices_used)",
    "utilization_share": "model_flops / (steps x step_seconds x devices_used x peak_flops_per_second): MFU",
    "training_seconds": "steps x step_seconds, stage by stage of a ramp",
    "validation_seconds": "validation_tokens of all validations, a third of a training's step_compute_seconds each",
    "training_jobs": "segments x the jobs that one needs, by the partition's minutes",
    "start_seconds": "training_jobs x job_start_seconds",
    "failure_seconds": "training_seconds x devices_used x failures_per_device_hour / 3600 x (half of the time between "
    "checkpoints + job_start_seconds)",
    "seconds": "training_seconds + validation_seconds + start_seconds + failure_seconds, as far as they are known; "
    "training_seconds where the step is not computed from its kernels",
    "queue_seconds": "training_jobs x job_queue_seconds; not in seconds",
    "checkpoint_write_seconds": "12 bytes of each parameter / (nodes x storage_bytes_per_second), during the training",
    "checkpoint_interval_seconds": "sqrt(2 x checkpoint_write_seconds x seconds between failures) (Young 1974, "
    "Daly 2006)",
    "published_least_seconds": "training_flops_6nd / (devices_used x peak_flops_per_second x the largest share of the "
    "peak that a published training of this size reached, 6 N D over all of its hours)",
    "published_most_seconds": "the same with the smallest share",
}
STATE_BYTES = 12  # per parameter of a recovery checkpoint: weights and Adam's moments in fp32
STEP_KEYS = {f"step_{field.name}": field.name for field in dataclasses.fields(StepTime)}


def explain_unknown_step_time(model: ModelPlan, platform: PlatformPlan, devices: int) -> list[str]:
    """Return the reasons why the time of a step cannot be computed, a sentence each; none where it can."""
    needed = ["peak_flops_per_second", "matrix_flops_per_second", "memory_bytes_per_second"]
    needed += ["node_bytes_per_second"] * (devices > 1 and platform.devices > 1)
    needed += ["network_bytes_per_second"] * (devices > platform.devices)
    reasons = [
        f"the platform {platform.name} does not state {key}: {HOW_TO_MEASURE[key]}"
        for key in needed
        if getattr(platform, key) is None
    ]
    if model.training.precision != "bf16":
        reasons.append(f"step times are computed for bf16, not for precision {model.training.precision}")
    if STRATEGIES[model.training.strategy].offloads_optimizer:
        reasons.append(f"the work of strategy {model.training.strategy} in main memory is not modeled")
    return reasons


def estimate_step(model: ModelPlan, platform: PlatformPlan, devices: int, stretch: StepRange | None = None) -> StepTime:
    """Return the time of a step, after a ramp or within one stage of it, of a model without missing figures."""
    machine = Machine(
        platform.matrix_flops_per_second or math.nan,
        platform.memory_bytes_per_second or math.nan,
        platform.node_bytes_per_second or math.inf,
        platform.network_bytes_per_second or math.inf,
        platform.devices,
        platform.attention_flops_per_second,
    )
    mesh = training_step_operations.make_device_mesh(model.training, devices, platform.devices)
    training = _ramp_stage_training(model.training, stretch) if stretch else model.training
    work = training_step_operations.count_step_work(
        model.architecture, model.vocabulary_size, training, mesh, divided=model.training
    )
    return estimate_step_time(work, mesh, machine)


def estimate_training_time(model: ModelPlan, platform: PlatformPlan, devices: int) -> dict[str, Any]:
    """Return the value of each key of `FORMULAS`; None where the platform does not state what it needs.

    Where the time of a step cannot be computed, the platform's utilization gives the time.
    """
    training, figures = model.training, dict[str, Any].fromkeys(FORMULAS)
    peak = platform.peak_flops_per_second
    tokens = training.batch_size * training.sequence_length
    flops = tokens * flops_per_token(model.architecture, model.vocabulary_size, training.sequence_length)
    if peak is None:
        return figures
    least, most = seconds_at_published_utilization(model, devices, peak)
    figures |= {"published_least_seconds": least, "published_most_seconds": most}
    if explain_unknown_step_time(model, platform, devices):
        utilization = platform.model_flops_utilization
        if utilization is not None:
            step = training_cost_formulas.duration_seconds(
                flops, devices=devices, peak_flops_per_second=peak, utilization=utilization
            )
            whole = training_flops(
                model.architecture, model.vocabulary_size, training.batch_schedule, training.first_step, training.steps
            )
            figures |= dict.fromkeys(("training_seconds", "seconds"), step * whole / flops)
            figures |= {"step_seconds": step, "utilization_share": utilization}
            figures["tokens_per_second_per_device"] = tokens / step / devices
        return figures
    parts = estimate_step(model, platform, devices)
    figures |= {key: getattr(parts, name) for key, name in STEP_KEYS.items()}
    figures["step_seconds"] = parts.seconds
    figures["tokens_per_second_per_device"] = tokens / parts.seconds / devices
    figures["utilization_share"] = flops / (devices * peak * parts.seconds)
    figures["training_seconds"] = steps = sum(
        stretch.steps * estimate_step(model, platform, devices, stretch).seconds
        for stretch in training.batch_schedule.step_ranges(training.first_step, training.steps)
    )
    return figures | _estimate_overheads(model, platform, devices, parts, steps)


def _ramp_stage_training(training: TrainingPlan, stretch: StepRange) -> TrainingPlan:
    """Return a training with the batches of one stage of a ramp: shorter sequences, more rows."""
    rows = training.sequence_length // stretch.sequence_length
    changes = {
        "sequence_length": stretch.sequence_length,
        "batch_size": stretch.batch_size * rows,
        "micro_batch_size": training.micro_batch_size * rows,
        "ramp": [],
    }
    return training.model_copy(update=changes)


def _estimate_overheads(
    model: ModelPlan, platform: PlatformPlan, devices: int, step: StepTime, steps: float
) -> dict[str, Any]:
    """Return the time of a training besides its steps, and the total.

    A failure undoes half of the time between two checkpoints. Their best distance is sqrt(2 C M), C the time to write
    one and M the time between failures: Young 1974, Daly 2006, first order.
    """
    training = model.training
    validation = _estimate_validation(model, step)
    segment = min(training.milestone_every or training.own_steps, training.own_steps) * step.seconds
    partition = platform.partitions.get("gpu") or platform.partitions.get("cpu")
    longest = 60 * partition.minutes if partition and partition.minutes else math.inf
    jobs = training.milestone_count * max(math.ceil(segment / longest), 1)
    start, queue = platform.job_start_seconds, platform.job_queue_seconds
    apart = min((training.checkpoint_every or training.own_steps) * step.seconds, segment)
    rate = platform.failures_per_device_hour
    rate = FAILURES_PER_DEVICE_HOUR if rate is None else rate
    between = 3600 / (rate * devices) if rate else math.inf
    failures = steps / between * (apart / 2 + (start or 0))
    write = None
    if platform.storage_bytes_per_second is not None:
        nodes = -(-devices // platform.devices)
        state = STATE_BYTES * parameter_count(model.architecture, model.vocabulary_size)
        write = state / (nodes * platform.storage_bytes_per_second)
    return {
        "validation_seconds": validation,
        "training_jobs": jobs,
        "start_seconds": None if start is None else jobs * start,
        "queue_seconds": None if queue is None else jobs * queue,
        "failure_seconds": failures,
        "checkpoint_write_seconds": write,
        "checkpoint_interval_seconds": None if write is None or not rate else math.sqrt(2 * write * between),
        "seconds": steps + (validation or 0) + jobs * (start or 0) + failures,
    }


def _estimate_validation(model: ModelPlan, step: StepTime) -> float | None:
    """Return the time of all validations; their tokens have a forward pass only, a third of a training's."""
    training = model.training
    if not training.validation_every:
        return 0.0
    if training.validation_tokens is None:
        return None
    share = training.validation_tokens / (training.batch_size * training.sequence_length)
    number = count_validations(training.first_step, training.steps, training.validation_every)
    return number * share * step.compute_seconds / 3


def count_validations(first_step: int, last_step: int, every: int) -> int:
    """Return the number of validations: in every so many steps, and in the last one."""
    return last_step // every - first_step // every + (last_step % every > 0)


def seconds_at_published_utilization(model: ModelPlan, devices: int, peak: float) -> tuple[float, float]:
    """Return the shortest and the longest time of this training at the utilization of published ones of its size.

    The utilization is 6 N D over all hours of a training; with experts N counts the active parameters.
    """
    training = model.training
    parameters = active_parameter_count(model.architecture, model.vocabulary_size)
    flops = training_cost_formulas.training_flops(
        parameters, training.batch_schedule.count_tokens(training.first_step, training.steps)
    )
    times = [
        training_cost_formulas.duration_seconds(
            flops, devices=devices, peak_flops_per_second=peak, utilization=one.utilization
        )
        for one in find_similar_published_trainings(parameters)
    ]
    return min(times), max(times)


# Published trainings, listed next to a plan.


PUBLISHED_PEAKS = {"H100": 989.4e12, "A100": 312e12}  # dense bf16: NVIDIA, data sheets
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16_384)
"""Unexpected interruptions of 54 days on 16,384 H100: Grattafiori et al. 2024 (The Llama 3 Herd of Models), table 5."""


class PublishedTraining(NamedTuple):
    """A whole training, with the device hours that its authors report."""

    name: str
    parameters: float
    tokens: float
    device: str
    device_hours: float
    source: str

    @property
    def utilization(self) -> float:
        """Return the share of the peak: 6 N D over all reported hours."""
        return training_cost_formulas.training_flops(self.parameters, self.tokens) / (
            self.device_hours * 3600 * PUBLISHED_PEAKS[self.device]
        )


_LLAMA2 = "https://github.com/meta-llama/llama, MODEL_CARD.md"
_LLAMA3 = "https://github.com/meta-llama/llama3, MODEL_CARD.md"
_LLAMA31 = "https://github.com/meta-llama/llama-models, models/llama3_1/MODEL_CARD.md"
PUBLISHED_TRAININGS = (
    PublishedTraining("TinyLlama 1.1B", 1.1e9, 300e9, "A100", 3456, "https://github.com/jzhang38/TinyLlama"),
    PublishedTraining(
        "Pythia 1.0B", 1.01e9, 300e9, "A100", 4830, "Biderman et al. 2023, by https://github.com/jzhang38/TinyLlama"
    ),
    PublishedTraining("Llama 2 7B", 6.74e9, 2e12, "A100", 184_320, _LLAMA2),
    PublishedTraining("Llama 2 13B", 13.0e9, 2e12, "A100", 368_640, _LLAMA2),
    PublishedTraining("Llama 2 70B", 69.0e9, 2e12, "A100", 1_720_320, _LLAMA2),
    PublishedTraining("Llama 3 8B", 8.03e9, 15e12, "H100", 1.3e6, _LLAMA3),
    PublishedTraining("Llama 3 70B", 70.6e9, 15e12, "H100", 6.4e6, _LLAMA3),
    PublishedTraining("Llama 3.1 8B", 8.03e9, 15e12, "H100", 1.46e6, _LLAMA31),
    PublishedTraining("Llama 3.1 70B", 70.6e9, 15e12, "H100", 7.0e6, _LLAMA31),
    PublishedTraining("Llama 3.1 405B", 405.9e9, 15.6e12, "H100", 30.84e6, _LLAMA31),
    PublishedTraining(
        "GPT-NL 30B", 29.82e9, 450e9, "H100", 88 * 34 * 24, "GPT-NL (TNO, SURF, NFI): 34 days on 88 H100"
    ),
)


def find_similar_published_trainings(parameters: float) -> list[PublishedTraining]:
    """Return the published trainings of half to twice the size, or else the one nearest in size."""
    similar = [one for one in PUBLISHED_TRAININGS if 1 / 2 <= one.parameters / parameters <= 2]
    return similar or [
        min(PUBLISHED_TRAININGS, key=lambda one: max(one.parameters / parameters, parameters / one.parameters))
    ]
