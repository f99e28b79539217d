"""Settings of the stage `tokens`, and of the sampling of a training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings, optional_later_field

MINIMUM_CHARACTERS = 40
"""Shorter parts of a text, below about seven words, are in many documents by chance."""
Shards = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

GROUP = ("source", "language")
"""The columns, before the strata, that have the same values in all documents of a record batch."""
UNKNOWN = "unknown"
"""The stratum of a document without a value."""


def bin_names(bounds: Sequence[float]) -> list[str]:
    """Return the names of the bins of ascending bounds, the lowest first."""
    below, *names = (np.format_float_positional(bound, trim="-") for bound in [bounds[0], *bounds])
    return [f"below {below}", *(f"from {name}" for name in names)]


class Strata(Settings):
    """Properties that divide the documents of a source and language into strata, for mixing by `training.sampling`."""

    genre: bool = Field(default=False, description="the genre of the source")
    license: bool = Field(default=False, description="the document's own license, or that of its source")
    cluster_size: list[Annotated[int, Field(ge=2)]] = Field(
        default=[], description="bounds of bins of the number of copies that a document represents, itself included"
    )
    quality: list[float] = Field(
        default=[], description="bounds of bins of the quality; between 0 and 1 without quality_from"
    )
    quality_from: str | None = optional_later_field(
        None, description="the classifier of the corpus whose score is the quality; none: the one trained on seeds"
    )
    perplexity: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[], description="bounds of bins of the perplexity"
    )

    @field_validator("cluster_size", "quality", "perplexity")
    @classmethod
    def _ascend(cls, bounds: list[float]) -> list[float]:
        if any(after <= before for before, after in pairwise(bounds)):
            raise ValueError("bounds must ascend: write the smallest first, each once")
        return bounds

    def list_stratification_keys(self) -> list[str]:
        """Return the configured strata, in the order of the keys."""
        return [name for name in type(self).model_fields if getattr(self, name) and name != "quality_from"]

    def column(self, name: str) -> str:
        """Return the column of documents that a stratum divides."""
        return self.quality_from if name == "quality" and self.quality_from else name

    def bin_bounds(self, name: str) -> list[float]:
        """Return the bounds of the bins of `cluster_size`, `quality` or `perplexity`."""
        bounds: list[float] = getattr(self, name)
        return bounds


class Tokens(Settings):
    """One token set of a run: a corpus encoded with a tokenizer, with a validation split."""

    corpus: str = Field(default="main", description="the corpus whose documents are encoded")
    tokenizer: str = Field(default="main", description="the tokenizer that encodes them")
    shards: Shards = Field(default=4, description="files of training tokens")
    validation_fraction: Fraction = Field(default=0.05, description="share of documents held out, in whole clusters")
    strata: Strata = Strata()
    suffixes: bool = Field(
        default=True,
        description="write suffix arrays of the training tokens, to search for texts; four bytes on disk per token",
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
    """The shares of sources, languages or strata in a batch; by default proportional to their tokens."""

    by: Literal["source", "language", "genre", "license", "cluster_size", "quality", "perplexity"] = Field(
        default="source",
        description="property named by weights and epochs; source, language or a stratum of the tokens",
    )
    weights: dict[str, Amount] = Field(default={}, description="shares of a batch, of any sum; others get none")
    epochs: dict[str, Amount] = Field(default={}, description="passes over the named tokens per pass over the others")

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        if self.weights and self.epochs:
            raise ValueError("weights and epochs exclude each other: give one of them")
        if self.weights and not sum(self.weights.values()):
            raise ValueError("all weights are 0: give at least one above 0")
        return self


class Phase(Mixture):
    """A mixture from a step until the next phase or the end."""

    from_step: Annotated[int, Field(ge=1)] | None = Field(default=None, description="its first step, counted from 0")
    from_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(default=None, description="of training.steps")

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if (self.from_step is None) == (self.from_share is None):
            raise ValueError("a phase starts either from_step or from_share: give one of them")
        return self

    def start(self, steps: int) -> int:
        """Return the number of steps before the phase, in a training of `steps` steps."""
        return self.from_step if self.from_step is not None else int(steps * (self.from_share or 0))


class Sampling(Mixture):
    """The mixture of tokens of a training; by default every token once per epoch, shuffled."""

    phases: list[Phase] = Field(default=[], description="other mixtures from a step on")
    mask_documents: bool = Field(default=False, description="restrict attention to the same document")

    def mixtures(self, steps: int) -> list[tuple[int, Mixture]]:
        """Return each mixture with its first step, from 0.

        Raises:
            ValueError: phases are not in order, or start after the last step.
        """
        mixtures: list[tuple[int, Mixture]] = [(0, self), *((phase.start(steps), phase) for phase in self.phases)]
        for (before, _), (start, _) in pairwise(mixtures):
            if start <= before:
                raise ValueError(f"sampling.phases: a phase from step {start} follows one from {before}: order them")
        if mixtures[-1][0] >= steps:
            raise ValueError(
                f"sampling.phases: step {mixtures[-1][0]} is not below the {steps} steps: start it earlier"
            )
        return mixtures


class TokenUse(Settings):
    """The requirements of a model for a token set."""

    model: str
    sequence_length: int
    steps: int
    sampling: Sampling
    validates: bool


class IndexSettings(Settings):
    """Settings of tokens.index."""

    shards: Shards
    uses: list[TokenUse] = Field(default=[], description="of models trained on it, to refuse too few tokens")

    def non_result_fields(self) -> dict[str, Any]:
        """Return the requirements of models, which do not change the index."""
        return {"uses": True}
