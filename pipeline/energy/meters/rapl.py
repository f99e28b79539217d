"""RAPL: the energy counters of processor packages and memory, as Linux shows them (Documentation/power/powercap).

Packages include their cores, and a `psys` zone would count them again: both are left out. A counter goes back to zero
at `max_energy_range_uj`, some within minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.energy.meters.part import Part, Unreadable
from pipeline.energy.readings import Reading

POWERCAP = Path("/sys/class/powercap")
MICROJOULES = 1e6
MOST_OF_ITS_LIMIT = 1.5  # short peaks are allowed above a package's long-term limit


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class Rapl:
    """The zones below a powercap folder that can be read."""

    gpus: Sequence[str] = ()

    def __init__(self, zones: dict[Path, str]) -> None:
        self._parts: dict[Path, Part] = {}
        for zone, name in zones.items():
            limit, whole = _number(zone / "constraint_0_max_power_uw"), _number(zone / "max_energy_range_uj")
            self._parts[zone] = Part(
                "rapl",
                "dram" if name.startswith("dram") else "package",
                name,
                most_watts=limit / MICROJOULES * MOST_OF_ITS_LIMIT if limit else None,
                range_joules=whole / MICROJOULES if whole else None,
            )

    def read(self, now: float) -> None:
        """Look at every counter."""
        for zone, part in self._parts.items():
            counter = _number(zone / "energy_uj")
            if counter is None:
                part.lost("its counter could not be read")
            else:
                part.counter(counter / MICROJOULES, now)

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""
        self.read(now)
        return [part.take(now, "counter") for part in self._parts.values()]


def find(powercap: Path = POWERCAP) -> Rapl | Unreadable | None:
    """Return the meter; None where the kernel shows none, such as in a virtual machine."""
    zones: dict[Path, str] = {}
    readable = False
    for zone in sorted(powercap.glob("intel-rapl:*")):  # AMD's processors are shown under this name too
        try:
            name = (zone / "name").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if not name.startswith(("package", "dram")):
            continue
        readable |= _number(zone / "energy_uj") is not None
        # Memory is told apart by the package that it belongs to.
        zones[zone] = f"dram-{zone.name.split(':')[1]}" if name == "dram" else name
    if readable:  # a zone that cannot be read is told of beside those that can, so that no package is left out silently
        return Rapl(zones)
    # Since 2020 most systems let only root read them.
    return Unreadable("rapl", "package", "rapl: only root may read its counters on this node") if zones else None
