"""Read the joules of an allocation from Slurm: ConsumedEnergyRaw or ConsumedEnergy of `sacct`.

The plugin AcctGatherEnergyType says how reliable they are. The node's own meter measures; Slurm's `rapl` is known to
overcount on some machines, so its figure is only stated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.energy.external_meters.meter_tables import explain_wrong_watts
from pipeline.energy.readings import Component, ExternalReading, Label, Reading

METER = "slurm"
NODE_METERS = ("ipmi", "xcc", "pm_counters")
PLUGIN_COMPONENTS: dict[str, Component] = {
    "rapl": "package",
    "gpu": "board",
}  # of the plugins that do not read whole nodes
INVALID_JOULES = 1 << 62  # of joules; where Slurm has no meter, its counter shows numbers near 2**64
UNIT_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # sacct divides energies by 1000, not by 1024


class AllocationEnergy(NamedTuple):
    """An allocation of a job: its nodes, its time in Unix seconds, and its energy as sacct prints it."""

    job: str
    nodes: Sequence[str]
    started: float
    ended: float
    said: str
    whole_nodes: bool | None = None


def parse_joules(said: str) -> float | None:
    """Parse joules such as 900, 1.2K or 900M; None if none were measured: nothing, 0, or a number near 2**64."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", said.strip())
    joules = float(match[1]) * UNIT_FACTORS[match[2]] if match else 0.0
    return joules if 0 < joules < INVALID_JOULES else None


def parse_energy_plugin(configuration: str) -> str | None:
    """Find the energy plugin, such as ipmi, in the output of `scontrol show config`; None if it names none."""
    match = re.search(r"^AcctGatherEnergyType\s*=\s*(\S+)", configuration, re.MULTILINE)
    if not match or match[1] == "(null)":
        return "none" if match else None
    return ",".join(part.rpartition("/")[2] for part in match[1].split(","))


def _explain_missing(allocated: AllocationEnergy, plugin: str | None) -> str:
    if plugin == "none":
        return "this cluster's Slurm has no meter of energy (AcctGatherEnergyType is none)"
    said = f"says {allocated.said!r}" if allocated.said.strip() else "says nothing"
    return f"sacct {said} of the energy of job {allocated.job}: it was not measured"


def read_slurm_energy(allocated: AllocationEnergy, plugin: str | None) -> list[ExternalReading]:
    """Return a reading for each node of an allocation; `plugin` is that of `find_energy_plugin`.

    sacct has one number for all nodes of an allocation: each of several gets an equal share, which is stated. A reading
    is measured by the node's own meters (ipmi, xcc, pm_counters), else stated.
    """
    joules, nodes, problem = parse_joules(allocated.said), len(allocated.nodes), None
    seconds = allocated.ended - allocated.started
    label: Label = "measured" if plugin in NODE_METERS and nodes == 1 else "stated"
    if joules is None or plugin == "none":
        joules, problem = None, _explain_missing(allocated, plugin)
    elif seconds <= 0:
        joules, problem = None, f"job {allocated.job} ends before it starts: its energy by sacct is not counted"
    elif wrong := explain_wrong_watts(joules / seconds / max(nodes, 1)):
        joules = None
        problem = f"sacct's {allocated.said} J of job {allocated.job}: power per node {wrong}: not measured"
    elif plugin is None:
        problem = f"nobody knows which plugin measured the {allocated.said} J that sacct says of job {allocated.job}"
    elif nodes > 1:
        problem = f"sacct has one energy for the {nodes} nodes of job {allocated.job}: each gets an equal share"
    elif plugin not in NODE_METERS:
        problem = f"Slurm's plugin {plugin} is no meter of the node: its joules are stated until another meter agrees"
    reading = Reading(
        component=PLUGIN_COMPONENTS.get(plugin or "", "node"),
        joules=None if joules is None else joules / nodes,
        label=label,
        method="table" if nodes > 1 else "counter",
        meter=METER,
        plugin=f"acct_gather_energy/{plugin}" if plugin else None,
        problem=problem,
    )
    return [
        ExternalReading(
            node=node,
            started=allocated.started,
            ended=max(allocated.started, allocated.ended),
            job=allocated.job,
            whole_node=allocated.whole_nodes,
            readings=(reading,),
        )
        for node in allocated.nodes
    ]
