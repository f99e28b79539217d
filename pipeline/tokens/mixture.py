"""The order in which a training visits the sequences of several streams: a pure function of the step.

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

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np

from pipeline.core.ramp import Batches
from pipeline.tokens.permutation import Integers, permute


class Shares:
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
        self._splits = self._tree([stream for _, stream in chosen[:pooled]])

    def _tree(self, streams: list[int]) -> list[tuple[int, int, int]]:
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


class Order:
    """The sequences of each data step, for streams of these sizes; sequences are numbered through all streams.

    `keys` make the order of each stream its own; `phases` are pairs of the first data step and the streams' weights.
    """

    def __init__(
        self, sizes: list[int], keys: list[int], phases: list[tuple[int, list[Fraction]]], batches: Batches
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.offsets = np.cumsum([0, *sizes], dtype=np.int64)
        self._batches = batches
        self._keys = np.array([key % 2**64 for key in keys], dtype=np.uint64)
        self._batch_key = int(np.bitwise_xor.reduce(self._keys))
        self._starts = [start for start, _ in phases]
        self._shares = [Shares(weights, min(batches.batch_sizes)) for _, weights in phases]
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

    def steps_of(self, sequence: int, steps: int) -> list[int]:
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
