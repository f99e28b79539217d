"""Forecast energy and time of a larger run from small ones, with 95 % intervals: of a step, a chain, or remaining jobs.

A step costs `start + slope × work`, with work in any unit (bytes are better than documents, whose length differs).
Three errors have a size each:

- runs differ in proportion, by node and time (RUN_ERROR);
- starts differ much more, by cold or warm caches (START_ERROR, as a share of the start): a run that is mostly start
  says little about the slope;
- beyond the largest measured run, cost may grow as work to a power that is not quite 1 (EXPONENT_ERROR is the standard
  deviation of that power).

The runs' own scatter is pooled with RUN_ERROR, as two to four runs cannot estimate it. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.core.confidence_intervals import student_t_quantile
from pipeline.core.errors import InputError

# Standard deviation, as a share, of the energy of runs of the same work on nodes of one kind, and the degrees of
# freedom that it is known with: two steps on 100,000 documents, ten runs of more than a minute alone on a genoa node of
# Snellius (measured with EAR: github.com/kruuusher13/GPT-NL-Energy-Estimation-, measurements_raw.csv).
RUN_ERROR = 0.053
RUN_ERROR_FREEDOM = 8
# Standard deviation of the cost of a start: there, it took 2.2 s and 8.9 s in two runs of the same 1,000 documents.
START_ERROR = 0.6
# Standard deviation of the exponent of work. A step that sorts, n log n, has the exponent 1 + 1 / ln n: 1.08 between
# 10⁵ and 10⁶ documents, within two standard deviations.
EXPONENT_ERROR = 0.05
# Between jobs of one step, per byte, and the degrees of freedom that it counts for: 1 to 22 % in steps of 16 and 32
# jobs of three corpora, by their seconds: the same repository, measurements_raw_generalized.csv.
JOB_ERROR = 0.12
JOB_ERROR_FREEDOM = 4
# The largest half-width of an interval, in powers of e: beyond a factor of 150 a forecast is useless anyway.
LARGEST_LOG_INTERVAL = 5.0


class CostRange(NamedTuple):
    value: float
    low: float
    high: float


class CostPrediction(NamedTuple):
    """Seconds and joules, with the 95 % intervals of the joules and of the seconds."""

    seconds: float
    joules: float
    low: float
    high: float
    seconds_low: float
    seconds_high: float


class ForecastJob(NamedTuple):
    work: float
    seconds: float
    joules: float


def relative_interval(joules: float, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval of joules relative to them, in powers of e."""
    return math.log(min(max(low / joules, 1e-3), 1.0)), math.log(max(high / joules, 1.0))


def add_independent_error(forecast: CostRange, ends: tuple[float, float]) -> CostRange:
    """Add the independent error of the joules that a forecast is based on, given by its relative ends."""
    value = forecast.value
    if value == 0:
        return forecast
    down, up = (math.hypot(math.log(forecast[side] / value), ends[side - 1]) for side in (1, 2))
    return CostRange(value, value * math.exp(-down), value * math.exp(up))


class _Estimate(NamedTuple):
    """A value with absolute standard deviations: its own, and `bend`, by the exponent that all steps share."""

    value: float
    own: float
    bend: float
    freedom: float

    def range(self) -> CostRange:
        """Return the 95 % interval; it is multiplicative, so that no cost is below 0."""
        if self.value == 0:
            return CostRange(0.0, 0.0, 0.0)
        squares = (self.own / self.value) ** 2, (self.bend / self.value) ** 2
        # For the sum of an estimated and a known variance: Satterthwaite 1946.
        freedom = self.freedom * (sum(squares) / squares[0]) ** 2
        factor = math.exp(min(student_t_quantile(freedom) * math.sqrt(sum(squares)), LARGEST_LOG_INTERVAL))
        return CostRange(self.value, self.value / factor, self.value * factor)


@dataclass(frozen=True)
class CostLine:
    """Cost = start + slope × work, fitted to few runs."""

    start: float
    slope: float
    """Cost of one unit of work."""
    variance: float
    """Of the cost of a run, as a share of the squares that weigh it."""
    freedom: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    """Of the start and of the cost of the largest work, by `variance`."""
    largest_work: float

    @classmethod
    def fit(cls, work: Sequence[float], cost: Sequence[float]) -> CostLine:
        """Fit by least squares, weighted by the errors above.

        A negative slope becomes 0, a negative start 0.
        """
        largest = max(work)
        x, y = np.asarray(work, float) / largest, np.asarray(cost, float)
        both = np.column_stack([np.ones_like(x), x])
        start, slope, weights, free = float(y.min()), 0.0, np.ones_like(y), [0, 1]
        for _ in range(50):  # the weights depend on the line, which moves little after three rounds
            expected = start + slope * x if slope else y
            weights = 1 / (expected**2 + (START_ERROR / RUN_ERROR * start) ** 2)
            before, free = (start, slope), [0, 1]
            for _ in range(2):  # again without a negative parameter
                line = np.zeros(2)
                columns = both[:, free] * np.sqrt(weights)[:, None]
                line[free] = np.linalg.lstsq(columns, y * np.sqrt(weights))[0]
                start, slope = (float(value) for value in line)
                free = [0] if slope < 0 else [1] if start < 0 else free
            if np.allclose((start, slope), before, rtol=1e-9, atol=0.0):
                break
        # Of both parameters, also where one is set to 0, as its value is uncertain.
        covariance = np.linalg.inv(both.T @ (both * weights[:, None]))
        squares = float(weights @ (y - start - slope * x) ** 2)
        freedom = len(y) - len(free) + RUN_ERROR_FREEDOM
        return cls(
            start=start,
            slope=slope / largest,
            variance=(RUN_ERROR_FREEDOM * RUN_ERROR**2 + squares) / freedom,
            freedom=freedom,
            covariance=tuple(tuple(map(float, row)) for row in covariance),  # type: ignore[arg-type]
            largest_work=largest,
        )

    def at(self, work: float) -> _Estimate:
        """Estimate the cost of another run."""
        value = self.start + self.slope * work
        here = np.array([1.0, work / self.largest_work])
        line = float(here @ np.array(self.covariance) @ here)
        one_run = value**2 + (START_ERROR / RUN_ERROR * self.start) ** 2
        beyond = math.log(max(work / self.largest_work, 1.0))
        own = math.sqrt(self.variance * (line + one_run))
        return _Estimate(value, own, self.slope * work * EXPONENT_ERROR * beyond, self.freedom)


@dataclass(frozen=True)
class CostForecast:
    """The forecast of a step from small runs of it."""

    seconds: CostLine
    joules: CostLine

    @classmethod
    def fit(cls, observations: Sequence[tuple[float, float, float]]) -> CostForecast:
        """Fit the forecast of a step to (work, seconds, joules) of its runs, each of the whole step.

        Raises:
            InputError: no two runs of different work, or a figure that is not above 0.
        """
        for number, row in enumerate(observations, start=1):
            if not all(math.isfinite(value) and value > 0 for value in row):
                raise InputError(
                    f"calibration run {number} says {row[0]:g} of work, {row[1]:g} s and {row[2]:g} J: all three must "
                    "be above 0; leave the run out"
                )
        if len({row[0] for row in observations}) < 2:
            raise InputError(
                "the calibration runs are all of one size, which cannot separate start and work: make one more, ten "
                "times as large or small"
            )
        work, seconds, joules = zip(*observations, strict=True)
        return cls(CostLine.fit(work, seconds), CostLine.fit(work, joules))

    def predict(self, work: float) -> CostPrediction:
        """Predict seconds and joules of a run, each with its 95 % interval; a run without work still starts.

        Raises:
            InputError: the work is below 0.
        """
        if not (math.isfinite(work) and work >= 0):
            raise InputError(f"a forecast of {work:g} of work: give 0 or more")
        joules, seconds = self.joules.at(work).range(), self.seconds.at(work).range()
        return CostPrediction(seconds.value, *joules, seconds.low, seconds.high)


def _sum_estimates(parts: Sequence[_Estimate]) -> CostRange:
    """Return the sum: own deviations add up in quadrature, the shared exponent's linearly."""
    own = sum(part.own**2 for part in parts)
    # The larger a part's share of the variance, the more its own degrees of freedom count: Satterthwaite 1946.
    freedom = own**2 / sum(part.own**4 / part.freedom for part in parts)
    return _Estimate(
        sum(part.value for part in parts), math.sqrt(own), sum(part.bend for part in parts), freedom
    ).range()


def forecast_steps(forecasts: Mapping[str, CostForecast], work: Mapping[str, float]) -> CostPrediction:
    """Forecast seconds and joules of consecutive steps, each with its 95 % interval.

    Runs of different steps are assumed independent; their exponents are assumed equal, as all steps get the same data.

    Raises:
        InputError: a step has no forecast, or there is no step.
    """
    missing = [step for step in work if step not in forecasts]
    if missing or not work:
        raise InputError(f"no calibration runs of {', '.join(missing) or 'any step'}: a chain needs them of each step")
    joules = _sum_estimates([forecasts[step].joules.at(amount) for step, amount in work.items()])
    seconds = _sum_estimates([forecasts[step].seconds.at(amount) for step, amount in work.items()])
    return CostPrediction(seconds.value, *joules, seconds.low, seconds.high)


def forecast_remaining_jobs(done: Sequence[ForecastJob], to_do: Sequence[float]) -> CostPrediction:
    """Forecast seconds and joules, both summed over jobs, of a step's remaining jobs.

    The cost of a unit of work is that of all finished jobs together. Their scatter is pooled with JOB_ERROR.

    Args:
        done: the finished jobs.
        to_do: the work of each remaining job.

    Raises:
        InputError: no job is done, or one did no work.
    """
    if not done or any(job.work <= 0 for job in done):
        raise InputError("no job of the step has done any work yet: forecast it from calibration runs instead")
    if not sum(to_do):
        return CostPrediction(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    joules = _extrapolate([job.work for job in done], [job.joules for job in done], to_do)
    seconds = _extrapolate([job.work for job in done], [job.seconds for job in done], to_do)
    return CostPrediction(seconds.value, *joules, seconds.low, seconds.high)


def _extrapolate(work: Sequence[float], cost: Sequence[float], to_do: Sequence[float]) -> CostRange:
    """Return the cost of the remaining jobs; errors of jobs are proportional to their work, and independent."""
    rate = sum(cost) / sum(work)  # of a unit of work
    if rate == 0:
        return CostRange(0.0, 0.0, 0.0)
    squares = sum((one / (rate * amount) - 1) ** 2 for amount, one in zip(work, cost, strict=True))
    freedom = len(work) - 1 + JOB_ERROR_FREEDOM
    variance = (JOB_ERROR_FREEDOM * JOB_ERROR**2 + squares) / freedom
    total = sum(to_do)
    of_the_rate = sum(amount**2 for amount in work) / sum(work) ** 2
    of_the_jobs = sum(amount**2 for amount in to_do) / total**2
    value = rate * total
    return _Estimate(value, value * math.sqrt(variance * (of_the_rate + of_the_jobs)), 0.0, freedom).range()
