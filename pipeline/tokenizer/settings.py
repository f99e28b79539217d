"""Settings of the stage `tokenizer`."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.settings import Settings

BYTE_ALPHABET = 256
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Algorithm = Literal["bpe", "unigram"]
DigitGrouping = Literal["left", "right", "single"]
Size = Annotated[int, Field(le=2**31)]
Positive = Annotated[int, Field(ge=1)]


class VocabularySettings(Settings):
    """What the vocabulary is made of. The first three special tokens begin a text, end a text and pad a batch."""

    algorithm: Algorithm = Field(default="bpe", description="byte-level BPE or unigram")
    vocabulary_size: Size = Field(default=8192, description="entries, with special tokens and markers")
    special_tokens: list[str] = Field(
        default=["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"], description="begin of text, end of text, padding"
    )
    minimum_frequency: Positive = Field(default=2, description="times that a pair occurs before it is merged")
    digits: DigitGrouping = Field(
        default="left", description="numbers in groups of three digits from the left or the right, or digit by digit"
    )
    longest_token_bytes: Positive = Field(default=64, description="of UTF-8; special tokens may be longer")

    @model_validator(mode="after")
    def _check(self) -> Self:
        specials = self.special_tokens
        if len(specials) < 3 or len(set(specials)) != len(specials) or not all(specials):
            raise ValueError(
                "special_tokens needs at least three different, non-empty tokens: begin, end and padding, in that order"
            )
        self.check_size([])
        return self

    def check_size(self, markers: list[str]) -> None:
        """Raises ValueError when the vocabulary is too small for the bytes, the special tokens and these markers."""
        specials = len({*self.special_tokens, *markers})
        minimum = BYTE_ALPHABET + specials
        if self.vocabulary_size < minimum:
            raise ValueError(
                f"vocabulary_size {self.vocabulary_size} is smaller than the {BYTE_ALPHABET} bytes and "
                f"{specials} special tokens{' and markers' * bool(markers)} that every text needs: give at least "
                f"{minimum}"
            )


class SampleSettings(Settings):
    """On which documents a tokenizer is trained."""

    sample_bytes: Positive = Field(
        default=1_000_000_000, description="of text that it is trained on at most; memory grows with it, not the corpus"
    )
    sample_weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = Field(
        default={}, description="shares of the sample by language, of any sum; not named: left out; none: as they come"
    )

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.sample_weights and not sum(self.sample_weights.values()):
            raise ValueError("the sample_weights are all 0: give at least one that is more")
        return self


class MeasurementSettings(Settings):
    """On which text a tokenizer is measured."""

    measured_bytes: Positive = Field(default=5_000_000, description="of held-out text of each language, at most")


class Sweep(Settings):
    """Values of which each combination makes a tokenizer more, named after the first one and the values."""

    algorithm: list[Algorithm] = Field(default=[], description="algorithms to combine")
    vocabulary_size: list[Size] = Field(default=[], description="vocabulary sizes to combine")
    digits: list[DigitGrouping] = Field(default=[], description="ways to split numbers to combine")
    minimum_frequency: list[Positive] = Field(default=[], description="minimum frequencies to combine")
    longest_token_bytes: list[Positive] = Field(default=[], description="longest tokens to combine")
    sample_bytes: list[Positive] = Field(default=[], description="sample sizes to combine")


class Tokenizer(VocabularySettings, SampleSettings, MeasurementSettings):
    """One tokenizer of a run."""

    corpus: str = Field(default="main", description="the corpus that it is trained on")
    parallel: dict[str, str] = Field(
        default={}, description="files of the same sentences by language, a line each, that its parity is measured on"
    )
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _check_parallel(self) -> Self:
        if len(self.parallel) == 1:
            raise ValueError("parallel has the sentences of one language: give those of another one, or none")
        return self

    def expand_sweep(self, name: str) -> dict[str, Tokenizer]:
        """Return this tokenizer and those of its sweep, by name; a combination that it has itself is left out.

        Raises:
            ValueError: a combination is no tokenizer.
        """
        written = {key: getattr(self, key) for key in self.model_fields_set - {"sweep"}}
        values = {key: found for key in Sweep.model_fields if (found := getattr(self.sweep, key))}
        found = {name: Tokenizer(**written)}
        for combination in product(*values.values()):
            variant: dict[str, Any] = dict(zip(values, combination, strict=True))
            if any(getattr(self, key) != value for key, value in variant.items()):
                found["-".join([name, *map(str, combination)])] = Tokenizer(**{**written, **variant})
        return found


class TrainSettings(VocabularySettings, SampleSettings):
    """Settings of tokenizer.train; documents of the validation fraction are not trained on."""

    validation_fraction: Fraction
    markers: list[str] = Field(default=[], description="what stands in the texts for personal data: a token each")


class FertilitySettings(MeasurementSettings):
    """Settings of tokenizer.fertility; documents of the validation fraction are measured."""

    validation_fraction: Fraction
    parallel: list[str] = Field(default=[], description="the languages of the files of parallel sentences")
