"""Sizes and durations of training steps: batch sizes, sequence lengths and their ramp, and the median step time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from pydantic import Field

from pipeline.core.settings import Settings


class RampStage(Settings):
    """A stage with smaller batches or shorter sequences; missing values are those after the ramp."""

    to_step: int = Field(ge=1, description="its last step; a skipped batch counts as one")
    batch_size: int | None = Field(default=None, ge=1, description="sequences of sequence_length tokens in one step")
    sequence_length: int | None = Field(default=None, ge=2, description="tokens of the parts that sequences are cut in")


class StepRange(NamedTuple):
    """Consecutive steps of `batch_size` full sequences each, cut into parts of `sequence_length` tokens."""

    steps: int
    batch_size: int
    sequence_length: int


class BatchSchedule:
    """The batch sizes of a training by data step; `batch_sizes` and `sequence_lengths` have one entry per stage.

    A batch of B whole sequences of T tokens, cut into parts of t tokens, is B T / t rows of t tokens. So what a step
    reads does not depend on how its sequences are cut, and the order of the sequences not on how many a step takes.
    """

    def __init__(self, sequence_length: int, batch_size: int, ramp: Sequence[RampStage] = ()) -> None:
        self.sequence_length = sequence_length
        self._ends = [stage.to_step for stage in ramp]
        self.batch_sizes = [*(stage.batch_size or batch_size for stage in ramp), batch_size]
        self.sequence_lengths = [*(stage.sequence_length or sequence_length for stage in ramp), sequence_length]

    @classmethod
    def from_settings(cls, training: Mapping[str, Any]) -> BatchSchedule:
        """Return the schedule of the settings of a training, as in its record."""
        ramp = [RampStage.model_validate(stage) for stage in training.get("ramp", [])]
        return cls(training["sequence_length"], training["batch_size"], ramp)

    @property
    def ramp_steps(self) -> int:
        """Return the last data step of the ramp, counted from 1; 0 without one."""
        return max(self._ends, default=0)

    def check(self, steps: int) -> None:
        """Check that stages are in order and end before the last step, and that lengths divide a sequence.

        Raises:
            ValueError: they do not.
        """
        for before, end in pairwise([0, *self._ends]):
            if end <= before:
                raise ValueError(f"ramp: a stage to step {end} follows one to {before}: order them")
        if self._ends and self._ends[-1] >= steps:
            raise ValueError(f"ramp: its last step {self._ends[-1]} is not below the {steps} steps: end it earlier")
        for length in self.sequence_lengths:
            if self.sequence_length % length:
                raise ValueError(
                    f"ramp: sequence_length {length} does not divide that after it, {self.sequence_length}: write a "
                    "divisor"
                )

    def step_ranges(self, first: int, last: int) -> list[StepRange]:
        """Return the data steps from `first`, counted from 0, to before `last`, in ranges of equal size."""
        ranges: list[StepRange] = []
        for start, end, size in self._stages(last):
            steps = end - max(start, first)
            if steps > 0 and ranges and ranges[-1][1:] == size:
                ranges[-1] = ranges[-1]._replace(steps=ranges[-1].steps + steps)
            elif steps > 0:
                ranges.append(StepRange(steps, *size))
        return ranges

    def _stages(self, last: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        borders = [0, *(min(end, last) for end in self._ends), last]
        sizes = zip(self.batch_sizes, self.sequence_lengths, strict=True)
        yield from ((start, end, size) for (start, end), size in zip(pairwise(borders), sizes, strict=True))

    def at(self, step: int) -> StepRange:
        """Return the sizes of one data step, counted from 0."""
        return self.step_ranges(step, step + 1)[0]

    def count_sequences(self, steps: int) -> int:
        """Return the number of full sequences in the first `steps` data steps."""
        return sum(stretch.steps * stretch.batch_size for stretch in self.step_ranges(0, steps))

    def count_tokens(self, first: int, last: int) -> int:
        """Return the tokens of the data steps from `first`, counted from 0, to before `last`."""
        return (self.count_sequences(last) - self.count_sequences(first)) * self.sequence_length


def median_step_seconds(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median seconds between the ends of consecutive steps; None if the metrics have no such pair.

    A step after a validation or a start is left out: what came before it took time as well.

    Args:
        lines: of the metrics of a training.
    """
    ends, validated = [], set()
    for line in lines:
        if line.get("validation_loss") is not None:
            validated.add(line["step"])
        if line.get("ended_unix_seconds") is not None:
            ends.append((line["step"], line["ended_unix_seconds"]))
    between = [
        end - before
        for (last, before), (step, end) in itertools.pairwise(ends)
        if step == last + 1 and end > before and last not in validated
    ]
    return median(between) if between else None
