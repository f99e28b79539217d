"""A checkpoint as the items say that it answered."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pipeline.evaluate.corpus_level import Statistics
from pipeline.evaluate.items import Key, read_answers
from pipeline.evaluate.written import UNTESTED


class Checkpoint(NamedTuple):
    """A checkpoint: per metric whether each item was right, and the nats and bytes of texts and of right answers.

    `clusters` tells of items that are like others what they have in common, `graded` per metric how good each item is,
    `statistics` what each item adds to corpus-level metrics.
    """

    model: str
    step: int
    right: dict[str, dict[Key, bool]]
    likely: dict[str, dict[Key, tuple[float, int]]]
    clusters: dict[Key, str]
    graded: dict[str, dict[Key, float]] = {}
    statistics: dict[str, dict[Key, Statistics]] = {}


def read(path: Path) -> Checkpoint:
    """Read the items of a checkpoint, `…/MODEL/STEP/items.parquet`.

    Raises:
        InputError: the file is no table of items, or an item stands twice.
    """
    found = read_answers(path)
    graded = {metric: values for metric, values in found.graded.items() if metric not in UNTESTED}
    model, step = path.parent.parent.name, int(path.parent.name)
    return Checkpoint(model, step, found.right, found.likely, found.clusters, graded, found.statistics)
