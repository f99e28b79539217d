"""Settings of the section `experiments`: the varied keys of a model, and the comparison of the cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings

Values = dict[str, Any]
"""By key of a model's section, such as `training.learning_rate`, its value."""
CORPUS_PREFIX = "corpus."
"""The prefix of varied keys of the base's corpus."""
POWER_OF_TEN = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def _parse_numbers(values: Any) -> Any:
    """Parse numbers such as 3e-4, which YAML 1.1 reads as text without a point."""
    if isinstance(values, list):
        return [_parse_numbers(value) for value in values]
    return float(values) if isinstance(values, str) and POWER_OF_TEN.fullmatch(values) else values


class Compare(Settings):
    """What cells are compared by, and with which."""

    metrics: list[Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")]] = Field(
        default=[], description="TASK/METRIC; the first decides the best cell; default: all, and the validation loss"
    )
    to: Values = Field(
        default={}, description="what the others are compared with; of keys not named the base's value, else the first"
    )
    alpha: float = Field(default=0.05, gt=0, lt=1, description="of all comparisons of the experiment together (Holm)")

    @field_validator("to", mode="before")
    @classmethod
    def _as_numbers(cls, to: Any) -> Any:
        return {key: _parse_numbers(value) for key, value in to.items()} if isinstance(to, dict) else to


class Experiment(Settings):
    """Values of a model's keys of which each combination, with each seed, makes a model more: a cell."""

    base: str = Field(description="the model that the cells are like but for what is varied")
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default={},
        description="by key of the model's section, such as training.learning_rate or tokens, or of its corpus's, such "
        "as corpus.exclude_sources, its values",
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[], description="default: the base's")
    exclude: list[Values] = Field(default=[], description="parts of combinations of which no cell is made")
    limit: int = Field(default=64, ge=1, description="more cells than this are refused before anything runs")
    equal: Literal["steps", "tokens", "flops", "joules"] = Field(
        default="steps", description="what every cell is trained for as much as the base: steps follow from it"
    )
    samples: bool = Field(
        default=False,
        description="whether each cell writes samples and is searched for memorized text, as other models are",
    )
    compare: Compare = Compare()

    @field_validator("vary", "exclude", mode="before")
    @classmethod
    def _as_numbers(cls, written: Any) -> Any:
        if isinstance(written, list):
            return [cls._as_numbers(one) for one in written]
        return {key: _parse_numbers(value) for key, value in written.items()} if isinstance(written, dict) else written

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.vary and not self.seeds:
            raise ValueError("nothing is varied: write vary or seeds")
        for key, values in [*self.vary.items(), ("seeds", self.seeds)]:
            if twice := [value for number, value in enumerate(values) if value in values[:number]]:
                raise ValueError(f"{key}: the value {twice[0]!r} occurs twice; leave one out")
        for key, within in ((one, other) for pair in combinations(self.vary, 2) for one, other in (pair, pair[::-1])):
            if within.startswith(f"{key}."):
                raise ValueError(f"vary: {within} is a part of {key}: write its values within those of {key}")
        if "seed" in self.vary:
            raise ValueError("vary.seed: write seeds next to vary, not seed in it")
        if "architecture.preset" in self.vary:
            raise ValueError("vary.architecture.preset: a preset fills other keys too: vary architecture as a whole")
        if "corpus.preset" in self.vary:
            raise ValueError("vary.corpus.preset: a preset fills other keys too: write corpora, and vary tokens")
        if self.equal != "steps" and "training.steps" in self.vary:
            raise ValueError(f"equal {self.equal} decides the steps of each cell: leave training.steps out of vary")
        for field, partial in [*(("exclude", one) for one in self.exclude), ("compare.to", self.compare.to)]:
            self._check_partial(field, partial)
        return self

    def _check_partial(self, field: str, partial: Mapping[str, Any]) -> None:
        for key, value in partial.items():
            if key not in self.vary:
                raise ValueError(f"{field}: {key} is not varied; choose one of {', '.join(self.vary) or 'nothing'}")
            if value not in self.vary[key]:
                raise ValueError(f"{field}: {key} is never {value!r}; choose one of {self.vary[key]}")


class Cell(Settings):
    """A cell of an experiment, for its page.

    Attributes:
        name: of its model in the run.
        rounded: the share by which its whole number of steps exceeds the amount of `equal`.
        refused: why it does not fit the platform, in one sentence: it is then no model of the run.
    """

    name: str
    values: Values
    seed: int
    steps: int
    rounded: float = 0.0
    refused: str | None = None


class ExperimentPage(Settings):
    """The settings of an experiment's page: the experiment, its cells, and the combination to compare with."""

    base: str
    equal: str
    keys: list[str]
    cells: list[Cell]
    to: Values
    metrics: list[str]
    alpha: float

    @property
    def training_texts_differ(self) -> bool:
        """Whether cells are trained on different texts, so that their losses are not comparable."""
        return any(key == "tokens" or key.startswith(CORPUS_PREFIX) for key in self.keys)
