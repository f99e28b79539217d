"""How long the steps of a training took, by its metrics: for a report, and for the next plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any


def step_seconds(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median time from the end of a step to that of the next one; None of fewer than two steps.

    Args:
        lines: of the metrics of a training.
    """
    ends = [(line["step"], line["ended_unix_seconds"]) for line in lines if line.get("ended_unix_seconds") is not None]
    between = [
        end - before for (last, before), (step, end) in itertools.pairwise(ends) if step == last + 1 and end > before
    ]
    return median(between) if between else None
