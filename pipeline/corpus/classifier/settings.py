"""Settings of classifiers of texts: trained on a run's own seed texts, or by others."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings
from pipeline.sources.spdx_license_parser import canonicalize_spdx_expression

Label = Literal["good", "bad"]


class SeedSet(Settings):
    """A file of texts of one class."""

    path: str = Field(min_length=1, description="in a format of the sources; `{data}` stands for the run's data folder")
    license: str = Field(min_length=1, description="SPDX license of the texts; one of allowed_licenses")
    text_key: str = Field(default="text", min_length=1, description="field of the text")
    held_out: bool = Field(default=False, description="not trained on: measures the classifier on texts of other kinds")

    @field_validator("license")
    @classmethod
    def _spdx(cls, license: str) -> str:
        return canonicalize_spdx_expression(license)


class QualitySeeds(Settings):
    """The seed texts of a language's quality classifier, which separates good from bad texts."""

    good: list[SeedSet] = Field(min_length=1)
    bad: list[SeedSet] = Field(min_length=1)

    @model_validator(mode="after")
    def _both_classes(self) -> QualitySeeds:
        good, bad = ({seed_set.held_out for seed_set in sets} for sets in (self.good, self.bad))
        if False not in good & bad:
            raise ValueError("good and bad each need a file without held_out for training")
        if good != bad:
            raise ValueError("held_out needs good and bad files: set it for the other class too, or remove it")
        return self


class SeedFile(Settings):
    """A file of seed texts, identified by name and content; its folder does not matter."""

    name: str
    sha256: str
    label: Label
    license: str
    text_key: str
    held_out: bool


class Classifier(Settings):
    """A pretrained classifier: a fastText model, or a Transformers encoder exported to ONNX."""

    path: str = Field(
        min_length=1,
        description="a .bin or .ftz of fastText, or a folder with model.onnx, tokenizer.json and, for the names of "
        "labels, config.json; `{data}` stands for the run's data folder",
    )
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of that file, or of model.onnx")
    license: str = Field(min_length=1, description="SPDX license of the model; one of allowed_licenses")
    url: str | None = Field(default=None, description="where it is published")
    label: str | None = Field(
        default=None, description="label whose probability is the score; none: the single output of an ONNX model"
    )
    languages: list[str] = Field(default=[], description="only documents in these languages; in any where empty")
    window_tokens: int = Field(
        default=512, ge=8, description="ONNX: tokens that the model reads at a time, special tokens included"
    )
    long_texts: Literal["first", "mean"] = Field(
        default="first",
        description="ONNX: score of a text of several windows: that of the first, or the mean of all, weighted by "
        "their tokens",
    )

    @field_validator("license")
    @classmethod
    def _spdx(cls, license: str) -> str:
        return canonicalize_spdx_expression(license)

    @property
    def is_fasttext(self) -> bool:
        return self.path.endswith((".bin", ".ftz"))

    @model_validator(mode="after")
    def _fits_format(self) -> Classifier:
        if self.is_fasttext and self.label is None:
            raise ValueError("a fastText model needs a label, such as __label__hq: write the one to score by")
        if self.is_fasttext and (windows := sorted({"window_tokens", "long_texts"} & self.model_fields_set)):
            raise ValueError(f"a fastText model reads whole texts: remove {windows[0]}")
        return self


class ModelFile(Settings):
    """A file of a model, identified by name and content; its folder does not matter."""

    name: str
    sha256: str


class ClassifySettings(Settings):
    """Settings of corpus.classify; a fastText model has no windows."""

    files: list[ModelFile]
    license: str
    url: str | None = None
    label: str | None = None
    languages: list[str] = []
    window_tokens: int | None = None
    long_texts: Literal["first", "mean"] | None = None

    def non_result_fields(self) -> dict[str, Any]:
        """Return license and address, which change no score."""
        return {"license": True, "url": True}
