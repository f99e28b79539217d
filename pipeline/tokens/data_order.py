"""Compute the order in which a training visits the sequences of several streams: a pure function of the step.

A stream is what is mixed at one rate. After n sequences in all, a stream of share p has been visited n*p times, less or
more than one at most: the running sums of the shares are rounded to the nearest and the count of a stream is
the difference of two of them, as in systematic sampling (Madow 1949, https://doi.org/10.1214/aoms/1177729988). That
never falls for a stream with at least one sequence in a batch. The smaller ones share one pool, the last of the sums,
whose count is handed down a Huffman tree (https://doi.org/10.1109/JRPROC.1952.273898): at each node one side gets its
share of the count, rounded to the nearest, and the other the rest. No inner node of such a tree is more than 2/3 of the
one above, so that a small stream is less than two sequences away from its share. All of it in whole numbers, so exact
at any step.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from pipeline.core.training_steps import BatchSchedule
from pipeline.tokens.settings import Mixture, Sampling


class StreamShares:
    """How often each stream was visited after any number of sequences, for constant weights and no smaller batches."""

    def __init__(self, weights: Sequence[Fraction], batch_size: int) -> None:
        denominator = math.lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * denominator) for weight in weights]
        self._total = sum(self._weights)
        chosen = sorted((weight, stream) for stream, weight in enumerate(self._weights) if weight)
        pooled = sum(weight * batch_size < self._total for weight, _ in chosen)
        if 0 < pooled < len(chosen) and sum(weight for weight, _ in chosen[:pooled]) * batch_size < self._total:
            pooled += 1  # this one outweighs the pool, so it stands right below the root and stays within one sequence
        self._large = sorted(stream for _, stream in chosen[pooled:])
        pool = [(sum(weight for weight, _ in chosen[:pooled]))] if pooled else []
        self._sums = list(accumulate([self._weights[stream] for stream in self._large] + pool, initial=0))
        self._splits = self._build_tree([stream for _, stream in chosen[:pooled]])

    def _build_tree(self, streams: list[int]) -> list[tuple[int, int, int]]:
        """The node, left and right child of every split from the root; nodes after the streams are the tree's own."""
        self._nodes = list(self._weights)
        heap = [(self._weights[stream], stream) for stream in streams]
        heapq.heapify(heap)
        splits = []
        while len(heap) > 1:
            (left_weight, left), (right_weight, right) = heapq.heappop(heap), heapq.heappop(heap)
            self._nodes.append(left_weight + right_weight)
            splits.append((len(self._nodes) - 1, left, right))
            heapq.heappush(heap, (self._nodes[-1], splits[-1][0]))
        self._root = heap[0][1] if heap else None
        return splits[::-1]

    def counts(self, sequences: int) -> list[int]:
        """The visits of each stream after this many sequences, (streams,), which are their sum."""
        counts = [0] * len(self._nodes)
        bounds = [(2 * sequences * bound + self._total) // (2 * self._total) for bound in self._sums]
        found = [end - start for start, end in pairwise(bounds)]
        for stream, count in zip(self._large, found, strict=False):
            counts[stream] = count
        if self._root is not None:
            counts[self._root] = found[-1]
        for node, left, right in self._splits:
            twice = 2 * self._nodes[node]
            counts[left] = (2 * counts[node] * self._nodes[left] + self._nodes[node]) // twice
            counts[right] = counts[node] - counts[left]
        return counts[: len(self._weights)]


class StreamOrder:
    """The sequences of each data step, for streams of these sizes; sequences are numbered through all streams.

    `keys` make the order of each stream its own; `phases` are pairs of the first data step and the streams' weights.
    """

    def __init__(
        self, sizes: list[int], keys: list[int], phases: list[tuple[int, list[Fraction]]], batches: BatchSchedule
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.offsets = np.cumsum([0, *sizes], dtype=np.int64)
        self._batches = batches
        self._keys = np.array([key % 2**64 for key in keys], dtype=np.uint64)
        self._batch_key = int(np.bitwise_xor.reduce(self._keys))
        self._starts = [start for start, _ in phases]
        self._shares = [StreamShares(weights, min(batches.batch_sizes)) for _, weights in phases]
        self._before = [[0] * len(sizes)]
        for (start, end), shares in zip(pairwise(self._starts), self._shares, strict=False):
            found = shares.counts(batches.sequences(end) - batches.sequences(start))
            self._before.append([a + b for a, b in zip(self._before[-1], found, strict=True)])

    def counts(self, step: int) -> list[int]:
        """How many sequences of each stream the data steps before this one hold, (streams,)."""
        phase = bisect_right(self._starts, step) - 1
        sequences = self._batches.sequences
        found = self._shares[phase].counts(sequences(step) - sequences(self._starts[phase]))
        return [a + b for a, b in zip(self._before[phase], found, strict=True)]

    def batch(self, step: int) -> Integers:
        """The sequences of a data step, (B,), the streams spread over it; a stream may end one epoch and start next."""
        first, last = (np.array(self.counts(number), dtype=np.int64) for number in (step, step + 1))
        streams = np.repeat(np.arange(len(first)), last - first)
        every = np.arange(len(streams))
        visits = every + (last - np.cumsum(last - first))[streams]
        sizes = self.sizes[streams]
        places = permute(visits % sizes, visits // sizes, sizes, self._keys[streams])
        numbers = self.offsets[streams] + places
        if len(self.sizes) == 1:
            return numbers
        spread: Integers = numbers[permute(every, np.full_like(every, step), len(every), self._batch_key)]
        return spread

    def find_steps(self, sequence: int, steps: int) -> list[int]:
        """The data steps below `steps` that hold a sequence, in order; one is named as often as it holds it."""
        stream = int(np.searchsorted(self.offsets, sequence, side="right")) - 1
        size, total = int(self.sizes[stream]), self.counts(steps)[stream]
        epochs = np.arange(-(-total // size))
        places = np.full_like(epochs, sequence - self.offsets[stream])
        visits = epochs * size + permute(places, epochs, size, self._keys[[stream]], backwards=True)
        return [
            bisect_right(range(steps + 1), visit, key=lambda step: self.counts(step)[stream]) - 1
            for visit in visits[visits < total].tolist()
        ]


# Pseudo-random orders that are computed place by place, with no memory of the places before.
#
# A Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) with the SplitMix64 mixer as round
# function (Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195), on pairs of numbers below any two
# ranges with addition in place of exclusive or, permutes the next larger rectangle; cycle walking (both Black and
# Rogaway 2002, https://doi.org/10.1007/3-540-45760-7_9) brings it down to the size that is wanted.


Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# With few rounds the places of an epoch of five sequences are measurably not equally likely.
ROUNDS = 16


def splitmix64(values: Words) -> Words:
    """SplitMix64: the next state's output for each 64-bit value; a bijection of 64-bit words."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


ROUND_KEYS = splitmix64(np.arange(ROUNDS, dtype=np.uint64))


def permute(
    indices: Integers, epochs: Integers, size: int | Integers, key: int | Words, *, backwards: bool = False
) -> Integers:
    """The place of each index in the pseudo-random order of its epoch, or with `backwards` the index of each place.

    Epochs, sizes (up to 2**62) and keys are one for all indices or one for each; it is a bijection for each.
    """
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), indices.shape).astype(np.uint64)
    keys = np.asarray(key % 2**64 if isinstance(key, int) else key, dtype=np.uint64)
    key_N = splitmix64(
        np.broadcast_to(splitmix64(np.atleast_1d(keys)), indices.shape) ^ np.asarray(epochs).astype(np.uint64)
    )
    # Any widths whose product is not below the size make a bijection; near the root few places lie outside the size.
    heights: Words = np.maximum(np.sqrt(sizes.astype(np.float64)).astype(np.uint64), np.uint64(1))
    widths = (sizes - np.uint64(1)) // heights + np.uint64(1)
    rounds = range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS)
    places = indices.astype(np.uint64)
    walking = np.arange(len(places))
    while len(walking):
        width, height, walking_keys = widths[walking], heights[walking], key_N[walking]
        parts = list(np.divmod(places[walking], width))
        ranges = (height, width)
        for number in rounds:
            changed = number % 2
            # The mixer's upper half times the range, over 2**32: a number below the range, without a division.
            mixed = splitmix64(parts[1 - changed] ^ walking_keys ^ ROUND_KEYS[number]) >> np.uint64(32)
            shift = (mixed * ranges[changed]) >> np.uint64(32)
            moved = parts[changed] + (ranges[changed] - shift if backwards else shift)
            parts[changed] = moved - ranges[changed] * (moved >= ranges[changed])
        found = parts[0] * width + parts[1]
        places[walking] = found
        walking = walking[found >= sizes[walking]]
    return places.astype(np.int64)


# How often a training reads what it has of each source: what its mixture makes of its steps.


Groups = Sequence[Mapping[str, Any]]
"""The groups of a split as an index of tokens has them: source, language and strata by their names, and `tokens`."""


def _mixture_shares(mixture: Mixture, groups: Groups) -> list[float]:
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


def count_epochs(
    groups: Groups, sampling: Sampling, steps: int, batches: BatchSchedule, by: str = "source"
) -> dict[str, float]:
    """Return how many times the tokens of each source are read in so many steps, or of another key of the groups."""
    starts = [*sampling.mixtures(steps), (steps, Mixture())]
    read = dict.fromkeys((group[by] for group in groups), 0.0)
    held = dict.fromkeys(read, 0)
    for group in groups:
        held[group[by]] += group["tokens"]
    for (start, mixture), (end, _) in pairwise(starts):
        for group, share in zip(groups, _mixture_shares(mixture, groups), strict=True):
            read[group[by]] += share * batches.tokens(start, end)
    return {name: read[name] / held[name] for name in sorted(read) if held[name]}


def count_reads(index: Mapping[str, Any], training: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """Return how often a training read its tokens in so many steps: of each source, and of what its mixtures name.

    Args:
        index: that of its token set.
        training: its settings.
    """
    held = index.get("train", {}).get("groups", [])
    if not held or not {"batch_size", "sequence_length"} <= training.keys():
        return []
    sampling = Sampling.model_validate(training.get("sampling") or {})
    batches = BatchSchedule.of(training)
    mixed = [mixture.by for _, mixture in sampling.mixtures(steps) if mixture.weights or mixture.epochs]
    rows = []
    for column in dict.fromkeys(["source", *mixed]):
        times = count_epochs(held, sampling, steps, batches, column)
        for name, read in times.items():
            tokens = sum(group["tokens"] for group in held if group[column] == name)
            rows.append({"column": column, "name": name, "tokens": tokens, "times": read})
    return rows


# The hash of a batch: which tokens stand at which of its places, whichever processes compute them.


_HASH_WORDS = 4


def batch_hash_words(tokens_BT: Integers, first_place: int) -> NDArray[np.float64]:
    """Return what a part of a batch adds to its hash, (4,): whole numbers.

    `tokens_BT` are its sequences with the token after each, (B, T + 1), the first of which stands at `first_place` of
    the batch, counted from 0. A sequence adds the first four 32-bit numbers of SHA-256 of its place (8 bytes) and its
    tokens (4 bytes each), all of them little-endian. In 64 bits of floating point, in which processes add them up, sums
    over less than two million sequences are exact.
    """
    words = np.zeros(_HASH_WORDS)
    for place, tokens_T in enumerate(tokens_BT.astype("<u4"), first_place):
        digest = hashlib.sha256(place.to_bytes(8, "little") + tokens_T.tobytes()).digest()
        words += np.frombuffer(digest, dtype="<u4", count=_HASH_WORDS)
    return words


def batch_hash(words: NDArray[np.float64]) -> str:
    """Return the hash of a batch from the sum of its parts: each of the four modulo 2**32, in hexadecimal digits."""
    return "".join(f"{int(word) % 2**32:08x}" for word in words)
