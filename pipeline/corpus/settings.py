"""Settings of the stage `corpus`, with defaults for Dutch and English, and the settings of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings, optional_later_field
from pipeline.corpus.classifier.settings import Classifier, ClassifySettings, QualitySeeds, SeedFile
from pipeline.corpus.decontamination.settings import Decontamination
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.rules.presets import (
    GENRES,
    PRESETS,
    Preset,
    add_language_identification_minimum_scores,
    complete_genre_rules,
    complete_language_rules,
    merge_source_rule_changes,
)
from pipeline.corpus.rules.settings import Harmful, LanguageRules
from pipeline.sources.settings import Genre, ReadSettings, Rights, Source, UrlLists

ColumnName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Perplexity(Settings):
    """Settings for the perplexity of documents under a model of the run."""

    model: str = Field(description="a model with tokens of another corpus")
    tokens: int = Field(default=512, ge=1, description="from a document's beginning; at most its sequence_length")


class PerplexitySettings(Settings):
    """The number of tokens to read of each document; the model is an input."""

    tokens: int


DISCLOSURE_KEYS = ("data_selection", "intended_use", "limitations", "removal")
"""Keys of `disclosure` for fields of Croissant's responsible AI vocabulary that only the provider knows."""


class PublishedSource(Settings):
    """A source as listed in the data set."""

    name: str
    language: str
    genre: Genre | None = None
    sampled_genre: Genre | None = optional_later_field(None, description="by a sample, where none is stated")
    license: str
    license_key: str | None = None
    rights: Rights


class PublishSettings(Settings):
    """Settings of corpus.publish.

    `filters` are the settings of filtering and deduplication, `stated` the provider's statements by key of
    `disclosure`.
    """

    run: str
    corpus: str
    provider: str | None
    contact: str | None
    stated: dict[str, str]
    keep_removed: bool
    filters: dict[str, Any]
    sources: list[PublishedSource]
    classifiers: dict[str, ClassifySettings] = optional_later_field({}, description="by the name of the column")


class Normalization(Settings):
    """How characters are normalized. Mojibake is always repaired, and Unicode is always NFC."""

    punctuation: bool = Field(default=False, description="write quotation marks, dashes and ellipses in ASCII")
    white_space: Literal["keep", "tidy", "collapse"] = Field(
        default="tidy",
        description="tidy: no invisible characters, one kind of blank, none at the end of a line, at most one empty "
        "line in a row; collapse: also no indentation and one blank between words",
    )


class LanguageModel(Settings):
    """A fastText model for the identification of languages, such as lid.176.bin or GlotLID's model.bin."""

    path: str = Field(min_length=1, description="the model's file")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of that file")
    known_scores: Literal["glotlid"] | None = Field(
        default=None, description="which model it is: languages without a minimum_score get the one known for it"
    )


class SignatureSettings(Settings):
    """Settings of document signatures for deduplication.

    Texts become candidates from a Jaccard similarity of about (1/bands)^(1/rows).
    """

    minhash: bool = Field(default=True, description="whether near copies are found")
    ngram: int = Field(default=5, ge=1, description="words of the n-grams that texts are compared by")
    bands: int = Field(default=14, ge=1, description="bands of MinHash values; texts equal in one band are compared")
    rows: int = Field(default=8, ge=1, description="MinHash values per band")
    seed: int = Field(default=1, ge=0, lt=2**32, description="seed of the hash functions")
    paragraphs: bool = Field(default=False, description="remove paragraphs that occurred before in the corpus")
    paragraph_characters: int = Field(default=100, ge=1, description="length from which a paragraph is removed")
    passage_words: int | None = optional_later_field(
        None, ge=8, description="remove passages of so many words that an earlier document has; none: they stay"
    )
    line_characters: int | None = optional_later_field(
        None,
        ge=1,
        description="remove lines of so many characters that occur in `line_documents` documents of a domain, or of a "
        "source where documents have no address; none: they stay",
    )


class KeyComparison(SignatureSettings):
    """Settings for comparing keys: content hashes and MinHash bands."""

    exact: bool = Field(default=True, description="texts equal except for case and white space are copies")
    memory_bytes: int = Field(default=4_000_000_000, ge=1, description="memory for finding duplicates in a corpus")


class DuplicateSelection(KeyComparison):
    """How duplicates are found, and which is kept: by preferred source, then length, then id."""

    minimum_jaccard: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="least Jaccard similarity of the n-grams of a removed near duplicate and the kept text; "
        "none: (1/bands)^(1/rows); 0: not checked",
    )
    prefer: list[str] = Field(default=[], description="sources to keep duplicates of, the best first; others follow")
    line_documents: int = optional_later_field(
        10, ge=2, description="documents of a domain that contain a line, from which it is removed from all but one"
    )

    @model_validator(mode="after")
    def _lines_are_searched(self) -> DuplicateSelection:
        if self.line_documents != 10 and self.line_characters is None:
            raise ValueError("line_documents has no effect without line_characters: write line_characters too")
        return self

    @property
    def minimum_similarity(self) -> float:
        """Return the minimum Jaccard similarity of a removed near duplicate and the kept document."""
        usual = (1 / self.bands) ** (1 / self.rows)
        return usual if self.minimum_jaccard is None else self.minimum_jaccard

    @field_validator("prefer")
    @classmethod
    def _once(cls, prefer: list[str]) -> list[str]:
        for source in prefer:
            if prefer.count(source) > 1:
                raise ValueError(f"{source} is listed twice: write it once")
        return prefer


class Deduplication(DuplicateSelection):
    """The section `deduplication` of a corpus."""

    jobs: int = Field(default=1, ge=1, description="jobs that compare keys; 1: find_duplicates compares them")


# Licenses that permit anyone to share an extract with attribution.
SAMPLE_LICENSES = [
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unlicense"),
    *("CC0-1.0", "CC-PDDC", "PDDL-1.0", "ODC-By-1.0", "ODbL-1.0", "OGL-UK-3.0", "EUPL-1.2", "etalab-2.0"),
    *(f"CC-BY{kind}-{version}" for kind in ("", "-SA") for version in ("1.0", "2.0", "2.5", "3.0", "4.0")),
]


class Corpus(Settings):
    """One corpus: its sources, languages and cleaning."""

    preset: Preset = Field(
        default="genre",
        description="filter rules, which `languages` modifies; genre: those of each source's genre, by a sample of its "
        "text where it states none",
    )
    languages: dict[str, LanguageRules] = Field(default=PRESETS["genre"], min_length=1)
    genres: dict[Genre, dict[str, LanguageRules]] = Field(
        default={}, description="with the preset `genre`: changes for the sources of a genre, by language"
    )
    normalization: Normalization = Normalization()
    language_model: LanguageModel | None = Field(default=None, description="fastText model instead of py3langid")
    harmful: Harmful = Harmful()
    url_lists: UrlLists = Field(default=UrlLists(), description="of all sources of the corpus")
    personal_data: PersonalData = PersonalData()
    deduplication: Deduplication = Deduplication()
    decontamination: Decontamination = Decontamination()
    quality: dict[str, QualitySeeds] = Field(
        default={}, description="by language, seed texts of the quality classifier; none: no quality score"
    )
    classifiers: dict[ColumnName, Classifier] = Field(
        default={}, description="pretrained classifiers, each by the name of its column"
    )
    perplexity: Perplexity | None = Field(default=None, description="compute perplexities under a model of the run")
    exclude_sources: list[str] = Field(default=[], description="sources of the run that are not in this corpus")
    broken_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="largest share of records that may be unreadable, or state another license than their source",
    )
    keep_removed: bool = Field(default=False, description="keep the masked texts of removed documents in private files")
    sample_licenses: list[str] = Field(
        default=SAMPLE_LICENSES,
        description="licenses that permit samples of removed documents; public domain always does",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, written: Any) -> Any:
        """Complete the given rules for Dutch and English with the rules of the preset, or of each genre."""
        if not isinstance(written, Mapping) or not {"preset", "languages", "genres", "language_model"} & written.keys():
            return written
        preset = written.get("preset", "genre")
        if not isinstance(preset, str):
            return written
        languages = written.get("languages", dict.fromkeys(PRESETS.get(preset, {})))
        languages = add_language_identification_minimum_scores(languages, written.get("language_model"), preset)
        genres = {"genres": complete_genre_rules(languages, written.get("genres", {}))} if preset == "genre" else {}
        return {**written, **genres, "languages": complete_language_rules(languages, preset)}

    @model_validator(mode="after")
    def _known_languages(self) -> Corpus:
        if self.genres and self.preset != "genre":
            raise ValueError("genres needs the preset genre: write preset: genre, or remove genres")
        for genre, languages in self.genres.items():
            if unknown := sorted(languages.keys() - self.languages.keys()):
                raise ValueError(f"genres.{genre}: the corpus has no language {unknown[0]!r}: add it to languages")
        if unknown := sorted(self.quality.keys() - self.languages.keys()):
            raise ValueError(f"quality: the corpus has no language {unknown[0]!r}: add it to languages")
        for name, classifier in self.classifiers.items():
            if unknown := sorted({*classifier.languages} - self.languages.keys()):
                raise ValueError(f"classifiers.{name}: the corpus has no language {unknown[0]!r}: add it to languages")
        return self

    def rules_for(self, source: Source, genre: Genre | None) -> dict[str, LanguageRules]:
        """Return the filter rules for the documents of a source of a genre, by language.

        Raises:
            ValueError: the source changes a language outside the corpus.
        """
        of_genre = self.rules_by_genre.get(genre) if genre else None
        return merge_source_rule_changes(of_genre or self.languages, source.filters)

    @property
    def rules_by_genre(self) -> dict[Genre, dict[str, LanguageRules]]:
        """The rules of each genre, by language; empty with another preset than `genre`."""
        return self.genres or (GENRES if self.preset == "genre" else {})


class UnitSettings(ReadSettings):
    """How the raw files of a unit are read, and how much damage is allowed."""

    broken_share: float
    quarantine: bool = Field(default=False, description="skip a damaged file instead of stopping")


class DecontaminateSettings(Settings):
    """The names of the classifiers whose scores are columns of the final documents."""

    classifiers: list[str] = optional_later_field([])


class DeduplicateSettings(Settings):
    """Whether texts and samples of removed documents are kept."""

    keep_removed: bool = False
    samples: bool = False
    own_sample_licenses: list[str] | None = Field(default=None, description="if documents have their own licenses")


class UrlListFile(Settings):
    """A file of domains and addresses, identified by name and content; its folder does not matter."""

    name: str
    sha256: str


class FilterSettings(UnitSettings, DeduplicateSettings):
    """Settings of corpus.filter: how a source is read and filtered, and what is kept of removed documents."""

    license_names: dict[str, str] = {}
    stated_language: str | None = optional_later_field(None, description="for documents with their own language")
    blocked_urls: list[UrlListFile] = optional_later_field([], description="lists of what is removed")
    allowed_urls: list[UrlListFile] = optional_later_field([], description="lists of all that is kept")
    allowed_licenses: list[str] = Field(default=[], description="for documents with their own licenses")
    page_reservations: bool = True
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
    """Settings of corpus.quality: the seed files by language, and how texts are normalized."""

    normalization: Normalization
    languages: dict[str, list[SeedFile]]


class EqualKeysSettings(KeyComparison):
    """Settings of corpus.equal_keys: the number of this `share`, from 0, of all `shares` of the keys."""

    share: int = Field(ge=0)
    shares: int = Field(ge=1)


class FindDuplicatesSettings(Settings):
    """Settings of corpus.find_duplicates."""

    deduplication: DuplicateSelection


class DescribedSource(Settings):
    """A source as listed in the statistics."""

    name: str
    license: str
    language: str
    damaged_share: float = Field(default=0.0, description="largest share of its bytes in damaged files")


class StatisticsSettings(Settings):
    """Settings of corpus.statistics: the corpus, its sources and classifiers, the language model and minimum scores."""

    corpus: str
    language_model: str | None = None
    minimum_scores: dict[str, list[float]] = {}
    sources: list[DescribedSource]
    classifiers: dict[str, ClassifySettings] = optional_later_field({}, description="by the name of the column")
