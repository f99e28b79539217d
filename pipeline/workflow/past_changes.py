"""Which settings of a finished segment concern steps that are done, and are others today."""

from __future__ import annotations

import json
from typing import Any

from pipeline.core.ramp import Stretch
from pipeline.core.settings import leaves
from pipeline.model.settings import Architecture
from pipeline.model.size import learning_rate_factor
from pipeline.pretrain.settings import HOW_NUMBERS_ARE_COMPUTED, SegmentSettings, Training, learning_rate_at

FROM_HERE_ON = HOW_NUMBERS_ARE_COMPUTED | {"precision", "gradient_reduction", "float8", "milestone_every", "stability"}
"""Keys of a training that may be others from a milestone on: they change its steps by rounding alone, or not at all."""
SIZES = ("batch_size", "ramp")
"""Keys that concern a step by how many sequences it takes, and how long they are, alone."""
SCHEDULE = ("learning_rate", "minimum_learning_rate_fraction", "warmup_steps", "schedule", "decay_fraction", "steps")
"""Keys that concern a step by its learning rate alone."""


def _rates(training: Training, first: int, last: int) -> list[float]:
    return [learning_rate_at(training, step) for step in range(first + 1, last + 1)]


def _sizes(training: Training, last: int) -> tuple[list[Stretch], int]:
    """Return the sizes of the done steps, and the fewest sequences of any step, by which the sampler tells streams."""
    return training.batches.stretches(0, last), min(training.batches.batch_sizes)


def _mixtures(training: Training, last: int) -> list[tuple[int, dict[str, Any]]]:
    return [
        (start, mixture.model_dump(include={"by", "weights", "epochs"}))
        for start, mixture in training.sampling.mixtures(training.steps)
        if start < last
    ]


def _slower(architecture: Architecture) -> float:
    return learning_rate_factor("output.weight", 2, architecture)


def _streams(training: Training) -> dict[str, Any]:
    """Return what divides the tokens into streams, each in an order of its own: see `pipeline.tokens.sampler`."""
    found: dict[str, Any] = {}
    for _, mixture in training.sampling.mixtures(training.steps):
        if mixture.weights or found.get(mixture.by) == "all":
            found[mixture.by] = "all"
        elif mixture.epochs:
            found[mixture.by] = found.get(mixture.by, frozenset()) | mixture.epochs.keys()
    return found


def _told(written: dict[str, Any], settings: SegmentSettings, key: str) -> str:
    """Return the value of a key, also of one that is not written because it is the default."""
    value: Any = written.get(key, settings)
    for name in () if key in written else key.split("."):
        value = getattr(value, name, None)
    return json.dumps(value)


def past_changes(made: SegmentSettings, today: SegmentSettings) -> list[str]:
    """Return which settings of a finished segment concern steps that are done and are others today, with both values.

    Whether a schedule or a mixture does is told by what it comes to in these steps, not by its keys.
    """
    before, now = (dict(leaves(settings.of_result())) for settings in (made, today))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]

    def drop(*names: str) -> None:
        whole = tuple(f"training.{name}." for name in names)
        differing[:] = [key for key in differing if not f"{key}.".startswith(whole)]

    drop(*FROM_HERE_ON)
    first, last = made.first_step, made.last_step
    if differing and _rates(made.training, first, last) == _rates(today.training, first, last):
        drop(*SCHEDULE)
    if differing and _sizes(made.training, last) == _sizes(today.training, last):
        drop(*SIZES)
    same = _mixtures(made.training, last) == _mixtures(today.training, last)
    if differing and same and _streams(made.training) == _streams(today.training):
        drop("sampling.phases")
    if _slower(made.architecture) == _slower(today.architecture):
        differing = [key for key in differing if key != "architecture.base_width"]
    names = {"first_step": "milestone_every: the milestone before it is of step"}
    both = ((key, _told(before, made, key), _told(now, today, key)) for key in differing)
    return [f"{names.get(key, key)} {then}, now {told}" for key, then, told in both]
