"""Computes the order in which a training visits the sequences of several streams, as a pure function of the step.

A stream has one mixing rate. After n sequences in total, a stream of share p was visited n*p times, within one visit:
cumulative shares are rounded to the nearest, and the count of a stream is the difference of two of them, as in
systematic sampling (Madow 1949, https://doi.org/10.1214/aoms/1177729988). This count never decreases for a stream with
at least one sequence per batch. Smaller streams share one pool, the last cumulative share. A Huffman tree
(https://doi.org/10.1109/JRPROC.1952.273898) distributes the count of the pool: at each node one child gets its share of
the count, rounded to the nearest, and the other the rest. No inner node is more than 2/3 of its parent, so a small
stream is within two sequences of its share. All arithmetic uses integers, so counts are exact at any step.
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

from pipeline.core.batch_schedule import BatchSchedule
from pipeline.tokens.settings import Mixture, Sampling


class StreamShares:
    """The visits of each stream after any number of sequences, for constant weights and a minimum batch size."""

    def __init__(self, weights: Sequence[Fraction], batch_size: int) -> None:
        denominator = math.lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * denominator) for weight in weights]
        self._total = sum(self._weights)
        chosen = sorted((weight, stream) for stream, weight in enumerate(self._weights) if weight)
        pooled = sum(weight * batch_size < self._total for weight, _ in chosen)
        if 0 < pooled < len(chosen) and sum(weight for weight, _ in chosen[:pooled]) * batch_size < self._total:
            pooled += 1  # it outweighs the pool, so it is a child of the root and stays within one sequence
        self._large = sorted(stream for _, stream in chosen[pooled:])
        pool = [(sum(weight for weight, _ in chosen[:pooled]))] if pooled else []
        self._sums = list(accumulate([self._weights[stream] for stream in self._large] + pool, initial=0))
        self._splits = self._build_tree([stream for _, stream in chosen[:pooled]])

    def _build_tree(self, streams: list[int]) -> list[tuple[int, int, int]]:
        """Return (node, left, right) of every split from the root; nodes numbered after the streams are inner nodes."""
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

    def count_sequences_by_stream(self, sequences: int) -> list[int]:
        """Return the visits of each stream after this many sequences, (streams,); their sum is `sequences`."""
        counts = [0] * len(self._nodes)
        bounds = [(2 * sequences * bound + self._total) // (2 * self._total) for bound in self._sums]
        stream_counts = [end - start for start, end in pairwise(bounds)]
        for stream, count in zip(self._large, stream_counts, strict=False):
            counts[stream] = count
        if self._root is not None:
            counts[self._root] = stream_counts[-1]
        for node, left, right in self._splits:
            twice = 2 * self._nodes[node]
            counts[left] = (2 * counts[node] * self._nodes[left] + self._nodes[node]) // twice
            counts[right] = counts[node] - counts[left]
        return counts[: len(self._weights)]


class StreamOrder:
    """The sequences of each data step; sequences are numbered consecutively through all streams.

    Args:
        sizes: the number of sequences of each stream.
        keys: a key per stream for its permutation.
        phases: pairs of the first data step and the weights of the streams.
        batches: the batch sizes by step.
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
            counts = shares.count_sequences_by_stream(batches.count_sequences(end) - batches.count_sequences(start))
            self._before.append([a + b for a, b in zip(self._before[-1], counts, strict=True)])

    def count_sequences_before(self, step: int) -> list[int]:
        """Return the number of sequences of each stream in the data steps before this one, (streams,)."""
        phase = bisect_right(self._starts, step) - 1
        sequences = self._batches.count_sequences
        stream_counts = self._shares[phase].count_sequences_by_stream(sequences(step) - sequences(self._starts[phase]))
        return [a + b for a, b in zip(self._before[phase], stream_counts, strict=True)]

    def batch_sequences_of_all_streams(self, step: int) -> Integers:
        """Return the sequences of a data step, (B,), with streams shuffled; it may cross epochs of a stream."""
        first, last = (np.array(self.count_sequences_before(number), dtype=np.int64) for number in (step, step + 1))
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
        """Return the data steps below `steps` with a sequence, in order, repeated if a step has it repeatedly."""
        stream = int(np.searchsorted(self.offsets, sequence, side="right")) - 1
        size, total = int(self.sizes[stream]), self.count_sequences_before(steps)[stream]
        epochs = np.arange(-(-total // size))
        places = np.full_like(epochs, sequence - self.offsets[stream])
        visits = epochs * size + permute(places, epochs, size, self._keys[[stream]], backwards=True)
        return [
            bisect_right(range(steps + 1), visit, key=lambda step: self.count_sequences_before(step)[stream]) - 1
            for visit in visits[visits < total].tolist()
        ]


# Stateless pseudo-random permutations.
#
# A Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) with SplitMix64 as round function (Steele,
# Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195) permutes a rectangle of at least the wanted size, with
# addition instead of exclusive or. Cycle walking reduces it to the size (both: Black and Rogaway 2002,
# https://doi.org/10.1007/3-540-45760-7_9).


Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# With fewer rounds, the positions in an epoch of five sequences are measurably not uniform.
ROUNDS = 16


def splitmix64(values: Words) -> Words:
    """Return the SplitMix64 output for each 64-bit value, a bijection of 64-bit words."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


ROUND_KEYS = splitmix64(np.arange(ROUNDS, dtype=np.uint64))


def permute(
    indices: Integers, epochs: Integers, size: int | Integers, key: int | Words, *, backwards: bool = False
) -> Integers:
    """Return the position of each index in the pseudo-random order of its epoch; with `backwards`, the inverse.

    Epochs, sizes (up to 2**62) and keys are shared by all indices or given for each.
    """
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), indices.shape).astype(np.uint64)
    keys = np.asarray(key % 2**64 if isinstance(key, int) else key, dtype=np.uint64)
    key_N = splitmix64(
        np.broadcast_to(splitmix64(np.atleast_1d(keys)), indices.shape) ^ np.asarray(epochs).astype(np.uint64)
    )
    # Any width and height with a product of at least the size give a bijection; near the square root few are outside.
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
            # The upper half of the hash times the range, over 2**32: a number below the range without division.
            mixed = splitmix64(parts[1 - changed] ^ walking_keys ^ ROUND_KEYS[number]) >> np.uint64(32)
            shift = (mixed * ranges[changed]) >> np.uint64(32)
            moved = parts[changed] + (ranges[changed] - shift if backwards else shift)
            parts[changed] = moved - ranges[changed] * (moved >= ranges[changed])
        candidates = parts[0] * width + parts[1]
        places[walking] = candidates
        walking = walking[candidates >= sizes[walking]]
    return places.astype(np.int64)


Groups = Sequence[Mapping[str, Any]]
"""The groups of a split in an index of tokens: source, language and strata by name, and `tokens`."""


def _mixture_shares(mixture: Mixture, groups: Groups) -> list[float]:
    wanted = []
    for group in groups:
        size = group["tokens"]
        if mixture.weights:  # shared by the groups of one name, by their sizes
            same_name = sum(other["tokens"] for other in groups if other[mixture.by] == group[mixture.by])
            wanted.append(mixture.weights.get(group[mixture.by], 0.0) * size / same_name if same_name else 0.0)
        elif mixture.epochs:
            wanted.append(mixture.epochs.get(group[mixture.by], 1.0) * size)
        else:
            wanted.append(float(size))
    total = sum(wanted)
    return [amount / total if total else 0.0 for amount in wanted]


def count_epochs(
    groups: Groups, sampling: Sampling, steps: int, batches: BatchSchedule, by: str = "source"
) -> dict[str, float]:
    """Return how many times the tokens of each source, or of another key of the groups, are read in `steps` steps."""
    starts = [*sampling.mixtures(steps), (steps, Mixture())]
    read_tokens = dict.fromkeys((group[by] for group in groups), 0.0)
    available = dict.fromkeys(read_tokens, 0)
    for group in groups:
        available[group[by]] += group["tokens"]
    for (start, mixture), (end, _) in pairwise(starts):
        for group, share in zip(groups, _mixture_shares(mixture, groups), strict=True):
            read_tokens[group[by]] += share * batches.count_tokens(start, end)
    return {name: read_tokens[name] / available[name] for name in sorted(read_tokens) if available[name]}


def tabulate_epochs(index: Mapping[str, Any], training: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """Return how often a training read its tokens in `steps` steps, by source and by the keys of its mixtures.

    Args:
        index: the index of its token set.
        training: its settings.
    """
    groups = index.get("train", {}).get("groups", [])
    if not groups or not {"batch_size", "sequence_length"} <= training.keys():
        return []
    sampling = Sampling.model_validate(training.get("sampling") or {})
    batches = BatchSchedule.from_settings(training)
    mixed = [mixture.by for _, mixture in sampling.mixtures(steps) if mixture.weights or mixture.epochs]
    rows = []
    for column in dict.fromkeys(["source", *mixed]):
        times = count_epochs(groups, sampling, steps, batches, column)
        for name, read in times.items():
            tokens = sum(group["tokens"] for group in groups if group[column] == name)
            rows.append({"column": column, "name": name, "tokens": tokens, "times": read})
    return rows


_HASH_WORDS = 4


def partial_batch_hash(tokens_BT: Integers, first_place: int) -> NDArray[np.float64]:
    """Return the summands of a part of a batch for its hash, (4,), as integers in float64.

    The hash covers the tokens at each position of the batch, independent of the processes that compute it. A sequence
    adds the first four 32-bit numbers of SHA-256 of its position (8 bytes) and its tokens (4 bytes each),
    little-endian. Sums over less than two million sequences are exact in float64, in which processes add them.

    Args:
        tokens_BT: sequences with the token after each, (B, T + 1).
        first_place: the position of the first sequence in the batch, from 0.
    """
    words = np.zeros(_HASH_WORDS)
    for place, tokens_T in enumerate(tokens_BT.astype("<u4"), first_place):
        digest = hashlib.sha256(place.to_bytes(8, "little") + tokens_T.tobytes()).digest()
        words += np.frombuffer(digest, dtype="<u4", count=_HASH_WORDS)
    return words


def format_batch_hash(words: NDArray[np.float64]) -> str:
    """Return the hash of a batch from the sum of its parts: four numbers modulo 2**32, in hexadecimal."""
    return "".join(f"{int(word) % 2**32:08x}" for word in words)
