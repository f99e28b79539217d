"""What a run says about a corpus, with defaults for Dutch and English, and what its steps are told of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings
from pipeline.corpus.items.settings import Decontamination
from pipeline.corpus.rules.presets import (
    PRESETS,
    Preset,
    add_known_scores,
    complete_genres,
    complete_languages,
    rules_for_source,
)
from pipeline.corpus.rules.settings import Harmful, LanguageRules
from pipeline.sources.settings import Genre, ReadSettings, Rights, Source
from pipeline.sources.spdx_licenses import canonical_license

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
        return canonical_license(license)


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


class SeedFile(Settings):
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


DISCLOSURE_KEYS = ("data_selection", "intended_use", "limitations", "removal")
"""What Croissant's vocabulary for responsible AI asks that only the provider knows: keys of `disclosure`."""


class PublishedSource(Settings):
    """A source as the data set names it."""

    name: str
    language: str
    genre: Genre | None = None
    license: str
    license_key: str | None = None
    rights: Rights


class PublishSettings(Settings):
    """One corpus; `filters` are the settings by which it was filtered and deduplicated.

    `stated` is what the provider says of it in the section `disclosure`, by its key.
    """

    run: str
    corpus: str
    provider: str | None
    contact: str | None
    stated: dict[str, str]
    keep_removed: bool
    filters: dict[str, Any]
    sources: list[PublishedSource]


class Normalization(Settings):
    """How characters are written. Mojibake is repaired, and Unicode is NFC, in any case."""

    punctuation: bool = Field(
        default=False, description="typographic quotation marks, dashes and ellipses become those of ASCII"
    )
    white_space: Literal["keep", "tidy", "collapse"] = Field(
        default="tidy",
        description="tidy: no invisible characters, one kind of blank, none at the end of a line, at most one empty "
        "line in a row; collapse: also no indentation and one blank between words",
    )


class LanguageModel(Settings):
    """A fastText model for the identification of languages, such as lid.176.bin or GlotLID's model.bin."""

    path: str = Field(min_length=1, description="the model's file")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of that file: another model is another result")
    known_scores: Literal["glotlid"] | None = Field(
        default=None, description="which model it is: languages without a minimum_score get the one known for it"
    )


class PersonalData(Settings):
    """Which personal data is replaced, and by what: a marker such as <EMAIL>, or a value that belongs to nobody."""

    email: bool = True
    ip: bool = True
    bsn: bool = True
    iban: bool = True
    telephone: bool = True
    address: bool = Field(default=True, description="a Dutch postcode with the number of a house")
    kvk: bool = True
    number_plate: bool = True
    credit_card: bool = True
    passport: bool = True
    replacement: Literal["marker", "synthetic"] = "marker"
    telephone_regions: list[str] = Field(
        default=["NL", "BE", "GB", "US"],
        min_length=1,
        description="the first is that of numbers without a country code; the others need a word such as 'telefoon'",
    )
    public_bodies: list[str] = Field(
        default=[], description="what stays: domains, mailboxes (info@), telephone numbers, postcodes; * for any"
    )
    known_public_bodies: bool = Field(default=True, description="keep also what the pipeline knows to be public")
    names: str | None = Field(default=None, description="the folder of a spaCy pipeline that recognises persons")
    names_sha256: str | None = Field(
        default=None, description="the hash of that folder; computed where it is not given"
    )

    def markers(self) -> list[str]:
        """Return what stands in a text for what was replaced, a marker for each kind; none where values stand there."""
        if self.replacement != "marker":
            return []
        switches = (key for key, field in type(self).model_fields.items() if field.annotation is bool)
        kinds = [key for key in switches if key != "known_public_bodies" and getattr(self, key)]
        return [f"<{kind.upper()}>" for kind in [*kinds, *["name"] * (self.names is not None)]]


class SignatureSettings(Settings):
    """What is computed of a document to find its copies.

    Two texts are near duplicates from a similarity of about (1/bands)^(1/rows).
    """

    minhash: bool = True
    ngram: int = Field(default=5, ge=1)
    bands: int = Field(default=14, ge=1, description="of MinHash values; texts that agree in one of them are compared")
    rows: int = Field(default=8, ge=1, description="MinHash values of a band")
    seed: int = Field(default=1, ge=0, lt=2**32)
    paragraphs: bool = Field(default=False, description="remove paragraphs that occurred before in the corpus")
    paragraph_characters: int = Field(default=100, ge=1, description="length from which a paragraph is removed")


class KeyComparison(SignatureSettings):
    """How keys are compared."""

    exact: bool = True
    memory_bytes: int = Field(default=4_000_000_000, ge=1, description="what finding the copies in a corpus may take")


class DuplicateSelection(KeyComparison):
    """How copies are found, and which is kept: of the first preferred source, then the longest, then the first id."""

    minimum_jaccard: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of the different n-grams of either text that a near copy has in common with the kept one; "
        "none: (1/bands)^(1/rows); 0: not looked at",
    )
    prefer: list[str] = Field(default=[], description="sources whose copy is kept, the best first; the others follow")

    @property
    def minimum_similarity(self) -> float:
        """Return how alike a near copy and the kept document are at least."""
        usual = (1 / self.bands) ** (1 / self.rows)
        return usual if self.minimum_jaccard is None else self.minimum_jaccard

    @field_validator("prefer")
    @classmethod
    def _once(cls, prefer: list[str]) -> list[str]:
        for source in prefer:
            if prefer.count(source) > 1:
                raise ValueError(f"{source} stands twice: write it once")
        return prefer


class Deduplication(DuplicateSelection):
    """What a configuration says of the copies in a corpus."""

    jobs: int = Field(default=1, ge=1, description="that share the keys; 1: they are compared where copies are found")


# Licences that permit anyone to pass on an extract that names its source.
SAMPLE_LICENSES = [
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unlicense"),
    *("CC0-1.0", "CC-PDDC", "PDDL-1.0", "ODC-By-1.0", "ODbL-1.0", "OGL-UK-3.0", "EUPL-1.2", "etalab-2.0"),
    *(f"CC-BY{kind}-{version}" for kind in ("", "-SA") for version in ("1.0", "2.0", "2.5", "3.0", "4.0")),
]


class Corpus(Settings):
    """One corpus: from which sources, in which languages, cleaned how."""

    preset: Preset = Field(default="standard", description="the rules that `languages` changes")
    languages: dict[str, LanguageRules] = Field(default=PRESETS["standard"], min_length=1)
    genres: dict[Genre, dict[str, LanguageRules]] = Field(
        default={}, description="with the preset `genre`: what is changed for the sources of a genre, by language"
    )
    normalization: Normalization = Normalization()
    language_model: LanguageModel | None = Field(default=None, description="instead of the one of py3langid")
    harmful: Harmful = Harmful()
    personal_data: PersonalData = PersonalData()
    deduplication: Deduplication = Deduplication()
    decontamination: Decontamination = Decontamination()
    quality: dict[str, QualitySeeds] = Field(
        default={}, description="by language, the texts by which its documents get a score; none: they get none"
    )
    perplexity: Perplexity | None = Field(default=None, description="documents get that under a model of the run")
    exclude_sources: list[str] = Field(default=[])
    broken_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="largest share of records that may be unreadable, or name another licence than their source",
    )
    keep_removed: bool = Field(default=False, description="keep the masked texts of removed documents, privately")
    sample_licenses: list[str] = Field(
        default=SAMPLE_LICENSES,
        description="licences under which samples of removed documents may be shown; public domain always may",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, written: Any) -> Any:
        """Complete what is written about Dutch and English with the rules of the preset, or of each genre."""
        if not isinstance(written, Mapping) or not {"preset", "languages"} & written.keys():
            return written
        preset = written.get("preset", "standard")
        if not isinstance(preset, str):
            return written
        languages = written.get("languages", dict.fromkeys(PRESETS.get(preset, {})))
        languages = add_known_scores(languages, written.get("language_model"))
        genres = {"genres": complete_genres(languages, written.get("genres", {}))} if preset == "genre" else {}
        return {**written, **genres, "languages": complete_languages(languages, preset)}

    @model_validator(mode="after")
    def _known_languages(self) -> Corpus:
        if self.genres and self.preset != "genre":
            raise ValueError("genres: these are rules of the preset genre: write preset: genre, or leave them out")
        for genre, languages in self.genres.items():
            if unknown := sorted(languages.keys() - self.languages.keys()):
                raise ValueError(f"genres.{genre}: the corpus has no language {unknown[0]!r}: add it to languages")
        if unknown := sorted(self.quality.keys() - self.languages.keys()):
            raise ValueError(f"quality: the corpus has no language {unknown[0]!r}: add it to languages")
        return self

    def rules_for(self, source: Source) -> dict[str, LanguageRules]:
        """Return the rules by which the documents of a source are judged, by language.

        Raises:
            ValueError: the source has no genre, and that decides; or it changes what the corpus does not have.
        """
        if self.preset == "genre" and source.genre is None:
            raise ValueError(f"the preset is genre, and the source has none: write one of {', '.join(self.genres)}")
        of_genre = None if source.genre is None else self.genres.get(source.genre)
        return rules_for_source(of_genre or self.languages, source.filters)


class UnitSettings(ReadSettings):
    """How the raw files of a unit are read, and when they are too much damaged."""

    broken_share: float
    quarantine: bool = Field(default=False, description="leave a damaged file out instead of stopping")


class DeduplicateSettings(Settings):
    """Whether the texts of removed documents are kept, and whether samples of them may be shown."""

    keep_removed: bool = False
    samples: bool = False
    own_sample_licenses: list[str] | None = Field(default=None, description="where documents have their own licence")


class FilterSettings(UnitSettings, DeduplicateSettings):
    """How a source is read and filtered, and what is kept of removed documents."""

    license_names: dict[str, str] = {}
    allowed_licenses: list[str] = Field(default=[], description="of documents, where they have their own licence")
    languages: dict[str, LanguageRules]
    normalization: Normalization = Normalization()
    language_model_sha256: str | None = None
    harmful: Harmful = Harmful()
    harmful_sha256: list[str] = Field(default=[], description="of the files of its lists and classifiers")
    personal_data: PersonalData

    @model_validator(mode="before")
    @classmethod
    def _rename_old_key(cls, written: Any) -> Any:
        """Accept `normalisation`, as records of the previous version spell the key."""
        if not isinstance(written, Mapping):
            return written
        return {"normalization" if key == "normalisation" else key: value for key, value in written.items()}


class QualitySettings(Settings):
    """What the classifiers of a corpus are trained on, by language, and how it is written."""

    normalization: Normalization
    languages: dict[str, list[SeedFile]]


class EqualKeysSettings(KeyComparison):
    """Which share of all keys is compared: the one with the number `share` of so many `shares`, from 0 on."""

    share: int = Field(ge=0)
    shares: int = Field(ge=1)


class FindDuplicatesSettings(Settings):
    """How documents with equal signatures are grouped."""

    deduplication: DuplicateSelection


class DescribedSource(Settings):
    """What the statistics say about a source besides its counts."""

    name: str
    license: str
    language: str
    damaged_share: float = Field(default=0.0, description="largest share of its bytes in damaged files")


class StatisticsSettings(Settings):
    """The corpus, the sources that it is made from, and by which model and scores its languages were told."""

    corpus: str
    language_model: str | None = None
    minimum_scores: dict[str, list[float]] = {}
    sources: list[DescribedSource]
