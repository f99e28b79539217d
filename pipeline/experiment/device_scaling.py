"""Measure strong and weak scaling over devices, from the finished models below a folder.

Strong: the same global batch on more devices. Weak: a batch that grows with them. Efficiency is the speed of a device
over that on the fewest devices, where ideal is 1 (Amdahl 1967; Gustafson 1988).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pipeline import layout
from pipeline.core.batch_schedule import BatchSchedule, median_step_seconds
from pipeline.core.display_text import align_columns
from pipeline.core.errors import InputError
from pipeline.core.job_records import Record
from pipeline.experiment.run_overview import RunSummary, find_last_segments, find_runs_in_folder, run_folder

VARIED_KEYS = {
    "batch_size",
    "steps",
    "milestone_every",
    "learning_rate",
    "minimum_learning_rate_fraction",
    "warmup_steps",
}
VARIED_KEYS |= {
    "schedule",
    "decay_fraction",
    "validation_every",
    "validation_tokens",
    "checkpoint_every",
    "keep_checkpoints",
}
VARIED_KEYS |= {"keep_every", "stability", "sampling", "weight_decay", "decay_embedding", "beta1", "beta2", "epsilon"}
VARIED_KEYS |= {"gradient_clip"}
"""Keys of a training that do not change a step's work on a device, or that scaling varies."""
NO_SCALING = (
    "no two models of {number} are the same training on different numbers of devices, with one batch or with one that "
    "grows with them: run one with slurm.nodes 1, 2 and 4, say, each with a run.name of its own, then name the folder "
    "of their results"
)


class ScalingMeasurement(NamedTuple):
    """A finished model and its speed; `kind` is equal for models that differ only in devices and batch."""

    model: str
    kind: str
    devices: int
    nodes: int
    batch_size: int
    tokens_per_second: float
    token_joules: float | None
    energy: str

    @property
    def per_device(self) -> float:
        return self.tokens_per_second / self.devices


def read_measurements(results: Path) -> Iterator[ScalingMeasurement]:
    """Yield the models with timed steps of the runs below a folder.

    Raises:
        InputError: there is no run.
    """
    for name, run in find_runs_in_folder(results).items():
        folder = run_folder(results, name)
        for model, record in find_last_segments(folder).items():
            metrics = layout.METRICS.path(folder, model=model)
            if measurement := _read_measurement(f"{name}/{model}", metrics, model, record, run):
                yield measurement


def _read_measurement(
    name: str, metrics: Path, model: str, record: Record, run: RunSummary
) -> ScalingMeasurement | None:
    """Return a model; None if its step times or its number of processes are unknown."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.is_file() else []
    training = record.settings["training"]
    batches = BatchSchedule.from_settings(training)
    after = [line for line in lines if line["step"] > batches.ramp_steps]
    seconds, processes = median_step_seconds(after), record.counts.get("world_size")
    if seconds is None or processes is None:
        return None
    same = {key: value for key, value in training.items() if key not in VARIED_KEYS}
    masked = training.get("sampling", {}).get("mask_documents", False)
    machine = [run.settings.get("platform"), record.counts.get("device")]
    kind = [record.settings["architecture"], record.counts.get("parameters"), same, masked, machine]
    energy = run.figures.get(f"energy.model.{model}")
    steps = [line["step"] for line in lines if "loss" in line]
    return ScalingMeasurement(
        name,
        json.dumps(kind, sort_keys=True),
        processes,
        len(record.counts.get("nodes") or {None}),
        training["batch_size"],
        training["batch_size"] * training["sequence_length"] / seconds,
        energy.value / batches.count_tokens(steps[0] - 1, steps[-1]) if energy else None,
        energy.how if energy else "",
    )


def format_scaling(measurements: Sequence[ScalingMeasurement]) -> list[str]:
    """Format a table for each training, of strong and of weak scaling.

    Raises:
        InputError: no training ran on different numbers of devices.
    """
    lines: list[str] = []
    for way in ("strong", "weak"):
        groups: dict[tuple[str, float], list[ScalingMeasurement]] = {}
        for one in measurements:
            batch = one.batch_size if way == "strong" else one.batch_size / one.devices
            groups.setdefault((one.kind, batch), []).append(one)
        for (_, batch), group in groups.items():
            if len({one.devices for one in group}) > 1:
                lines += [*_format_table(way, batch, sorted(group, key=lambda one: (one.devices, one.model))), ""]
    if not lines:
        raise InputError(NO_SCALING.format(number=f"the {len(measurements)} that were timed"))
    return lines[:-1]


def _format_table(way: str, batch: float, group: Sequence[ScalingMeasurement]) -> list[str]:
    fewest = [one.per_device for one in group if one.devices == group[0].devices]
    of = "of all devices" if way == "strong" else "of a device"
    rows = [[f"{way} scaling, {batch:g} sequences {of}", "devices", "nodes", "tokens per second", "of a device"]]
    rows[0] += ["efficiency", "faster", "ideal", "energy of a token"]
    for one in group:
        faster = one.tokens_per_second / (fmean(fewest) * group[0].devices)
        joules = "not known" if one.token_joules is None else f"{one.token_joules:.3g} J {one.energy}"
        rows.append([one.model, str(one.devices), str(one.nodes), f"{one.tokens_per_second:,.4g}"])
        rows[-1] += [f"{one.per_device:,.4g}", f"{100 * one.per_device / fmean(fewest):.1f} %", f"{faster:.2f}"]
        rows[-1] += [f"{one.devices / group[0].devices:g}", joules]
    return align_columns(rows)
