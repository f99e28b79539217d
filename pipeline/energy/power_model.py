"""Model the power of a node without a meter: idle, per busy core, and per gigabyte of memory in use."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field, model_validator

from pipeline.core.settings import Settings

NORMAL_95 = 1.96


class PowerInterval(NamedTuple):
    """A power and its 95 % interval, in watts."""

    watts: float
    low: float
    high: float


class PowerModel(Settings):
    """Watts of a node, without its boards, = idle + busy cores × watts + gigabytes in use × watts.

    `relative_error` is the standard deviation of one node's real power around the model's, as a share. A range is the
    least and the most of an unmeasured figure; its ends add up linearly, as all nodes of a kind share the error.
    """

    idle_watts: float = Field(ge=0, description="of a node that is awake: of all its parts, before any busy core")
    idle_watts_range: tuple[float, float] | None = Field(
        default=None, description="least and most, for a figure that nobody measured"
    )
    busy_core_watts: float = Field(ge=0, description="for each further busy core")
    busy_core_watts_range: tuple[float, float] | None = Field(
        default=None, description="least and most, for a figure that nobody measured"
    )
    dram_watts_per_gigabyte: float = Field(default=0.0, ge=0, description="for memory in use")
    relative_error: float = Field(ge=0, description="standard deviation of one node's power, as a share")
    source: str = Field(min_length=1, description="where the figures come from")

    @model_validator(mode="after")
    def _check_ranges(self) -> PowerModel:
        for key in ("idle_watts", "busy_core_watts"):
            low, high = self._ends(key)
            if not 0 <= low <= getattr(self, key) <= high:
                raise ValueError(f"{key}_range is {low:g} to {high:g} W, which does not hold {key}")
        return self

    def _ends(self, key: str) -> tuple[float, float]:
        ends: tuple[float, float] | None = getattr(self, f"{key}_range")
        value: float = getattr(self, key)
        return ends or (value, value)

    def watts(self, busy_cores: float, *, idle_share: float = 1.0, gigabytes: float = 0.0) -> PowerInterval:
        """Return the power in watts for some busy cores; `idle_share` is the job's share of the node."""
        memory = self.dram_watts_per_gigabyte * gigabytes
        ends = zip(self._ends("idle_watts"), self._ends("busy_core_watts"), strict=True)
        low, high = (idle * idle_share + core * busy_cores + memory for idle, core in ends)
        reach = NORMAL_95 * self.relative_error
        watts = self.idle_watts * idle_share + self.busy_core_watts * busy_cores + memory
        return PowerInterval(watts, low * max(1 - reach, 0.0), high * (1 + reach))


GENERIC = PowerModel(
    idle_watts=140.0,
    idle_watts_range=(0.0, 320.0),
    busy_core_watts=4.0,
    busy_core_watts_range=(1.2, 12.0),
    dram_watts_per_gigabyte=3 / 8,
    relative_error=0.0,
    source="an estimate, no figure of this machine. Idle: 140 W (a two-socket server with 12 cores, measured: "
    "blog.zhaw.ch/icclab, 2014), from 0 (a node that would have been on anyway) to 320 W (genoa nodes of Snellius with "
    "one busy core, at most 309 W by EAR). A busy thread: 4 W (codecarbon 3.3.2), from 1.2 W (Cloud Carbon Footprint, "
    "EPYC of the second generation, 0.47 to 1.64 W) to 12 W (Green Algorithms, any CPU). Memory: 3 W per 8 GB",
)
"""The model of an unknown machine.

The low end is the marginal cost of a busy thread, the high end a whole large server for one job. The value between
them, an idle server of middle size and codecarbon's thread, is a convention. A laptop or a virtual machine is nearer to
the low end.
"""

UNREAD_WATTS, UNREAD_SHARE = PowerInterval(50.0, 0.0, 150.0), PowerInterval(0.10, 0.03, 0.30)
"""Power of an unknown node apart from its processors and boards, if meters read these: watts, and a share of theirs.

Mainboard, disks, fans, and the losses of voltage converters and power supply. Fitted to 318 runs on a PC with an RTX
4090 and a Core i9-13900K against a meter at its socket (Fischer 2025, github.com/raphischer/ai-energy-validation), by
`benchmarks/energy_meters.py`; the ends are an estimate of this program. No server was compared.
"""
UNREAD_SOURCE = (
    f"an estimate, no figure of this machine: {UNREAD_WATTS.watts:g} W and {UNREAD_SHARE.watts:.0%} of what meters "
    "read (a PC against a meter at its socket: github.com/raphischer/ai-energy-validation, 2025)"
)
