"""How long the steps of a training took, by its metrics: for a report, and for the next plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any


def step_seconds(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median time from the end of a step to that of the next one; None where nothing tells one.

    A step after a validation or a start is left out: what came before it took time as well.

    Args:
        lines: of the metrics of a training.
    """
    ends, validated = [], set()
    for line in lines:
        if line.get("validation_loss") is not None:
            validated.add(line["step"])
        if line.get("ended_unix_seconds") is not None:
            ends.append((line["step"], line["ended_unix_seconds"]))
    between = [
        end - before
        for (last, before), (step, end) in itertools.pairwise(ends)
        if step == last + 1 and end > before and last not in validated
    ]
    return median(between) if between else None
