"""What the plan said of a training beside what was measured: sizes, speed, memory, time and energy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.core.step_seconds import step_seconds
from pipeline.energy.energy_accounting import EnergyAccounting, Figure, sum_figures
from pipeline.report.read import Json, Material

ACTIVATIONS = {False: "activation_bytes_per_device", True: "activation_bytes_with_recomputation"}
"""In the plan, by whether all is computed again."""
# By the key in the plan: the words of a row, and the filter of its figures.
ROWS = {
    "parameters": ("Parameters", "number"),
    "tokens": ("Tokens trained on", "number"),
    "step_seconds": ("Time of a step, median", "brief"),
    "tokens_per_second_per_device": ("Tokens per second of a device, median", "number"),
    "utilization_share": ("Model FLOPs utilisation, median", "share"),
    "memory_bytes": ("Most memory of a device", "size"),
    "seconds": ("Time of the training's jobs, with their starts and lost ones", "duration"),
    "energy_joules": ("Electricity of the same jobs, before PUE", "kwh"),
}


@dataclass(frozen=True)
class Row:
    """A figure as it was planned, perhaps with its interval, and as it was measured; `filter` says how they are shown.

    `label` tells how the measured one is known where that is not by measurement alone.
    """

    words: str
    filter: str
    planned: float
    measured: float | None
    low: float | None = None
    high: float | None = None
    label: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the plan was measured."""
        return self.measured / self.planned if self.planned and self.measured is not None else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the planned interval holds what was measured; None where there is no interval, or no measurement."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


def beside(
    material: Material, account: EnergyAccounting, model: Json, metrics: list[Json], estimate: Json
) -> list[Row]:
    """Return the rows of a model; none of what the plan does not know.

    Args:
        model: as the page tells it.
        metrics: the lines of its metrics.
        estimate: its entry in the plan; empty where there is none.
    """
    processes, speed = model["processes"], model["tokens_per_second"]
    activations = estimate.get(ACTIVATIONS[model["recomputation"] == "full"])
    held = (estimate.get(f"{part}_bytes_per_device") for part in ("model_state", "gathered"))
    memory = _sum(*held, activations)
    energy = _energy(account, model["name"])
    measured = {
        "parameters": model["parameters"],
        "tokens": model["own_tokens"],
        "step_seconds": step_seconds(metrics),
        "tokens_per_second_per_device": speed / processes if speed and processes else None,
        "utilization_share": model["model_flops_utilization"],
        # A process's memory on a CPU holds Python and its libraries.
        "memory_bytes": model["memory_bytes"] if model["device"] not in (None, "CPU") else None,
        "seconds": _seconds(material, model["name"]),
        "energy_joules": energy.joules if energy.is_known else None,
    }
    planned: dict[str, Any] = {**estimate, "memory_bytes": memory}
    more: dict[str, dict[str, Any]] = {
        "step_seconds": _ends_of_a_step(estimate),
        "energy_joules": {"label": energy.label if energy.is_known else ""},
    }
    return [
        Row(*ROWS[key], planned[key], measured[key], **more.get(key, {}))
        for key in ROWS
        if planned.get(key) is not None
    ]


def _ends_of_a_step(estimate: Json) -> dict[str, float]:
    """Return the interval of a step's time: the plan's of the whole time is by the error of a step's."""
    whole, step = estimate.get("seconds"), estimate.get("step_seconds")
    ends = {end: estimate.get(f"{end}_seconds") for end in ("low", "high")}
    return {end: step * value / whole for end, value in ends.items() if value is not None and whole and step}


def _sum(*amounts: float | None) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _of_model(name: str) -> Callable[[str, Json], bool]:
    return lambda step, instance: step == "pretrain.segment" and instance.get("model") == name


def _seconds(material: Material, name: str) -> float | None:
    """Return the seconds of all attempts at the model's segments; None where one of them did not tell."""
    mine = _of_model(name)
    attempts = [one.content for one in material.attempts if mine(one.content["step"], one.content["instance"])]
    return _sum(*(attempt.get("wall_seconds") for attempt in attempts)) if attempts else None


def _energy(account: EnergyAccounting, name: str) -> Figure:
    """Return the joules of the same attempts; not known where those of one are not."""
    mine = _of_model(name)
    jobs = [job for job in account.jobs.values() if mine(job.step, job.instance)]
    return sum_figures(jobs) if jobs and all(job.is_known for job in jobs) else Figure()
