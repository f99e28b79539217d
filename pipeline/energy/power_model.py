"""Model the power of a node that no meter measures: idle, per busy core, per gigabyte of memory in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field, model_validator

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings

NORMAL_95 = 1.96
# A row shorter than this is weighed by its length: a meter that is read every few seconds says little of it.
STEADY_SECONDS = 60.0
# The first busy core wakes the processors up and draws tens of watts; it does not tell what the next ones draw.
LEAST_CORES_FOR_SLOPE = 4.0


class PowerInterval(NamedTuple):
    """A power and its 95 % interval, in watts."""

    watts: float
    low: float
    high: float


class WattRange(NamedTuple):
    """What is known of a figure that nobody measured here: a value, and the least and the most that it may be."""

    value: float
    low: float
    high: float


class ObservedPower(NamedTuple):
    """The measured power of one node alone with one job: watts on average over so many seconds."""

    busy_cores: float
    watts: float
    seconds: float


class PowerModel(Settings):
    """Watts of a node, without its boards, = idle + busy cores × watts + gigabytes in use × watts.

    `relative_error` is the standard deviation of one node's real power around the model's, as a share of it. A range
    is the least and the most that a figure may be where no measurement tells it; its ends are added up as they are,
    since all nodes of a kind share the mistake.
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
    def _ranges_hold_their_values(self) -> PowerModel:
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
        """Return the power in watts for so many busy cores; `idle_share` is the part of the node that the job has."""
        memory = self.dram_watts_per_gigabyte * gigabytes
        ends = zip(self._ends("idle_watts"), self._ends("busy_core_watts"), strict=True)
        low, high = (idle * idle_share + core * busy_cores + memory for idle, core in ends)
        spread = NORMAL_95 * self.relative_error
        watts = self.idle_watts * idle_share + self.busy_core_watts * busy_cores + memory
        return PowerInterval(watts, low * max(1 - spread, 0.0), high * (1 + spread))


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
"""The model of a machine of which nothing is known.

The low end is the marginal cost of a busy thread, the high end a whole large server for one job. The value between them
is an idle server of middle size and codecarbon's thread: a convention, with the truth anywhere between the ends. A
laptop or a virtual machine is nearer to the low end.
"""


def fit_power_model(
    rows: Sequence[ObservedPower], *, source: str, busy_core_watts: WattRange | None = None
) -> PowerModel:
    """Return the model of a kind of node from the measured power of nodes that one job had alone.

    Weighted least squares: a row of less than a minute weighs less. Where the rows hold fewer than four busy cores
    the watts of a core cannot be told from waking up the node, and are taken from `busy_core_watts`; the rows then tell
    idle power. `relative_error` is the standard deviation of what is left over, by the same weights and with the
    degrees of freedom taken off.

    Raises:
        InputError: too few rows, a row that is no measurement, or no row that tells the watts of a core.
    """
    for number, row in enumerate(rows, start=1):
        if not (row.watts > 0 and row.seconds > 0 and row.busy_cores >= 0):
            raise InputError(
                f"row {number} of the measured powers says {row.watts:g} W in {row.seconds:g} s with "
                f"{row.busy_cores:g} busy cores, which is no measurement: leave it out"
            )
    free = max((row.busy_cores for row in rows), default=0.0) >= LEAST_CORES_FOR_SLOPE
    if not free and busy_core_watts is None:
        raise InputError(
            f"no row has {LEAST_CORES_FOR_SLOPE:g} busy cores or more, so the watts of a core cannot be told: "
            "measure a job on more cores, or give the watts of a core from the data sheet"
        )
    if len(rows) < 3:
        raise InputError(f"{len(rows)} measured powers are too few for a model and its error: give 3 or more")
    weights = [row.seconds / (row.seconds + STEADY_SECONDS) for row in rows]
    total = sum(weights)
    mean_cores = sum(weight * row.busy_cores for weight, row in zip(weights, rows, strict=True)) / total
    mean_watts = sum(weight * row.watts for weight, row in zip(weights, rows, strict=True)) / total
    pairs = list(zip(weights, rows, strict=True))
    slope, ends = 0.0, None
    if free:
        across = sum(weight * (row.busy_cores - mean_cores) * (row.watts - mean_watts) for weight, row in pairs)
        along = sum(weight * (row.busy_cores - mean_cores) ** 2 for weight, row in pairs)
        if along == 0:
            raise InputError("all rows have as many busy cores: measure another number of them too")
        slope = max(across / along, 0.0)
    elif busy_core_watts:
        slope, ends = busy_core_watts.value, (busy_core_watts.low, busy_core_watts.high)
    idle = max(mean_watts - slope * mean_cores, 0.0)
    squares = sum(weight * (row.watts / (idle + slope * row.busy_cores) - 1) ** 2 for weight, row in pairs)
    freedom = len(rows) - (2 if free else 1)
    return PowerModel(
        idle_watts=idle,
        busy_core_watts=slope,
        busy_core_watts_range=ends,
        relative_error=math.sqrt(squares / total * len(rows) / freedom),
        source=source,
    )
