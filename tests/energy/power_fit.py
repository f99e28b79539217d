"""The power model of a node fitted to exclusive jobs, for tests and benchmarks/power_model.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.power_model import PowerModel

# A shorter row is weighted by its length: a meter that is read every few seconds is inaccurate for it.
STEADY_SECONDS = 60.0
# The first busy core wakes up the processors and draws tens of watts; it does not predict the next ones.
LEAST_CORES_FOR_SLOPE = 4.0


class WattRange(NamedTuple):
    """A figure that was not measured here: a value with lower and upper bound."""

    value: float
    low: float
    high: float


class ObservedPower(NamedTuple):
    """The measured power of an exclusive node with one job: mean watts over the given seconds."""

    busy_cores: float
    watts: float
    seconds: float


def fit_power_model(
    rows: Sequence[ObservedPower], *, source: str, busy_core_watts: WattRange | None = None
) -> PowerModel:
    """Fit the model of a kind of node to the measured power of exclusive nodes.

    Weighted least squares: a row of less than a minute weighs less. With fewer than four busy cores in every row,
    waking up the node hides the watts of a core: they are `busy_core_watts`, and the rows give idle power alone.
    `relative_error` is the standard deviation of the residuals, with the same weights and degrees of freedom removed.

    Raises:
        InputError: too few rows, an invalid row, or no row with enough busy cores.
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
