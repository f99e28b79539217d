"""How far a meter may be off: the half-width of its 95 % interval, as a share of what it says, each with a source.

Nobody tells whether meters of one kind err together. They are taken to do so: the error of a kind of meter is one
source over all nodes and adds up linearly, which can only make an interval too wide.
"""

from __future__ import annotations

from typing import NamedTuple

OURS = "no maker states it: a careful figure of this program"


class Accuracy(NamedTuple):
    """What the true value may be below and above the reading, as shares of the reading, and who says so."""

    below: float
    above: float
    source: str


KNOWN = {
    ("nvml", "counter"): Accuracy(
        0.05, 0.05, "NVIDIA's NVML documentation, nvmlDeviceGetPowerUsage: ±5 %, stated for Fermi and Kepler boards"
    ),
    ("nvml", "power"): Accuracy(
        0.10, 0.10, "twice NVML's ±5 %, as A100 and H100 sample a quarter of the time (Yang et al., SC24, 2312.02741)"
    ),
    ("amd_smi", ""): Accuracy(0.10, 0.10, OURS),
    ("rapl", "package"): Accuracy(0.10, 0.10, f"{OURS}; a model in the processor on AMD and on older Intel processors"),
    ("rapl", "dram"): Accuracy(
        0.20, 0.20, f"{OURS}; offsets were found by Desrochers et al., MEMSYS 2016, doi 10.1145/2989081.2989088"
    ),
    ("pm_counters", ""): Accuracy(0.05, 0.05, OURS),
    ("ear", ""): Accuracy(0.05, 0.05, OURS),
    ("smart_meter", ""): Accuracy(0.02, 0.02, "twice the ±1 % of a meter of class 1 (IEC 62053-21)"),
    ("slurm", "rapl"): Accuracy(0.50, 0.10, f"{OURS}; this plugin of Slurm is known to say too much"),
    ("slurm", ""): Accuracy(0.10, 0.10, OURS),
}
"""By the name of the meter, and its plugin, the component or the method where they matter."""

UNKNOWN = Accuracy(0.10, 0.10, OURS)
STATED = Accuracy(0.20, 0.20, f"{OURS}; nobody here could check the figure")


def accuracy(meter: str, *, component: str, method: str, label: str, plugin: str | None) -> Accuracy:
    """Return how far a reading may be off."""
    words = [word for word in ("rapl",) if word in (plugin or "")]
    for detail in (*words, component, method, ""):
        known = KNOWN.get((meter, detail))
        if known:
            return known if label == "measured" or known.below > STATED.below else STATED
    return UNKNOWN if label == "measured" else STATED
