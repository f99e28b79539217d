"""Propose other settings for a training: the fastest ones that fit into memory, and those that take least energy.

A proposal changes how a training computes, not what: keys of `EXECUTION_KEYS` alone. Products in 8 bits round otherwise
and are a proposal of their own. The plan's formulas order the candidates; a trace decides whether one fits, except with
a pipeline, which takes as long to trace as everything else, and with DeepSpeed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.plan.estimate import estimate_model
from pipeline.plan.settings import EnergyPlan, MeshPlan, ModelPlan, PlatformPlan, TrainingPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, list_backend_strategies
from pipeline.plan.training_cost_formulas import device_bytes
from pipeline.plan.training_time import estimate_training_time, explain_unknown_step_time
from pipeline.pretrain.monitors.memory_estimate import USABLE_SHARE, PeakMemory
from pipeline.pretrain.parallel.process_layout import check_mesh_divides_model
from pipeline.pretrain.settings import Mesh, Model, Training
from pipeline.workflow.preflight import PlannedTraining

DEGREES = 1, 2, 4, 8
"""Of tensor, pipeline and context parallelism, next to those that are asked for."""
LARGEST_MICRO_BATCH = 64
EQUAL_SHARE = 0.01
"""A smaller difference counts as none: of settings within it the smallest change is proposed."""
SELECTIVE_SHARE = 0.65
"""Share of the activations that selective recomputation keeps. It only decides what is traced."""
FORMULA_ERROR = 0.1
"""The formulas are up to so much above a trace, so that settings above the limit by less are traced."""
MOST_TRACES = 4
CHANGED_KEYS = (
    *("strategy", "mesh", "micro_batch_size", "recomputation", "compile", "async_tensor_parallel", "float8"),
)
SAVED_KEYS = ("seconds", "device_hours", "billed_core_hours", "billed_gpu_hours", "facility_energy_joules")


class Candidate(NamedTuple):
    """Settings on so many processes, their time, and their bytes by formula."""

    planned: PlannedTraining
    seconds: float
    bytes_by_formula: float

    @property
    def is_traced(self) -> bool:
        """Return whether its memory is traced, and not taken from the formula."""
        return self.planned.training.backend == "fsdp" and self.planned.training.mesh.pipeline == 1


class Fit(NamedTuple):
    """Settings that fit, with the bytes of a device."""

    planned: PlannedTraining
    bytes: int
    by: Literal["trace", "formula"]


Trace = Callable[[list[PlannedTraining], float], list[PeakMemory]]


class Asked(NamedTuple):
    """A model of the configuration as it is asked for, and its plan."""

    section: Model
    planned: PlannedTraining
    model: ModelPlan
    platform: PlatformPlan
    energy: EnergyPlan
    has_float8: bool
    is_only_model: bool

    @property
    def limit_bytes(self) -> float:
        """Return the memory that a proposal may take."""
        return (self.planned.capacity_bytes or 0) * USABLE_SHARE

    def can_propose_settings(self) -> bool:
        """Return whether time and memory of a device are known, which proposals need."""
        known = not explain_unknown_step_time(self.model, self.platform, self.planned.processes)
        return known and self.planned.capacity_bytes is not None

    def figures(self, planned: PlannedTraining) -> dict[str, Any]:
        """Return the plan's entry of other settings."""
        nodes = max(planned.processes // self.platform.devices, 1)
        return estimate_model(
            _change_plan(self.model, planned.training), self.platform.model_copy(update={"nodes": nodes}), self.energy
        )


def _change_plan(model: ModelPlan, training: Training) -> ModelPlan:
    """Return the model with the training's settings; they are valid, and validation takes most of the time."""
    changed = {key: getattr(training, key) for key in CHANGED_KEYS}
    changed["mesh"] = MeshPlan.model_construct(**dict(training.mesh))
    return model.model_copy(update={"training": model.training.model_copy(update=changed)})


def list_candidates(asked: Asked, processes: int, meshes: Iterable[Mesh]) -> list[Candidate]:
    """Return the settings that a run accepts and whose memory may suffice by formula, best first.

    The best are the fastest; of those within `EQUAL_SHARE` the one with the fewest changes comes first.
    """
    planned = replace(asked.planned, processes=processes)
    platform = asked.platform.model_copy(update={"nodes": max(processes // asked.platform.devices, 1)})
    candidates = []
    for training in _list_trainings(asked.planned.training, meshes):
        mesh = training.mesh
        parts, rest = divmod(processes, mesh.tensor * mesh.pipeline * mesh.context)
        if rest or training.batch_size % (parts * training.micro_batch_size):
            continue  # check_mesh_divides_model would write a sentence for each of thousands
        other = replace(planned, training=training)
        try:
            check_mesh_divides_model(training, other.shape, other.vocabulary_size, processes, other.per_node)
        except InputError:
            continue
        plan = _change_plan(asked.model, training)
        if explain_unknown_step_time(plan, platform, processes):
            continue  # its time would be that of a stated utilization, which is no measure of these settings
        candidate = Candidate(other, 0.0, _bytes_by_formula(other, plan.training))
        if candidate.bytes_by_formula > asked.limit_bytes * (1 + FORMULA_ERROR * candidate.is_traced):
            continue
        candidates.append(candidate._replace(seconds=estimate_training_time(plan, platform, processes)["seconds"]))
    return [*_order(asked.planned.training, candidates)]


def _order(asked: Training, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    left = sorted(candidates, key=lambda one: one.seconds)
    while left:
        equal = [one for one in left if one.seconds <= (1 + EQUAL_SHARE) * left[0].seconds]
        yield from sorted(equal, key=lambda one: len(list_changes(asked, one.planned.training)))
        left = left[len(equal) :]


def _bytes_by_formula(planned: PlannedTraining, training: TrainingPlan) -> float:
    """Return the bytes of a device; with a pipeline selective recomputation counts as none, which is too much."""
    sizes = planned.process_layout
    devices, node = sizes.replicate * sizes.shard, sizes.shard

    def estimate_device_bytes(recomputation: bool) -> float:
        shape = planned.shape, planned.vocabulary_size, training
        return sum(device_bytes(*shape, devices=devices, node=node, recomputation=recomputation))

    if training.recomputation != "selective" or training.mesh.pipeline > 1:
        return estimate_device_bytes(training.recomputation == "full")
    return estimate_device_bytes(True) + SELECTIVE_SHARE * (estimate_device_bytes(False) - estimate_device_bytes(True))


def _list_trainings(asked: Training, meshes: Iterable[Mesh]) -> Iterator[Training]:
    """Yield the settings of the same mathematics on each mesh, the smallest change first."""
    is_fsdp = asked.backend == "fsdp"
    sizes = [size for size in range(1, LARGEST_MICRO_BATCH + 1) if asked.batch_size % size == 0]
    for strategy, mesh, recomputation, size in itertools.product(
        dict.fromkeys((asked.strategy, *list_backend_strategies(asked.backend))),
        meshes,
        dict.fromkeys((asked.recomputation, "none", *["selective"] * asked.flash_attention, "full")),
        dict.fromkeys((asked.micro_batch_size, *sizes)),
    ):
        shard = mesh.shard if STRATEGIES[strategy].is_hybrid else None
        yield asked.model_copy(
            update={
                "strategy": strategy,
                "mesh": mesh.model_copy(update={"shard": shard}),
                "recomputation": recomputation,
                "compile": asked.compile or (is_fsdp and mesh.expert == 1),
                "micro_batch_size": size,
                "async_tensor_parallel": asked.async_tensor_parallel and mesh.tensor > 1,
            }
        )


def _list_meshes(asked: PlannedTraining) -> list[Mesh]:
    mesh = asked.training.mesh
    if asked.training.backend != "fsdp":
        return [mesh]
    meshes = []
    degrees = (dict.fromkeys((degree, *DEGREES)) for degree in (mesh.tensor, mesh.pipeline, mesh.context))
    for tensor, pipeline, context in itertools.product(*degrees):
        if tensor <= max(asked.per_node, mesh.tensor):
            interleaving = mesh.interleaving if pipeline == mesh.pipeline else 1
            sizes = {"tensor": tensor, "pipeline": pipeline, "context": context, "interleaving": interleaving}
            meshes.append(mesh.model_copy(update=sizes))
    return meshes


def list_changes(asked: Training, other: Training) -> dict[str, Any]:
    """Return the keys of `training` to write, with their values; of a mesh those that differ or are no defaults."""
    changes = {key: getattr(other, key) for key in CHANGED_KEYS if getattr(other, key) != getattr(asked, key)}
    if "mesh" in changes:
        differing = {name for name, value in other.mesh if value != getattr(asked.mesh, name)}
        changes["mesh"] = other.mesh.model_dump(include=differing | other.mesh.model_dump(exclude_defaults=True).keys())
    return changes


def _is_accepted(section: Model, training: Training) -> bool:
    """Return whether a configuration may have these settings."""
    try:
        Model.model_validate({**section.model_dump(), "training": training.model_dump()})
    except ValidationError:
        return False
    return True


def propose_settings(asked: Asked, trace: Trace) -> tuple[PeakMemory, list[dict[str, Any]]]:
    """Return the memory of a training as it is asked for, and the proposals as JSON.

    Args:
        trace: traces settings up to the first that take no more than so many bytes, and always the first of all.
    """
    candidates = list_candidates(asked, asked.planned.processes, _list_meshes(asked.planned))
    now, limit = asked.figures(asked.planned), asked.limit_bytes
    faster = [*itertools.takewhile(lambda one: list_changes(asked.planned.training, one.planned.training), candidates)]
    worth = (one for one in faster if one.is_traced and _is_accepted(asked.section, one.planned.training))
    tried = [*itertools.islice(worth, MOST_TRACES)]
    own_peak, *peaks = trace([asked.planned, *(one.planned for one in tried)], limit)
    bound = (1 - EQUAL_SHARE) * now["seconds"] if own_peak.peak_bytes <= limit else math.inf
    fits = [Fit(one.planned, peak.peak_bytes, "trace") for one, peak in zip(tried, peaks, strict=False)]
    fits = [one for one in fits[-1:] if one.bytes <= limit]
    by_formula = (one for one in faster if not one.is_traced and _is_accepted(asked.section, one.planned.training))
    fits += [Fit(one.planned, round(one.bytes_by_formula), "formula") for one in itertools.islice(by_formula, 1)]
    described = [(fit, asked.figures(fit.planned)) for fit in fits]
    described = [(fit, figures) for fit, figures in described if figures["seconds"] < bound]
    described.sort(key=lambda one: float(one[1]["seconds"]))
    rows = [
        _describe(asked, aim, fit, now, figures)
        for aim, (fit, figures) in zip(("fastest", "fastest with traced memory"), described, strict=False)
        if aim == "fastest" or fit.by == "trace"
    ]
    ways = [fit for fit, _ in described]
    if own_peak.peak_bytes <= limit:
        ways.append(Fit(asked.planned, own_peak.peak_bytes, "trace"))
    if ways and asked.is_only_model:  # the number of nodes is that of all models of a run
        cheaper = _propose_fewer_nodes(asked, ways, now, trace)
        if rows and not cheaper and rows[0]["facility_energy_joules"] is not None:
            rows[0]["aim"] += ", least energy"
        rows += cheaper
    if ways:
        rows += _propose_float8(asked, ways, now)
    return own_peak, rows


def _propose_fewer_nodes(asked: Asked, ways: list[Fit], now: dict[str, Any], trace: Trace) -> list[dict[str, Any]]:
    """Return the settings on fewer nodes that take least energy and are done no later than as asked, if any.

    On the same nodes the fastest settings take least energy, because a device's power is taken as constant.
    """
    most = asked.figures(ways[0].planned)["facility_energy_joules"]
    if most is None:
        return []
    per_node, candidates = asked.planned.per_node, []
    meshes = [*{way.planned.training.mesh.model_dump_json(): way.planned.training.mesh for way in ways}.values()]
    for nodes in range(asked.planned.processes // per_node - 1, 0, -1):
        one = next((one for one in list_candidates(asked, nodes * per_node, meshes) if one.is_traced), None)
        if one and one.seconds <= now["seconds"] and _is_accepted(asked.section, one.planned.training):
            joules = asked.figures(one.planned)["facility_energy_joules"]
            if joules < (1 - EQUAL_SHARE) * most:
                candidates.append((joules, -nodes, one.planned))
    if not candidates:
        return []
    planned = min(candidates, key=lambda one: one[:2])[2]
    (peak,) = trace([planned], asked.limit_bytes)
    if peak.peak_bytes > asked.limit_bytes:
        return []
    return [_describe(asked, "least energy", Fit(planned, peak.peak_bytes, "trace"), now, asked.figures(planned))]


def _propose_float8(asked: Asked, ways: list[Fit], now: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fastest of the ways with products in 8 bits, where that is faster; their memory is that of bf16."""
    if not asked.has_float8 or asked.planned.training.float8:
        return []
    candidates = list[tuple[Fit, dict[str, Any]]]()
    for way in ways:
        training = way.planned.training.model_copy(update={"float8": True, "compile": True})
        if _is_accepted(asked.section, training):
            fit = way._replace(planned=replace(way.planned, training=training))
            candidates.append((fit, asked.figures(fit.planned)))
    least = min(asked.figures(way.planned)["seconds"] for way in ways)
    candidates = [one for one in candidates if one[1]["seconds"] < (1 - EQUAL_SHARE) * least]
    if not candidates:
        return []
    fit, figures = min(candidates, key=lambda one: float(one[1]["seconds"]))
    return [_describe(asked, "float8, rounds otherwise", fit, now, figures)]


def _describe(asked: Asked, aim: str, fit: Fit, now: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    nodes, own = (planned.processes // planned.per_node for planned in (fit.planned, asked.planned))
    write: dict[str, Any] = {"models": {asked.planned.name: {"training": {}}}}
    write["models"][asked.planned.name]["training"] = list_changes(asked.planned.training, fit.planned.training)
    if nodes != own:
        write["slurm"] = {"nodes": nodes}
    saved = {
        f"saved_{key}": None if figures[key] is None or now[key] is None else now[key] - figures[key]
        for key in SAVED_KEYS
    }
    return {
        "aim": aim,
        "write": write,
        "lines": yaml.safe_dump(write, default_flow_style=None, sort_keys=False).splitlines(),
        "nodes": nodes,
        **{key: figures[key] for key in SAVED_KEYS},
        **saved,
        "memory_bytes": fit.bytes,
        "memory_by": fit.by,
    }
