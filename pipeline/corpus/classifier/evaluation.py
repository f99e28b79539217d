"""What a classifier is worth: precision, recall, F1 and the area under its curve, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from pipeline.core.statistics import CONFIDENCE, Ratio, share
from pipeline.corpus.classifier.training import Booleans, Floats

THRESHOLD = 0.5


def area(scores: Floats, good: Booleans) -> Ratio:
    """Return the probability that a good text has a higher score than a bad one (equal ones count half).

    Its 95 % interval has the values from which it is not further than their standard error allows (Hanley and McNeil,
    Radiology 143, 1982), as Wilson's of a share; so it has a width where no pair is wrong, too.
    """
    ordered, above = np.sort(scores[~good]), scores[good]
    below = np.searchsorted(ordered, above, "left") + np.searchsorted(ordered, above, "right")
    value = float(below.sum()) / 2 / (len(above) * len(ordered))
    ones, others, z = len(above) - 1, len(ordered) - 1, float(ndtri((1 + CONFIDENCE) / 2))

    def beyond(sign: int) -> Callable[[float], float]:
        def reach(a: float) -> float:
            variance = a * (1 - a) + ones * (a / (2 - a) - a * a) + others * (2 * a * a / (1 + a) - a * a)
            return z * math.sqrt(variance / ((ones + 1) * (others + 1))) - sign * (value - a)

        return reach

    least, most = 1e-9, 1 - 1e-9
    low = 0.0 if value <= least else float(brentq(beyond(1), 0.0, min(value, most)))
    high = 1.0 if value >= most else float(brentq(beyond(-1), max(value, least), 1.0))
    return Ratio(value, low, high)


def _share(hits: Booleans) -> dict[str, Any] | None:
    return share(hits, np.ones(len(hits)))._asdict() if len(hits) else None


def figures(scores: Floats, good: Booleans) -> dict[str, Any]:
    """Return precision and recall of the good texts, F1 and area, each with its interval; none where nothing is told.

    A text is told to be good from THRESHOLD on.
    """
    told = scores >= THRESHOLD
    either = told | good
    overlap = share((told & good)[either], np.ones(int(either.sum())))
    return {
        "precision": _share(good[told]),
        "recall": _share(told[good]),
        "f1": overlap.of(lambda shared: 2 * shared / (1 + shared))._asdict(),
        "auc": area(scores, good)._asdict(),
    }
