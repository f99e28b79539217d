"""The energy accounting of the small run in the form of `report/energy.json`: round figures make sums visible.

Every job on `node1`: 10,000 J, of which 6,000 J measured in the package and 4,000 J estimated for the rest. Segments on
`node2`: 1,000,000 J, of which 700,000 J measured on boards, 200,000 J in the package, 100,000 J estimated.
The range of estimated energy is 0.5 × to 1.5 × its value.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

from pipeline.energy.attribution.job_usage_intervals import MeteredJob
from pipeline.energy.carbon_intensity import IntensitySeries
from pipeline.report.run_reader import RunReader

RAPL, NVML, MODEL = "rapl, measured: counter", "nvml, measured: counter", "model, estimated: a node of this kind"
METERS = {"package": RAPL, "board": NVML, "rest": MODEL}
DATA = {"package": 6_000.0, "rest": 4_000.0}
SEGMENT = {"board": 700_000.0, "package": 200_000.0, "rest": 100_000.0}
KILLED = {"board": 350_000.0, "package": 100_000.0, "rest": 50_000.0}
FAILED = {"package": 3_000.0, "rest": 2_000.0}
IDLE = {"package": 12_000.0, "rest": 8_000.0}
SNAKEMAKE = {"package": 3_000.0, "rest": 2_000.0}
SECONDS = 1230.0  # of each job
BINS = 10  # of each job in the timeline


def figure(parts: dict[str, float]) -> dict[str, Any]:
    """Return an energy figure by component; the rest is estimated."""
    estimated = parts.get("rest", 0.0)
    joules = sum(parts.values())
    return {
        "joules": joules,
        "low_joules": joules - estimated / 2,
        "high_joules": joules + estimated / 2,
        "measured_joules": joules - estimated,
        "estimated_joules": estimated,
        "stated_joules": 0.0,
        "meters": sorted(METERS[part] for part in parts),
    }


def added(many: list[dict[str, float]]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for one in many:
        for component, joules in one.items():
            parts[component] = parts.get(component, 0.0) + joules
    return parts


def moments(name: str, node: str, started: float, parts: dict[str, float]) -> list[dict[str, Any]]:
    """Return a job's part of the timeline: bins of equal length, alternately a tenth above and below its mean power."""
    width, joules = SECONDS / BINS, sum(parts.values()) / BINS
    return [
        {
            "node": node,
            "started": started + index * width,
            "ended": started + (index + 1) * width,
            "watts": {part: amount / SECONDS * (1.1 - 0.2 * (index % 2)) for part, amount in parts.items()},
            "jobs": {name: joules * (1.1 - 0.2 * (index % 2))},
        }
        for index in range(BINS)
    ]


def started(name: str) -> float:
    """Return the start of the example's attempt as Unix time, from its name."""
    stamp = next(part for part in name.split(".")[::-1] if part.startswith("20260301T"))
    return datetime.fromisoformat(f"2026-03-01T{stamp[9:11]}:{stamp[11:13]}:00+00:00").timestamp()


def between(timeline: list[dict[str, Any]], started: float, ended: float) -> float:
    """Return the joules of all jobs between two moments; idle and Snakemake energy have no time here."""
    joules = 0.0
    for one in timeline:
        seconds = max(min(ended, one["ended"]) - max(started, one["started"]), 0.0)
        joules += sum(one["watts"].values()) * seconds
    return joules


def make_accounting(
    jobs: list[MeteredJob], external_readings: object, models: object, reader: RunReader, series: IntensitySeries | None
) -> dict[str, Any]:
    """Return the accounting of some jobs, each with the figures above."""
    parts, nodes, timeline = {}, {}, []
    for job in jobs:
        training = job.step == "pretrain.segment"
        parts[job.name] = (SEGMENT if training else DATA) if job.fate == "finished" else KILLED if training else FAILED
        nodes[job.name] = "node2" if training else "node1"
        timeline += moments(job.name, nodes[job.name], started(job.name), parts[job.name])
    fates = {fate: [parts[job.name] for job in jobs if job.fate == fate] for fate in ("finished", "lost")}
    everything = [*parts.values(), IDLE, SNAKEMAKE]
    total = added(everything)
    on_nodes = {"node1": [IDLE, SNAKEMAKE], "node2": []}
    for job in jobs:
        on_nodes[nodes[job.name]].append(parts[job.name])
    steps = {job.step: added([parts[one.name] for one in jobs if one.step == job.step]) for job in jobs}
    joules = [between(timeline, *times) for times in pairwise(series.moments)] if series else []
    return {
        "intensity": series and series.assign_joules(joules).model_dump(),
        "total": figure(total),
        "finished": figure(added(fates["finished"])),
        "lost": figure(added(fates["lost"])),
        "idle": figure(IDLE),
        "snakemake": figure(SNAKEMAKE),
        "steps": {step: figure(added_) for step, added_ in steps.items()},
        "jobs": {
            job.name: {**figure(parts[job.name]), "step": job.step, "instance": job.instance, "fate": job.fate}
            for job in jobs
        },
        "components": {part: figure({part: joules}) for part, joules in total.items()},
        "nodes": {node: figure(added(many)) for node, many in on_nodes.items()},
        "coverage": {"node_seconds": 36_000.0, "measured_node_seconds": 32_400.0},
        "problems": ["node2: nvml and dcgm differ by 7 % at 07:05 <b>; nvml was taken."],
        "meters": [RAPL, NVML],
        "model": {
            "idle_watts": 120.0,
            "busy_core_watts": 3.5,
            "dram_watts_per_gigabyte": 0.3,
            "relative_error": 0.25,
            "source": "fitted to <i>a table</i>",
        },
        "timeline": timeline,
        "training": {
            metrics.name: {
                line["step"]: sum(SEGMENT.values()) / SECONDS * line["seconds"]
                for line in metrics.lines
                if "ended_unix_seconds" in line
            }
            for metrics in reader.metrics
        },
    }
