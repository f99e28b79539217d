"""Which meters a node has."""

from __future__ import annotations

from pathlib import Path

from pipeline.energy.meters import boards, pm_counters, rapl
from pipeline.energy.meters.part import Meter


def found(
    powercap: Path = rapl.POWERCAP, counters: Path = pm_counters.COUNTERS, devices: Path = boards.DEVICES
) -> list[Meter]:
    """Return the meters of this node. Those of a Cray node tell all its parts: beside them no other one is read."""
    if (cray := pm_counters.find(counters)) is not None:
        return [cray]
    meters: list[Meter | None] = [rapl.find(powercap), boards.find(boards.kind(devices))]
    return [meter for meter in meters if meter is not None]
