"""By what documents of one source and language are told apart, so that a training can mix them: their strata.

A number, such as how many copies a document stands for, puts it in a bin: `below` the first bound, or `from` the
greatest bound that it reaches. FineWeb-2 lets a training read what many pages hold more often, by the size of its
cluster: https://arxiv.org/abs/2506.20920.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tokens.settings import GROUP, UNKNOWN, Strata, bins


def columns_of(strata: Strata) -> list[str]:
    """The columns of the documents that tell their groups: source, language and what the strata need."""
    return [*GROUP, *(name for name in strata.names() if name != "genre")]


def with_strata(batch: pa.RecordBatch, strata: Strata, genres: Mapping[str, str]) -> pa.Table:
    """The source, language and strata of each document of a batch with the columns of `columns_of`.

    Args:
        genres: those of the sources that have one.
    """
    told = {name: batch.column(name) for name in GROUP}
    for name in strata.names():
        if name == "genre":
            told[name] = pa.array([genres.get(source, UNKNOWN) for source in told["source"].to_pylist()], pa.string())
        elif name == "license":
            told[name] = batch.column(name)
        else:
            bounds = strata.bounds(name)
            names = np.array([*bins(bounds), UNKNOWN])
            values = batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)  # null is NaN
            places = np.searchsorted(bounds, values, side="right")
            told[name] = pa.array(names[np.where(np.isnan(values), len(names) - 1, places)], pa.string())
    return pa.table(told)


def is_in(group: Mapping[str, str], strata: Strata) -> pc.Expression:
    """The condition on the columns of `columns_of` that the documents of a group meet."""
    condition = pc.scalar(True)
    for name, wanted in group.items():
        if name in (*GROUP, "license"):
            condition &= pc.field(name) == wanted
        elif name != "genre":
            condition &= _within(name, wanted, strata.bounds(name))
    return condition


def _within(name: str, wanted: str, bounds: Sequence[float]) -> pc.Expression:
    value = pc.field(name)
    if wanted == UNKNOWN:
        return value.is_null()
    place = bins(bounds).index(wanted)
    condition = pc.scalar(True)
    if place:
        condition &= value >= bounds[place - 1]
    if place < len(bounds):
        condition &= value < bounds[place]
    return condition
