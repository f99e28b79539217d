"""Settings of the chapter `tokenizer`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.ground.settings import Settings

BYTE_ALPHABET = 256
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Vocabulary(Settings):
    """What the vocabulary is made of. The first three special tokens begin a text, end a text and pad a batch."""

    algorithm: Literal["bpe"] = "bpe"
    vocabulary_size: Annotated[int, Field(le=2**31)] = 8192
    special_tokens: list[str] = Field(default=["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"])
    minimum_frequency: Annotated[int, Field(ge=1)] = 2

    @model_validator(mode="after")
    def _check(self) -> Self:
        specials = self.special_tokens
        if len(specials) < 3 or len(set(specials)) != len(specials) or not all(specials):
            raise ValueError(
                "special_tokens needs at least three different, non-empty tokens: begin, end and padding, in that order"
            )
        minimum = BYTE_ALPHABET + len(specials)
        if self.vocabulary_size < minimum:
            raise ValueError(
                f"vocabulary_size {self.vocabulary_size} is smaller than the {BYTE_ALPHABET} bytes and "
                f"{len(specials)} special tokens that every text needs: give at least {minimum}"
            )
        return self


class Tokenizer(Vocabulary):
    """One tokenizer of a run."""

    corpus: str = "main"


class TrainSettings(Vocabulary):
    """Settings of tokenizer.train; documents of the validation fraction are not trained on."""

    validation_fraction: Fraction


class FertilitySettings(Settings):
    """Settings of tokenizer.fertility; documents of the validation fraction are measured."""

    validation_fraction: Fraction
