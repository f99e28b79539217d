"""What a run says about a corpus, with defaults for Dutch and English.

The English thresholds are those of Gopher (Rae et al. 2021, table A1); the Dutch ones are those that FineWeb-2 chose
for Dutch. A threshold of null switches its rule off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from pipeline.settings import Settings


class Repetition(Settings):
    """The largest shares of a document that may be repetition: of its lines, its paragraphs, its characters."""

    duplicate_lines: float | None = 0.3
    duplicate_line_characters: float | None = 0.2
    duplicate_paragraphs: float | None = 0.3
    duplicate_paragraph_characters: float | None = 0.2
    top_n_grams: dict[int, float] = Field(default={2: 0.2, 3: 0.18, 4: 0.16})
    duplicate_n_grams: dict[int, float] = Field(default={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1})

    @field_validator("top_n_grams", "duplicate_n_grams")
    @classmethod
    def _lengths(cls, thresholds: dict[int, float]) -> dict[int, float]:
        if any(not 2 <= n <= 20 for n in thresholds):
            raise ValueError("an n-gram is 2 to 20 words long")
        return dict(sorted(thresholds.items()))


class Quality(Settings):
    """The bounds of ordinary prose. Words are counted with punctuation, except where a rule says otherwise."""

    minimum_words: int | None = Field(default=50, description="words that are not punctuation")
    maximum_words: int | None = Field(default=100_000, description="words that are not punctuation")
    minimum_mean_word_length: float | None = 3.0
    maximum_mean_word_length: float | None = 10.0
    symbol_ratio: float | None = Field(default=0.1, description="most hash signs, or ellipses, per word")
    bullet_lines: float | None = Field(default=0.9, description="largest share of lines that begin with a bullet")
    ellipsis_lines: float | None = Field(default=0.3, description="largest share of lines that end in an ellipsis")
    alphabetic_words: float | None = Field(default=0.8, description="smallest share of words with a letter")
    minimum_stop_words: int = Field(default=2, ge=0, description="least number of different stop words")
    stop_words: list[str] = Field(default=["the", "be", "to", "of", "and", "that", "have", "with"])

    @model_validator(mode="after")
    def _enough_stop_words(self) -> Quality:
        if self.minimum_stop_words > len(self.stop_words):
            raise ValueError(
                f"minimum_stop_words is {self.minimum_stop_words} of {len(self.stop_words)} stop_words: "
                "lower it, or write more stop_words"
            )
        return self


class LanguageRules(Settings):
    """What a document in one language has to be like."""

    minimum_score: float = Field(default=0.65, ge=0, le=1, description="least probability of the language")
    repetition: Repetition = Repetition()
    quality: Quality = Quality()


ENGLISH = LanguageRules()
DUTCH = LanguageRules(
    minimum_score=0.689,
    repetition=Repetition(
        duplicate_lines=0.296,
        top_n_grams={2: 0.213, 3: 0.182, 4: 0.158},
        duplicate_n_grams={5: 0.156, 6: 0.1456, 7: 0.1352, 8: 0.1248, 9: 0.1144, 10: 0.104},
    ),
    quality=Quality(
        maximum_mean_word_length=17.0,
        alphabetic_words=0.828,
        stop_words=["de", "het", "een", "en", "van", "in", "is", "dat", "op", "te", "zijn", "met", "voor", "niet"],
    ),
)
KNOWN_LANGUAGES = {"nl": DUTCH, "en": ENGLISH}


def _merged(defaults: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults with what is given in their place; mappings of settings are merged key by key."""
    merged = dict(defaults)
    for key, value in given.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), dict) and not key.endswith("n_grams")
        merged[key] = _merged(merged[key], value) if nested else value
    return merged


class PersonalData(Settings):
    """Which personal data is replaced by a marker such as <EMAIL>."""

    email: bool = True
    ip: bool = True
    bsn: bool = True
    iban: bool = True


class Deduplication(Settings):
    """How copies are found. Two texts are near duplicates from a similarity of about (1/buckets)^(1/hashes)."""

    exact: bool = True
    minhash: bool = True
    ngram: int = Field(default=5, ge=1)
    buckets: int = Field(default=14, ge=1)
    hashes_per_bucket: int = Field(default=8, ge=1)
    seed: int = Field(default=1, ge=0, lt=2**32)


class Corpus(Settings):
    """One corpus: from which sources, in which languages, cleaned how."""

    languages: dict[str, LanguageRules] = Field(default=KNOWN_LANGUAGES, min_length=1)
    personal_data: PersonalData = PersonalData()
    deduplication: Deduplication = Deduplication()
    exclude_sources: list[str] = Field(default=[])
    broken_share: float = Field(default=0.05, ge=0, le=1, description="largest share of lines that may be unreadable")

    @field_validator("languages", mode="before")
    @classmethod
    def _complete(cls, languages: Any) -> Any:
        """Complete what is written about Dutch or English with that language's own defaults."""
        if not isinstance(languages, Mapping):
            return languages
        return {
            code: _merged(KNOWN_LANGUAGES[code].model_dump(), rules or {})
            if code in KNOWN_LANGUAGES and (rules is None or isinstance(rules, Mapping))
            else rules
            for code, rules in languages.items()
        }


class FilterSettings(Settings):
    """One unit of one source; `names` are the names of its files, in the order in which they are given."""

    source: str
    unit: int = Field(ge=0)
    names: list[str]
    license: str
    text_key: str = "text"
    id_key: str = "id"
    date_key: str = "date"
    document_bytes: int = 20_000_000
    is_part: bool = Field(default=False, description="whether the one file is a part of that which has the name")
    languages: dict[str, LanguageRules]
    personal_data: PersonalData
    broken_share: float


class SignaturesSettings(Settings):
    """How the signatures of documents are computed."""

    deduplication: Deduplication


class DeduplicateSettings(Settings):
    """How documents with equal signatures are grouped."""

    deduplication: Deduplication


class FinaliseSettings(Settings):
    """Removing the duplicates has no settings."""


class DescribedSource(Settings):
    """What the statistics say about a source besides its counts."""

    name: str
    license: str
    language: str


class StatisticsSettings(Settings):
    """The corpus and the sources that it is made from."""

    corpus: str
    sources: list[DescribedSource]
