"""Settings of the stage `tokens`, and of the sampling that a training asks for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings

MINIMUM_CHARACTERS = 40
"""Shorter parts of a text stand in many documents by chance: this is about seven words."""
Shards = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

GROUP = ("source", "language")
"""What all documents of a record batch of tokens share, before their strata."""
UNKNOWN = "unknown"
"""The stratum of a document of which it is not known."""


def bin_names(bounds: Sequence[float]) -> list[str]:
    """The names of the bins that ascending bounds divide numbers into, the lowest first; other bounds, other names."""
    below, *names = (np.format_float_positional(bound, trim="-") for bound in [bounds[0], *bounds])
    return [f"below {below}", *(f"from {name}" for name in names)]


class Strata(Settings):
    """By what the documents of a source and language are told apart besides, for `training.sampling` to mix them."""

    genre: bool = Field(default=False, description="that of their source")
    license: bool = Field(default=False, description="their own, or that of their source")
    cluster_size: list[Annotated[int, Field(ge=2)]] = Field(
        default=[], description="bounds of the bins of how many copies a document stands for, itself included"
    )
    quality: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default=[], description="bounds of the bins of it")
    perplexity: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[], description="bounds of the bins of it"
    )

    @field_validator("cluster_size", "quality", "perplexity")
    @classmethod
    def _ascend(cls, bounds: list[float]) -> list[float]:
        if any(after <= before for before, after in pairwise(bounds)):
            raise ValueError("bounds ascend: write the least first, each once")
        return bounds

    def names(self) -> list[str]:
        """What is asked for, in the order of the keys."""
        return [name for name in type(self).model_fields if getattr(self, name)]

    def bounds(self, name: str) -> list[float]:
        """The bounds of the bins of `cluster_size`, `quality` or `perplexity`."""
        found: list[float] = getattr(self, name)
        return found


class Tokens(Settings):
    """One token set of a run: a corpus in the tokens of a tokenizer, part of it held out for validation."""

    corpus: str = Field(default="main", description="the corpus whose documents are encoded")
    tokenizer: str = Field(default="main", description="the tokenizer that encodes them")
    shards: Shards = Field(default=4, description="files of training tokens")
    validation_fraction: Fraction = Field(
        default=0.05, description="share of the documents that is held out, in whole clusters"
    )
    strata: Strata = Strata()
    suffixes: bool = Field(
        default=True,
        description="sort the training tokens, so that a text is found in them; four bytes on disk for each token",
    )


class ShardSettings(Settings):
    """Settings of tokens.shard."""

    shard: Annotated[int, Field(ge=0)]
    shards: Shards
    validation_fraction: Fraction
    strata: Strata = Strata()
    genres: dict[str, str] = Field(default={}, description="of the sources, where the strata ask for it")
    licenses: dict[str, str] = Field(default={}, description="of the sources, where the strata ask for it")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard} does not exist: the last of {self.shards} is {self.shards - 1}")
        return self


class Mixture(Settings):
    """How much of each source, language, … a batch holds; without weights and epochs: of each as much as there is."""

    by: Literal["source", "language", "genre", "license", "cluster_size", "quality", "perplexity"] = Field(
        default="source", description="what weights and epochs name; all but source and language are strata of tokens"
    )
    weights: dict[str, Amount] = Field(default={}, description="shares of a batch, of any sum; not named: left out")
    epochs: dict[str, Amount] = Field(default={}, description="times that it is seen while the others are seen once")

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        if self.weights and self.epochs:
            raise ValueError("weights and epochs exclude each other: give one of them")
        if self.weights and not sum(self.weights.values()):
            raise ValueError("the weights are all 0: give at least one that is more")
        return self


class Phase(Mixture):
    """A mixture from a step on, to the next phase or the end."""

    from_step: Annotated[int, Field(ge=1)] | None = Field(default=None, description="its first step, counted from 0")
    from_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(default=None, description="of training.steps")

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if (self.from_step is None) == (self.from_share is None):
            raise ValueError("a phase starts either from_step or from_share: give one of them")
        return self

    def start(self, steps: int) -> int:
        """The number of steps before the phase, of a training of `steps` steps."""
        return self.from_step if self.from_step is not None else int(steps * (self.from_share or 0))


class Sampling(Mixture):
    """Which tokens a training sees, in which proportions; the default: every token once in an epoch, all shuffled."""

    phases: list[Phase] = Field(default=[], description="other mixtures from a step on")
    mask_documents: bool = Field(default=False, description="a token attends to its own document alone")

    def mixtures(self, steps: int) -> list[tuple[int, Mixture]]:
        """Each mixture with the step, from 0, at which it starts; ValueError where they are not in order."""
        found: list[tuple[int, Mixture]] = [(0, self), *((phase.start(steps), phase) for phase in self.phases)]
        for (before, _), (start, _) in pairwise(found):
            if start <= before:
                raise ValueError(f"sampling.phases: a phase from step {start} follows one from {before}: order them")
        if found[-1][0] >= steps:
            raise ValueError(f"sampling.phases: step {found[-1][0]} is not below the {steps} steps: start it earlier")
        return found


class TokenUse(Settings):
    """What a model needs of a token set."""

    model: str
    sequence_length: int
    steps: int
    sampling: Sampling
    validates: bool


class IndexSettings(Settings):
    """Settings of tokens.index."""

    shards: Shards
    uses: list[TokenUse] = Field(default=[], description="of the models that are trained on it: refused where too few")

    def operation(self) -> dict[str, Any]:
        """Return the models, which change nothing of the index."""
        return {"uses": True}
