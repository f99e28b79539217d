"""Confidence intervals of means, ratios and proportions."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_LEVEL = 0.95
RESAMPLES = 1999
MAX_BOOTSTRAP_UNITS = 1000  # units of a bootstrap of ratios
ROUNDING_TOLERANCE = 1e-12  # standard errors that are less than this share of a value are rounding errors

COVERAGE_SIZES = (2, 3, 5, 10, 20, 40, 80, 150, 300)
SIMULATED_COVERAGE = {
    "mean": (0.9, 0.89, 0.88, 0.91, 0.92, 0.93, 0.94, 0.95, 0.95),
    "share": (1.0, 0.99, 0.91, 0.94, 0.93, 0.94, 0.94, 0.94, 0.94),
    "difference of shares": (1.0, 0.99, 1.0, 0.94, 0.95, 0.95, 0.95, 0.94, 0.94),
    "corpus-level": (0.88, 0.91, 0.92, 0.93, 0.93, 0.94, 0.95, 0.94, 0.95),
    "function": (0.92, 0.88, 0.86, 0.91, 0.93, 0.93, 0.96, 0.92, 0.93),
}
"""Simulated coverage by number of units: the lowest of `benchmarks/interval_coverage.py`."""


class ConfidenceInterval(NamedTuple):
    """A mean with its 95 % interval; without an interval if there are too few units."""

    value: float
    low: float | None
    high: float | None

    def apply_increasing_function(self, function: Callable[[float], float]) -> ConfidenceInterval:
        """Apply an increasing function to the mean and its interval."""
        low, high = (end if end is None else function(end) for end in (self.low, self.high))
        return ConfidenceInterval(function(self.value), low, high)


def student_t_quantile(freedom: float) -> float:
    """Return the quantile of Student's t for a two-sided 95 % interval."""
    from scipy.special import stdtrit  # here, for it loads for a third of a second in every process that trains

    return float(stdtrit(freedom, (1 + CONFIDENCE_LEVEL) / 2))


def simulated_coverage(kind: str, units: float) -> float:
    """Return the simulated coverage of a kind of interval for the next smaller number of units."""
    place = int(np.searchsorted(COVERAGE_SIZES, units + ROUNDING_TOLERANCE * units, side="right")) - 1
    return SIMULATED_COVERAGE[kind][max(place, 0)]


def assign_cluster_indices(clusters: Iterable[Hashable]) -> NDArray[np.int64]:
    """Return the index of the cluster of each item; clusters are numbered by first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)


def effective_sample_size(unit_D: NDArray[Any]) -> float:
    """Return Kish's effective number of units of unequal size (Survey Sampling, 1965, section 11.7)."""
    return float(unit_D.sum()) ** 2 / float((unit_D.astype(np.float64) ** 2).sum())


def draw_resamples(random: np.random.Generator, units: int, resamples: int) -> NDArray[np.float64]:
    """Return how often each resample of a bootstrap draws each unit, (resamples, units)."""
    places = random.integers(units, size=(resamples, units)) + units * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * units).reshape(resamples, units).astype(np.float64)


@lru_cache(maxsize=4)
def _cached_resamples(units: int) -> NDArray[np.float64]:
    return draw_resamples(np.random.default_rng(0), units, RESAMPLES)


def bootstrap_sums(statistic_DS: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sums of each statistic over the units of each resample, (RESAMPLES, S); always of the same draws.

    The sums are added in one order on every machine, which a product of matrices by a BLAS is not.
    """
    units, random = len(statistic_DS), np.random.default_rng(0)
    if units <= MAX_BOOTSTRAP_UNITS:
        return np.asarray(np.einsum("bd,ds->bs", _cached_resamples(units), statistic_DS.astype(np.float64)))
    blocks = np.array_split(np.arange(RESAMPLES), RESAMPLES * units // 10**7 + 1)
    drawn = (draw_resamples(random, units, len(block)) for block in blocks)
    return np.concatenate([np.einsum("bd,ds->bs", each, statistic_DS.astype(np.float64)) for each in drawn])


def ratio_interval(over_D: NDArray[Any], under_D: NDArray[Any]) -> ConfidenceInterval:
    """Return the sum of one figure of documents over the sum of another one, such as nats over tokens.

    Documents are resampled, because tokens of one document are correlated. The interval is the studentized
    bootstrap's (bootstrap-t; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5): with values
    that are skewed, it reaches further to their long side. Neither side is shorter than Student's, and the standard
    error is the jackknife's (Cochran, Sampling Techniques, 1977, section 6.17). A few long documents carry as
    little information as few documents, so the degrees of freedom follow from Kish's effective number. For more than
    MAX_BOOTSTRAP_UNITS documents Student's interval is returned, which the bootstrap no longer changes.
    """
    over, under, count = float(over_D.sum()), float(under_D.sum()), len(over_D)
    if count < 2 or not (under - under_D > 0).all():
        return ConfidenceInterval(over / under, None, None)
    without_D = (over - over_D) / (under - under_D)
    error = math.sqrt((count - 1) / count * float(((without_D - without_D.mean()) ** 2).sum()))
    student = student_t_quantile(max(effective_sample_size(under_D) - 1, 1))
    below = above = student
    if count <= MAX_BOOTSTRAP_UNITS and error > ROUNDING_TOLERANCE * abs(over / under):
        longer = student / student_t_quantile(count - 1)
        left, right = _bootstrap_t_quantiles(over_D.astype(np.float64), under_D.astype(np.float64))
        below, above = max(student, longer * right), max(student, -longer * left)
    return ConfidenceInterval(over / under, over / under - below * error, over / under + above * error)


def _bootstrap_t_quantiles(over_D: NDArray[np.float64], under_D: NDArray[np.float64]) -> tuple[float, float]:
    """Return the quantiles of (ratio of a resample - ratio) / its standard error that leave 2.5 % on each side.

    The errors are those of the linearized ratio. One that is less than a quarter of the sample's, as of resamples that
    draw few different units, counts as a quarter.
    """
    count, value = len(over_D), float(over_D.sum() / under_D.sum())
    scale = count / (count - 1)
    columns = (over_D, under_D, over_D**2, over_D * under_D, under_D**2)
    over_B, under_B, squares_B, products_B, under_squares_B = bootstrap_sums(np.stack(columns, axis=1)).T
    value_B = over_B / under_B
    square_B = scale * (squares_B - 2 * value_B * products_B + value_B**2 * under_squares_B)
    error_B = np.sqrt(np.maximum(square_B, 0.0)) / under_B
    error = math.sqrt(scale * float(((over_D - value * under_D) ** 2).sum())) / float(under_D.sum())
    t_B = np.sort((value_B - value) / np.maximum(error_B, error / 4))
    place = round((RESAMPLES + 1) * (1 - CONFIDENCE_LEVEL) / 2) - 1
    return float(t_B[place]), float(t_B[-1 - place])


def proportion_interval(hits_C: NDArray[Any], units_C: NDArray[Any]) -> ConfidenceInterval:
    """Return the share of units that are hits, of clusters of units, (C,); each unit may be a cluster of its own.

    Units of one cluster may be correlated, such as questions about one text. The interval is Wilson's (J. Am. Stat.
    Assoc. 22, 1927) with two changes, after Korn and Graubard (Survey Methodology 24, 1998): its n is the effective
    number of units, those over the design effect by the variance between clusters, and Student's t takes the place of
    the normal's 1.96. So it is wider than Wilson's own, and as that holds near 0 and 1 too.
    """
    hits, units, clusters = float(hits_C.sum()), float(units_C.sum()), len(units_C)
    value = hits / units
    if clusters < 2:
        return ConfidenceInterval(value, None, None)
    size = float(clusters)  # if all or none are hits, the correlation is unknown
    if 0 < value < 1:
        between = clusters / (clusters - 1) * float(((hits_C - value * units_C) ** 2).sum()) / units**2
        size = min(units, units * value * (1 - value) / (units - 1) / between) if between else units
    t = student_t_quantile(max(effective_sample_size(units_C) - 1, 1))
    middle, scale = value + t**2 / (2 * size), 1 + t**2 / size
    reach = t * math.sqrt(value * (1 - value) / size + (t / (2 * size)) ** 2)
    return ConfidenceInterval(value, max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale))
