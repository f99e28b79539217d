"""What a run says about the quality of texts: which texts are good and which are bad, language by language."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings
from pipeline.sources.spdx_licenses import canonical

Label = Literal["good", "bad"]


class SeedSet(Settings):
    """A file of texts of one class."""

    path: str = Field(min_length=1, description="in a format of the sources; `{data}` stands for the run's data folder")
    license: str = Field(min_length=1, description="SPDX, of the texts; it has to be one of allowed_licenses")
    text_key: str = Field(default="text", min_length=1)
    held_out: bool = Field(default=False, description="not trained on: measures the classifier on texts of other kinds")

    @field_validator("license")
    @classmethod
    def _spdx(cls, license: str) -> str:
        return canonical(license)


class QualitySeeds(Settings):
    """What a language's classifier is trained on: it tells the good texts from the bad ones."""

    good: list[SeedSet] = Field(min_length=1)
    bad: list[SeedSet] = Field(min_length=1)

    @model_validator(mode="after")
    def _both_classes(self) -> QualitySeeds:
        good, bad = ({seed_set.held_out for seed_set in sets} for sets in (self.good, self.bad))
        if False not in good & bad:
            raise ValueError("good and bad each need a file without held_out, to be trained on")
        if good != bad:
            raise ValueError("held_out needs good files and bad ones: add it to a file of the other class, or leave it")
        return self


class Seeds(Settings):
    """A file of seeds as the step gets it: by its name and content, for where it lies decides nothing."""

    name: str
    sha256: str
    label: Label
    license: str
    text_key: str
    held_out: bool


class Perplexity(Settings):
    """How much a model of the run is surprised by each document."""

    model: str = Field(description="one whose tokens are of another corpus")
    tokens: int = Field(default=512, ge=1, description="from a document's beginning; at most its sequence_length")


class PerplexitySettings(Settings):
    """How many tokens are read of each document; the model is an input."""

    tokens: int
