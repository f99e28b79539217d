"""Estimate the device memory of each model's training by tracing, and suggest settings that fit."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.plan.plan_tables import format_quantity
from pipeline.plan.settings import EstimateSettings
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.monitors import memory_estimate
from pipeline.pretrain.monitors.memory_estimate import PeakMemory, TraceRequest, trace_memory, trace_until_fit
from pipeline.pretrain.settings import Training
from pipeline.workflow.preflight import PlannedTraining, build_planned_training
from pipeline.workflow.training_proposals import Asked, propose_settings

PARALLEL_TRACES = 2
"""Each trace takes a core and up to a few GB."""
TRACED_PROPOSALS = 4
"""Settings that fit by the formulas are traced: one of the first fits, or the formulas are far off."""
SETTINGS_WITHOUT_MEMORY = {
    "training": {"learning_rate", "weight_decay", "decay_embedding", "warmup_steps", "steps", "milestone_every"}
}
"""Settings that often vary in an experiment and do not change memory."""


class MemoryPlan(NamedTuple):
    """The traced memory of each model's device, and a sentence for each model that failed or does not fit."""

    traced: dict[str, PeakMemory]
    notes: list[str]
    proposals: dict[str, list[dict[str, Any]]]


def estimate_training_memory(
    config: Config, settings: EstimateSettings, names: Collection[str] | None = None
) -> MemoryPlan:
    """Trace a step of each model without a device, and propose settings where times are known.

    The settings of cells of experiments are what is compared, so they have no proposals.

    Args:
        names: the models to trace; by default all.
    """
    traced_names = config.models if names is None else names
    models = {name: build_planned_training(config, name, config.launch) for name in traced_names}
    kind = "gpu" if "gpu" in config.platform.partitions else "cpu"
    requests = {name: _make_trace_request(model, model.training, kind) for name, model in models.items()}
    keys = {name: request.model_dump_json(exclude=SETTINGS_WITHOUT_MEMORY) for name, request in requests.items()}
    asked = {name: _make_asked(config, settings, model) for name, model in models.items()}
    proposing = {
        name: one for name, one in asked.items() if one.can_propose_settings() and name not in config.cell_model_names()
    }
    different = {keys[name]: requests[name] for name in requests if name not in proposing}
    with ThreadPoolExecutor(PARALLEL_TRACES) as pool:
        proposed = pool.map(lambda one: _propose_or_error(one, kind), proposing.values())
        traces = dict(zip(different, pool.map(_trace_or_error, different.values()), strict=True))
        results = dict(zip(proposing, proposed, strict=True))
    peaks = {name: results[name][0] if name in results else traces[keys[name]] for name in models}
    lines = list[str]()
    for name, model in models.items():
        memory = peaks[name]
        if isinstance(memory, str):
            lines.append(f"models.{name}: {memory}")
        elif (
            model.capacity_bytes is not None and memory.peak_bytes > model.capacity_bytes * memory_estimate.USABLE_SHARE
        ):
            ways = "see the proposals" if results.get(name, ("", []))[1] else _suggest_settings(model, kind)
            lines.append(f"models.{name}: does not fit {format_quantity('bytes', model.capacity_bytes)}: {ways}")
    traced = {name: memory for name, memory in peaks.items() if isinstance(memory, PeakMemory)}
    return MemoryPlan(traced, lines, {name: proposals for name, (_, proposals) in results.items()})


def _make_asked(config: Config, settings: EstimateSettings, model: PlannedTraining) -> Asked:
    return Asked(
        section=config.models[model.name],
        planned=model,
        model=settings.models[model.name],
        platform=settings.platform,
        energy=settings.energy,
        has_float8=bool(config.platform.float8) and config.run.environment == "cuda",
        is_only_model=len(config.models) == 1,
    )


def _propose_or_error(asked: Asked, kind: Any) -> tuple[PeakMemory | str, list[dict[str, Any]]]:
    """Return the memory of a training as asked, or why it has none, and the proposals."""

    def trace(trainings: list[PlannedTraining], limit_bytes: float) -> list[PeakMemory]:
        return trace_until_fit([_make_trace_request(one, one.training, kind) for one in trainings], limit_bytes)

    try:
        return propose_settings(asked, trace)
    except InputError:  # of one of the candidates, perhaps
        return _trace_or_error(_make_trace_request(asked.planned, asked.planned.training, kind)), []


def _make_trace_request(model: PlannedTraining, training: Training, kind: Any) -> TraceRequest:
    return TraceRequest(
        training=training,
        architecture=model.shape,
        vocabulary_size=model.vocabulary_size,
        processes=model.processes,
        per_node=model.per_node,
        device=kind,
    )


def _trace_or_error(request: TraceRequest) -> PeakMemory | str:
    try:
        return trace_memory(request)
    except InputError as error:
        return str(error)


def _suggest_settings(model: PlannedTraining, kind: Any) -> str:
    """Return the first settings of the formulas that fit by tracing too."""
    assert model.capacity_bytes is not None
    shape = model.training, model.shape, model.vocabulary_size, model.processes, model.per_node
    limit = model.capacity_bytes * memory_estimate.USABLE_SHARE
    for other, needed in itertools.islice(memory_estimate.list_proposals(*shape, limit), TRACED_PROPOSALS):
        words = memory_estimate.format_proposal(model.training, other)
        if kind == "gpu" and STRATEGIES[other.strategy].offloads_optimizer:
            return f"{words} does by formula alone, with {format_quantity('peak_bytes', needed)}"
        memory = _trace_or_error(_make_trace_request(model, other, kind))
        if isinstance(memory, PeakMemory) and memory.peak_bytes <= limit:
            return f"{words} does, with {format_quantity('peak_bytes', memory.peak_bytes)}"
    return memory_estimate.NOTHING_FITS.format(backend=model.training.backend)
