"""Compute the mean score of each language over its tasks, corrected for guessing.

The mean is the centered accuracy of CORE (Li et al., DataComp-LM, 2024, arXiv:2406.11794): the mean over tasks of
(score - guessing) / (1 - guessing), here in points from 0 to 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pipeline.evaluate.differences import detectable_from_interval
from pipeline.evaluate.trivial_baseline_tests import has_mostly_truncated_prompts


class LanguageScore(NamedTuple):
    """The mean score of a language, from 0 for guessing to 100 for right answers alone.

    Attributes:
        low, high: the ends of its 95 % interval over other items of the same tasks; None if a task has none.
        detectable: see `detectable_difference_between_models`, in points.
        tasks: the number of tasks that are counted.
        tested, better: of these, the tasks that are compared with baselines and that are better than each.
    """

    language: str
    value: float
    low: float | None
    high: float | None
    detectable: float | None
    tasks: int
    tested: int
    better: int


class SeedScatter(NamedTuple):
    """A score of models that differ in their seed alone."""

    low: float
    high: float
    deviation: float
    seeds: int


def detectable_difference_between_models(low: float | None, high: float | None) -> float | None:
    """Return the smallest difference of two models that as many items detect in 80 of 100 cases, from an interval.

    At 5 %, two-sided, for one comparison. The variance is that of two independent scores with the interval's width, so
    models that are right on the same items need less; `differences.json` has that figure for each pair.
    """
    if low is None or high is None:
        return None
    difference = detectable_from_interval(low, high)
    return None if difference is None else math.sqrt(2) * difference


def is_counted(task: dict[str, Any]) -> bool:
    """Return whether a score belongs in the mean of its language.

    It is a share of right answers, for only these have a chance level; corpus-level metrics, perplexities, written
    answers and scores with an aim have none. Most of its prompts are whole.
    """
    chance = task["chance_level"]
    is_share = chance is not None and chance < 1 and task["higher_is_better"] and task.get("aim") is None
    return bool(is_share and task["value"] is not None and not has_mostly_truncated_prompts(task))


def aggregate_by_language(tasks: Sequence[dict[str, Any]]) -> list[LanguageScore]:
    """Return the mean score of each language with its interval.

    Each task counts once, by its first metric by name with a chance level: a choice by the scores would raise them.
    The interval combines those of data sets, which are independent (Zou and Donner, Statistics in Medicine 27,
    2008, p. 1693), and tasks are not drawn: it says what other items would give, not other tasks. Tasks that ask items
    of one data set may be right on the same ones: their sides are added, as if they always were.

    Args:
        tasks: the rows of one checkpoint's results.
    """
    languages: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for task in sorted(filter(is_counted, tasks), key=lambda task: str(task.get("metric"))):
        languages.setdefault(task["language"], {}).setdefault((task["suite"], task["task"]), task)
    return [_aggregate(language, [*counted.values()]) for language, counted in sorted(languages.items())]


def _aggregate(language: str, tasks: Sequence[dict[str, Any]]) -> LanguageScore:
    scales = [100 / (1 - task["chance_level"]) / len(tasks) for task in tasks]
    scaled = [*zip(scales, tasks, strict=True)]
    mean, low, high = sum(scale * (task["value"] - task["chance_level"]) for scale, task in scaled), None, None
    if all(task["low"] is not None for task in tasks):
        sides: dict[tuple[str | None, ...], tuple[float, float]] = {}
        for scale, task in scaled:
            below, above = sides.get(_item_source(task), (0.0, 0.0))
            below, above = below + scale * (task["value"] - task["low"]), above + scale * (task["high"] - task["value"])
            sides[_item_source(task)] = below, above
        low = mean - math.hypot(*(below for below, _ in sides.values()))
        high = mean + math.hypot(*(above for _, above in sides.values()))
    verdicts = [task["verdict"] for task in tasks if task["verdict"] is not None]
    detectable = detectable_difference_between_models(low, high)
    return LanguageScore(language, mean, low, high, detectable, len(tasks), len(verdicts), verdicts.count("better"))


def _item_source(task: dict[str, Any]) -> tuple[str | None, ...]:
    """Return data set, configuration and split of a task's items; suite and task if results do not name these."""
    protocol = task.get("protocol") or {}
    if protocol.get("data_set") is None:
        return task["suite"], task["task"]
    return protocol["data_set"], protocol["configuration"], protocol["split"]


def measure_seed_scatter(scores: Sequence[float | None]) -> SeedScatter | None:
    """Return the scatter of the scores of several seeds; None for fewer than two.

    The deviation is the sample's, with n - 1.
    """
    known = [score for score in scores if score is not None]
    return SeedScatter(min(known), max(known), stdev(known, fmean(known)), len(known)) if len(known) > 1 else None
