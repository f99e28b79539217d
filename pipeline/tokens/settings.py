"""Settings of the chapter `tokens`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.settings import Settings

Shards = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Tokens(Settings):
    """One token set of a run: a corpus in the tokens of a tokenizer, part of it held out for validation."""

    corpus: str = "main"
    tokenizer: str = "main"
    shards: Shards = 4
    validation_fraction: Fraction = 0.05


class ShardSettings(Settings):
    """Settings of tokens.shard."""

    shard: Annotated[int, Field(ge=0)]
    shards: Shards
    validation_fraction: Fraction

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard} does not exist: the last of {self.shards} is {self.shards - 1}")
        return self


class IndexSettings(Settings):
    """Settings of tokens.index."""

    shards: Shards
