"""Settings of the stage `tokenizer`."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.settings import Settings, optional_later_field

BYTE_ALPHABET = 256
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Algorithm = Literal["bpe", "unigram"]
DigitGrouping = Literal["left", "right", "single"]
Pretokenizer = Literal["dutch", "llama3"]
Size = Annotated[int, Field(le=2**31)]
Positive = Annotated[int, Field(ge=1)]


class VocabularySettings(Settings):
    """Settings of the vocabulary. The first three special tokens are begin-of-text, end-of-text and padding."""

    algorithm: Algorithm = Field(default="bpe", description="byte-level BPE or unigram")
    vocabulary_size: Size = Field(default=8192, description="entries, with special tokens and markers")
    special_tokens: list[str] = Field(
        default=["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"], description="begin of text, end of text, padding"
    )
    minimum_frequency: Positive = Field(default=2, description="times that a pair occurs before it is merged")
    digits: DigitGrouping = Field(
        default="left", description="numbers in groups of three digits from the left or the right, or digit by digit"
    )
    pretokenizer: Pretokenizer = optional_later_field(
        "dutch", description="the pattern that splits text: with Dutch clitics, or Llama 3's, which llama.cpp needs"
    )
    longest_token_bytes: Positive = Field(default=64, description="in UTF-8; special tokens may be longer")

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
        """Raise ValueError if the vocabulary is too small for the bytes, the special tokens and these markers."""
        specials = len({*self.special_tokens, *markers})
        minimum = BYTE_ALPHABET + specials
        if self.vocabulary_size < minimum:
            raise ValueError(
                f"vocabulary_size {self.vocabulary_size} is smaller than the {BYTE_ALPHABET} bytes and "
                f"{specials} special tokens{' and markers' * bool(markers)}: give at least {minimum}"
            )


class SampleSettings(Settings):
    """The documents that a tokenizer is trained on."""

    sample_bytes: Positive = Field(
        default=1_000_000_000, description="maximum training text; memory grows with it, not with the corpus"
    )
    sample_weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = Field(
        default={},
        description="shares of the sample by language, of any sum; other languages get none; empty: as in the corpus",
    )

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.sample_weights and not sum(self.sample_weights.values()):
            raise ValueError("all sample_weights are 0: give at least one above 0")
        return self


class MeasurementSettings(Settings):
    """The text that a tokenizer is measured on."""

    measured_bytes: Positive = Field(default=5_000_000, description="maximum held-out text of each language")


class Sweep(Settings):
    """Values of settings; each combination adds a tokenizer, named after this one and the values."""

    algorithm: list[Algorithm] = Field(default=[], description="algorithms to combine")
    vocabulary_size: list[Size] = Field(default=[], description="vocabulary sizes to combine")
    digits: list[DigitGrouping] = Field(default=[], description="ways to split numbers to combine")
    pretokenizer: list[Pretokenizer] = optional_later_field([], description="patterns to combine")
    minimum_frequency: list[Positive] = Field(default=[], description="minimum frequencies to combine")
    longest_token_bytes: list[Positive] = Field(default=[], description="longest tokens to combine")
    sample_bytes: list[Positive] = Field(default=[], description="sample sizes to combine")


class Tokenizer(VocabularySettings, SampleSettings, MeasurementSettings):
    """One tokenizer of a run."""

    corpus: str = Field(default="main", description="the corpus that it is trained on")
    parallel: dict[str, str] = Field(
        default={}, description="files of parallel sentences by language, one per line, to measure parity"
    )
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _check_parallel(self) -> Self:
        if len(self.parallel) == 1:
            raise ValueError("parallel has only one language: add another one, or remove it")
        return self

    def expand_sweep(self, name: str) -> dict[str, Tokenizer]:
        """Return this tokenizer and those of its sweep, by name, without the combination of this tokenizer.

        Raises:
            ValueError: a combination is invalid.
        """
        written = {key: getattr(self, key) for key in self.model_fields_set - {"sweep"}}
        values = {key: choices for key in Sweep.model_fields if (choices := getattr(self.sweep, key))}
        tokenizers = {name: Tokenizer(**written)}
        for combination in product(*values.values()):
            variant: dict[str, Any] = dict(zip(values, combination, strict=True))
            if any(getattr(self, key) != value for key, value in variant.items()):
                tokenizers["-".join([name, *map(str, combination)])] = Tokenizer(**{**written, **variant})
        return tokenizers


class TrainSettings(VocabularySettings, SampleSettings):
    """Settings of tokenizer.train; documents of the validation fraction are excluded."""

    validation_fraction: Fraction
    markers: list[str] = Field(default=[], description="markers of personal data in the texts, one token each")


class FertilitySettings(MeasurementSettings):
    """Settings of tokenizer.fertility; documents of the validation fraction are measured."""

    validation_fraction: Fraction
    parallel: list[str] = Field(default=[], description="the languages of the files of parallel sentences")
