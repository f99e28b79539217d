"""What each model's training needs of a device's memory, traced before anything is paid for, and what would fit."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.core.formatting import in_blocks
from pipeline.plan.plan_tables import format_quantity
from pipeline.plan.strategies import STRATEGIES
from pipeline.pretrain.monitors import memory_fit
from pipeline.pretrain.monitors.memory_fit import Memory, TraceRequest, trace
from pipeline.pretrain.settings import Training
from pipeline.workflow.preflight import Planned, planned

TRACED_AT_ONCE = 2
"""Each takes a core and up to a few GB."""
PROPOSALS_TRACED = 4
"""Of those that the formulas say fit: one of the first does, or the formulas are far off."""
NO_MATTER = {
    "training": {"learning_rate", "weight_decay", "decay_embedding", "warmup_steps", "steps", "milestone_every"}
}
"""Settings of which cells of an experiment often have several values, and memory has none."""
BESIDE = (
    "memory: the largest moment of a step of the real model on these processes, traced without a device; CUDA's "
    "context, NCCL's buffers and what an allocator loses come on top, so plan at most {share:.0%} of a device"
)


def memory_lines(config: Config) -> list[str]:
    """Return a table with a column for each model, then a sentence for each that was not traced or does not fit."""
    models = {name: planned(config, name, config.launch) for name in config.models}
    kind = "gpu" if "gpu" in config.platform.partitions else "cpu"
    requests = {name: _request(model, model.training, kind) for name, model in models.items()}
    keys = {name: request.model_dump_json(exclude=NO_MATTER) for name, request in requests.items()}
    different = {keys[name]: requests[name] for name in requests}
    with ThreadPoolExecutor(TRACED_AT_ONCE) as pool:
        found = dict(zip(different, pool.map(_traced, different.values()), strict=True))
    traced = {name: memory for name in models if isinstance(memory := found[keys[name]], Memory)}
    lines = _table(traced) if traced else []
    for name, model in models.items():
        memory = found[keys[name]]
        if isinstance(memory, str):
            lines.append(f"models.{name}: {memory}")
        elif model.capacity_bytes is not None and memory.peak_bytes > model.capacity_bytes * memory_fit.USABLE:
            lines.append(
                f"models.{name}: does not fit {format_quantity('bytes', model.capacity_bytes)}: {_advice(model, kind)}"
            )
    return lines


def _request(model: Planned, training: Training, kind: Any) -> TraceRequest:
    return TraceRequest(
        training=training,
        architecture=model.shape,
        vocabulary_size=model.vocabulary_size,
        processes=model.processes,
        per_node=model.per_node,
        device=kind,
    )


def _traced(request: TraceRequest) -> Memory | str:
    try:
        return trace(request)
    except InputError as error:
        return str(error)


def _table(traced: dict[str, Memory]) -> list[str]:
    rows = [["memory of a device, estimated", *traced]]
    for key in Memory.model_fields:
        if key not in ("peak_in", "stage"):
            label = key.removesuffix("_bytes").replace("_", " ")
            rows.append([label, *(format_quantity(key, getattr(memory, key)) for memory in traced.values())])
    rows.append(["peak in", *(_place(memory) for memory in traced.values())])
    return [*in_blocks(rows), BESIDE.format(share=memory_fit.USABLE)]


def _place(memory: Memory) -> str:
    return f"{memory.peak_in} of stage {memory.stage}" if memory.stage else memory.peak_in


def _advice(model: Planned, kind: Any) -> str:
    """Return the first proposal of the formulas that fits by tracing too."""
    assert model.capacity_bytes is not None
    shape = model.training, model.shape, model.vocabulary_size, model.processes, model.per_node
    limit = model.capacity_bytes * memory_fit.USABLE
    for other, needed in itertools.islice(memory_fit.proposals(*shape, limit), PROPOSALS_TRACED):
        words = memory_fit.in_words(model.training, other)
        if kind == "gpu" and STRATEGIES[other.strategy].offloads_optimizer:
            return f"{words} does by formula alone, with {format_quantity('peak_bytes', needed)}"
        memory = _traced(_request(model, other, kind))
        if isinstance(memory, Memory) and memory.peak_bytes <= limit:
            return f"{words} does, with {format_quantity('peak_bytes', memory.peak_bytes)}"
    return memory_fit.NOTHING_FITS.format(backend=model.training.backend)
