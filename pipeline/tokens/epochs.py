"""How often a training reads what it has of each source: what its mixture makes of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pipeline.core.ramp import Batches
from pipeline.tokens.settings import Mixture, Sampling

Groups = Sequence[Mapping[str, Any]]
"""The groups of a split as an index of tokens has them: source, language and strata by their names, and `tokens`."""


def _shares(mixture: Mixture, groups: Groups) -> list[float]:
    """Return the part of a batch that each group fills under a mixture."""
    wanted = []
    for group in groups:
        size = group["tokens"]
        if mixture.weights:  # shared by the groups of one name, by their sizes
            alike = sum(other["tokens"] for other in groups if other[mixture.by] == group[mixture.by])
            wanted.append(mixture.weights.get(group[mixture.by], 0.0) * size / alike if alike else 0.0)
        elif mixture.epochs:
            wanted.append(mixture.epochs.get(group[mixture.by], 1.0) * size)
        else:
            wanted.append(float(size))
    whole = sum(wanted)
    return [amount / whole if whole else 0.0 for amount in wanted]


def epochs(groups: Groups, sampling: Sampling, steps: int, batches: Batches, by: str = "source") -> dict[str, float]:
    """Return how many times the tokens of each source are read in so many steps, or of another key of the groups."""
    starts = [*sampling.mixtures(steps), (steps, Mixture())]
    read = dict.fromkeys((group[by] for group in groups), 0.0)
    held = dict.fromkeys(read, 0)
    for group in groups:
        held[group[by]] += group["tokens"]
    for (start, mixture), (end, _) in pairwise(starts):
        for group, share in zip(groups, _shares(mixture, groups), strict=True):
            read[group[by]] += share * batches.tokens(start, end)
    return {name: read[name] / held[name] for name in sorted(read) if held[name]}


def read_times(index: Mapping[str, Any], training: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """Return how often a training read its tokens in so many steps: of each source, and of what its mixtures name.

    Args:
        index: that of its token set.
        training: its settings.
    """
    held = index.get("train", {}).get("groups", [])
    if not held or not {"batch_size", "sequence_length"} <= training.keys():
        return []
    sampling = Sampling.model_validate(training.get("sampling") or {})
    batches = Batches.of(training)
    mixed = [mixture.by for _, mixture in sampling.mixtures(steps) if mixture.weights or mixture.epochs]
    rows = []
    for column in dict.fromkeys(["source", *mixed]):
        times = epochs(held, sampling, steps, batches, column)
        for name, read in times.items():
            tokens = sum(group["tokens"] for group in held if group[column] == name)
            rows.append({"column": column, "name": name, "tokens": tokens, "times": read})
    return rows
