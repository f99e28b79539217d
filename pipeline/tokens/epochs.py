"""How often a training reads what it has of each source: what its mixture makes of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pipeline.tokens.settings import Mixture, Sampling

Group = tuple[str, str]


def _shares(mixture: Mixture, tokens: Mapping[Group, int]) -> dict[Group, float]:
    """Return the part of a batch that each group (source and language) fills under a mixture."""
    place = ("source", "language").index(mixture.by)
    wanted = {}
    for group, size in tokens.items():
        name = group[place]
        if mixture.weights:  # shared by the groups of one name, by their sizes
            alike = sum(other for key, other in tokens.items() if key[place] == name)
            wanted[group] = mixture.weights.get(name, 0.0) * size / alike if alike else 0.0
        else:
            wanted[group] = mixture.epochs.get(name, 1.0) * size
    whole = sum(wanted.values())
    return {group: amount / whole if whole else 0.0 for group, amount in wanted.items()}


def epochs(tokens: Mapping[Group, int], sampling: Sampling, steps: int, tokens_per_step: int) -> dict[str, float]:
    """Return for each source how many times its tokens are read in so many steps.

    Args:
        tokens: those of each group, source and language, in the training split.
    """
    starts = [*sampling.mixtures(steps), (steps, Mixture())]
    read = dict.fromkeys(tokens, 0.0)
    for (start, mixture), (end, _) in pairwise(starts):
        for group, share in _shares(mixture, tokens).items():
            read[group] += share * (end - start) * tokens_per_step
    sources = sorted({source for source, _ in tokens})
    held = {name: sum(size for (source, _), size in tokens.items() if source == name) for name in sources}
    return {
        name: sum(amount for (source, _), amount in read.items() if source == name) / held[name]
        for name in sources
        if held[name]
    }
