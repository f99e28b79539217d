"""What a run says about a corpus, with defaults for Dutch and English."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings
from pipeline.corpus.classifier.settings import Perplexity, QualitySeeds, Seeds
from pipeline.corpus.items.settings import Decontamination
from pipeline.corpus.rules.presets import PRESETS, Preset, by_genre, completed, for_source, with_scores
from pipeline.corpus.rules.settings import Harmful, LanguageRules
from pipeline.sources.settings import FieldKeys, Genre, Source


class Normalisation(Settings):
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


class Signatures(Settings):
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


class KeyComparison(Signatures):
    """How keys are compared."""

    exact: bool = True
    memory_bytes: int = Field(default=4_000_000_000, ge=1, description="what finding the copies in a corpus may take")


class Copies(KeyComparison):
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
    def least_similarity(self) -> float:
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


class Deduplication(Copies):
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
    normalisation: Normalisation = Normalisation()
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
        languages = with_scores(languages, written.get("language_model"))
        genres = {"genres": by_genre(languages, written.get("genres", {}))} if preset == "genre" else {}
        return {**written, **genres, "languages": completed(languages, preset)}

    @model_validator(mode="after")
    def _languages_of_genres(self) -> Corpus:
        if self.genres and self.preset != "genre":
            raise ValueError("genres: these are rules of the preset genre: write preset: genre, or leave them out")
        for genre, languages in self.genres.items():
            if unknown := sorted(languages.keys() - self.languages.keys()):
                raise ValueError(f"genres.{genre}: the corpus has no language {unknown[0]!r}: add it to languages")
        return self

    @model_validator(mode="after")
    def _languages_of_seeds(self) -> Corpus:
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
        return for_source(of_genre or self.languages, source.filters)


class FilterSettings(FieldKeys):
    """How a source is read and filtered."""

    source: str
    license_key: str | None = None
    license_names: dict[str, str] = {}
    allowed_licenses: list[str] = Field(default=[], description="of documents, where they have their own licence")
    document_bytes: int = 20_000_000
    languages: dict[str, LanguageRules]
    normalisation: Normalisation = Normalisation()
    language_model_sha256: str | None = None
    harmful: Harmful = Harmful()
    harmful_sha256: list[str] = Field(default=[], description="of the files of its lists and classifiers")
    personal_data: PersonalData
    broken_share: float
    quarantine: bool = Field(default=False, description="leave a damaged file out instead of stopping")
    keep_removed: bool = False
    samples: bool = False
    own_sample_licenses: list[str] | None = Field(default=None, description="where documents have their own licence")


class SignaturesSettings(Signatures):
    """How the signatures of documents are computed."""


class QualitySettings(Settings):
    """What the classifiers of a corpus are trained on, by language, and how it is written."""

    normalisation: Normalisation
    languages: dict[str, list[Seeds]]


class EqualKeysSettings(KeyComparison):
    """Which share of all keys is compared: the one with the number `share` of so many `shares`, from 0 on."""

    share: int = Field(ge=0)
    shares: int = Field(ge=1)


class FindDuplicatesSettings(Settings):
    """How documents with equal signatures are grouped."""

    deduplication: Copies


class DeduplicateSettings(Settings):
    """Whether the texts of removed documents are kept, and whether samples of them may be shown."""

    keep_removed: bool = False
    samples: bool = False
    own_sample_licenses: list[str] | None = Field(default=None, description="where documents have their own licence")


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
