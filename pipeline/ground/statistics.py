"""Figures of a sample with the interval of what they would be in all that the sample was drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """A mean with its 95 % interval; without one where too few units tell how much it moves."""

    value: float
    low: float | None
    high: float | None

    def of(self, function: Callable[[float], float]) -> Ratio:
        """Return a growing function of the mean, with its interval."""
        low, high = (end if end is None else function(end) for end in (self.low, self.high))
        return Ratio(function(self.value), low, high)


def _reach_of_t(freedom: float) -> float:
    """Return how many errors the interval reaches to each side, by Student's distribution."""
    from scipy.special import stdtrit  # here, for it loads for a third of a second in every process that trains

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def ratio(over_D: NDArray[Any], under_D: NDArray[Any]) -> Ratio:
    """Return the sum of one figure of documents over the sum of another one, such as nats over tokens.

    The documents are the units that are drawn (tokens of one document are alike), so the interval is Student's around
    the ratio, with the jackknife's variance of it: each document is left out once (Cochran, Sampling Techniques,
    1977, section 6.17). A few long documents tell as little as few documents, so the degrees of freedom follow from
    Kish's effective number of them (Survey Sampling, 1965, section 11.7).
    """
    over, under, count = float(over_D.sum()), float(under_D.sum()), len(over_D)
    if count < 2 or not (under - under_D > 0).all():
        return Ratio(over / under, None, None)
    without_D = (over - over_D) / (under - under_D)
    error = math.sqrt((count - 1) / count * float(((without_D - without_D.mean()) ** 2).sum()))
    freedom = max(under**2 / float((under_D.astype(np.float64) ** 2).sum()) - 1, 1)
    reach = _reach_of_t(freedom) * error
    return Ratio(over / under, over / under - reach, over / under + reach)


def share(hits_C: NDArray[Any], units_C: NDArray[Any]) -> Ratio:
    """Return the share of units that are hits, of clusters of units, (C,); each unit may be a cluster of its own.

    Units of one cluster may be alike, such as questions about one text. The interval is Wilson's (J. Am. Stat. Assoc.
    22, 1927), which holds near 0 and 1 too, for as many units as would tell as much if none were alike: the design
    effect by the variance between clusters (Korn and Graubard, Survey Methodology 24, 1998), with Student's t.
    """
    hits, units, clusters = float(hits_C.sum()), float(units_C.sum()), len(units_C)
    value = hits / units
    if clusters < 2:
        return Ratio(value, None, None)
    effective = float(clusters)  # where all or none are hits, nothing tells how alike they are
    if 0 < value < 1:
        between = clusters / (clusters - 1) * float(((hits_C - value * units_C) ** 2).sum()) / units**2
        effective = min(units, units * value * (1 - value) / (units - 1) / between) if between else units
    freedom = max(units**2 / float((units_C.astype(np.float64) ** 2).sum()) - 1, 1)
    t = _reach_of_t(freedom)
    middle, scale = value + t**2 / (2 * effective), 1 + t**2 / effective
    reach = t * math.sqrt(value * (1 - value) / effective + (t / (2 * effective)) ** 2)
    return Ratio(value, max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale))
