"""Cut the time line of a node wherever something begins or ends: between two cuts nothing changes.

What holds over many cuts is never listed cut by cut: sums over an interval are differences of running sums, so that an
account of a million intervals costs their sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


LEFT_SHARE = 0.1
"""Of an interval, from which on what another meter leaves of it is told by the difference of both."""


class Stream(NamedTuple):
    """What one meter said of one thing, in intervals that do not overlap: a rate per second in each."""

    origin: str
    started: Floats
    ended: Floats
    rate: Floats

    @property
    def seconds(self) -> float:
        """How long it covers."""
        return float((self.ended - self.started).sum())


class Cuts:
    """The moments at which something changes, in seconds of Unix time, and what lies between them."""

    def __init__(self, moments: Iterable[Floats]) -> None:
        self.edges: Floats = np.unique(np.concatenate([np.empty(0), *moments]))
        self.seconds: Floats = np.diff(self.edges)

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, moments: Floats) -> Integers:
        """Return the numbers of the edges at these moments."""
        return np.searchsorted(self.edges, moments)

    def count(self, first: Integers, last: Integers) -> Integers:
        """Return, for each cut, in how many ranges of cuts it lies."""
        size = len(self.edges)
        return np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))[: len(self)]

    def sum(self, first: Integers, last: Integers, values: Floats) -> Floats:
        """Return, for each cut, the sum of the values, none below zero, of the ranges in which it lies."""
        size, some = len(self.edges), values > 0
        if not some.any():
            return np.zeros(len(self))
        first, last, values = first[some], last[some], values[some]
        steps = np.bincount(first, values, size) - np.bincount(last, values, size)
        return np.where(self.count(first, last) > 0, np.maximum(np.cumsum(steps)[: len(self)], 0.0), 0.0)

    def running(self, rate: Floats | Flags) -> Floats:
        """Return the integral of a rate per second from the first edge to each edge."""
        return np.concatenate([[0.0], np.cumsum(rate * self.seconds)])

    def painted(self, streams: Sequence[Stream], beside: Floats | None = None) -> Floats:
        """Return the rate in each cut, NaN where no stream covers it; of several streams the longest is taken.

        Where a part of an interval is covered by a longer stream, or by another meter (`beside`), the part that is not
        has what is left of it: what changes when a job ends, and its meter with it, is then not spread over the time
        before. Where another meter covers nearly all, what is left would be the error of both: the rate is taken.
        """
        rate = np.full(len(self), np.nan) if beside is None else beside.copy()
        for stream in sorted(streams, key=lambda stream: (-stream.seconds, stream.origin)):
            first, last = self.at(stream.started), self.at(stream.ended)
            free = first[0] + np.flatnonzero(np.isnan(rate[first[0] : last[-1]]))
            number = np.searchsorted(first, free, side="right") - 1
            inside = free < last[number]
            free, number = free[inside], number[inside]
            if free.size:
                begin, end = first[number[0]], last[number[-1]]
                seconds, known = self.seconds[begin:end], rate[begin:end]
                told = np.append(0.0, np.cumsum(np.nan_to_num(known) * seconds))
                open_ = np.append(0.0, np.cumsum(np.isnan(known) * seconds))
                some = np.unique(number)
                before, after = first[some] - begin, last[some] - begin
                amount = stream.rate[some] * (stream.ended[some] - stream.started[some])
                left = (amount - told[after] + told[before]) / (open_[after] - open_[before])
                least = 0.0 if beside is None else LEFT_SHARE
                enough = open_[after] - open_[before] >= least * (stream.ended - stream.started)[some]
                rate[free] = np.where((left >= 0) & enough, left, stream.rate[some])[np.searchsorted(some, number)]
        return rate

    def integral(self, rate: Floats, where: Flags | None = None) -> float:
        """Return the sum of rate × seconds, where it is known."""
        chosen: Any = slice(None) if where is None else where
        return float(np.nansum(rate[chosen] * self.seconds[chosen]))
