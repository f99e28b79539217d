"""Settings of filter rules and of harmful content filters.

A threshold of null disables its rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings
from pipeline.corpus.text.word_tokenizers import Splitter


class Repetition(Settings):
    """The largest allowed shares of repetition in a document: of lines, paragraphs and characters."""

    duplicate_lines: float | None = Field(default=0.3, description="largest share of lines that are duplicates")
    duplicate_line_characters: float | None = Field(
        default=0.2, description="largest share of characters in duplicate lines"
    )
    duplicate_paragraphs: float | None = Field(default=0.3, description="largest share of duplicate paragraphs")
    duplicate_paragraph_characters: float | None = Field(
        default=0.2, description="largest share of characters in duplicate paragraphs"
    )
    top_n_grams: dict[int, float] = Field(
        default={2: 0.2, 3: 0.18, 4: 0.16}, description="by n, largest share of characters in the most frequent n-gram"
    )
    duplicate_n_grams: dict[int, float] = Field(
        default={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1},
        description="by n, largest share of characters in duplicate n-grams",
    )
    within_words: int | None = Field(
        default=None,
        ge=1,
        description="largest distance of a duplicate n-gram in words; null: the whole document, so the share grows "
        "with its length",
    )

    @field_validator("top_n_grams", "duplicate_n_grams")
    @classmethod
    def _lengths(cls, thresholds: dict[int, float]) -> dict[int, float]:
        if any(not 2 <= n <= 20 for n in thresholds):
            raise ValueError("an n-gram is 2 to 20 words long")
        return dict(sorted(thresholds.items()))


class Quality(Settings):
    """Bounds of ordinary prose. Words include punctuation unless stated otherwise."""

    minimum_words: int | None = Field(default=50, description="words that are not punctuation")
    maximum_words: int | None = Field(default=100_000, description="words that are not punctuation")
    minimum_mean_word_length: float | None = Field(default=3.0, description="characters per word, at least")
    maximum_mean_word_length: float | None = Field(default=10.0, description="characters per word, at most")
    symbol_ratio: float | None = Field(default=0.1, description="most hash signs, or ellipses, per word")
    bullet_lines: float | None = Field(default=0.9, description="largest share of lines that begin with a bullet")
    ellipsis_lines: float | None = Field(default=0.3, description="largest share of lines that end in an ellipsis")
    alphabetic_words: float | None = Field(default=0.8, description="smallest share of words with a letter")
    code_characters: float | None = Field(
        default=None, description="largest share of {}<>; in the characters that are not white space"
    )
    minimum_stop_words: int = Field(default=2, ge=0, description="least number of different stop words")
    repeated_stop_words: bool = Field(default=False, description="whether a stop word counts each time that it occurs")
    stop_words: list[str] = Field(
        default=["the", "be", "to", "of", "and", "that", "have", "with"], description="function words of the language"
    )
    stop_word_share: float | None = Field(
        default=None,
        description="least share of stop words, in any case, among the words with a letter; `stop_words` must contain "
        "all function words of the language, as in the presets of genres",
    )
    running_words: float | None = Field(
        default=None,
        description="least share of the words in lines of running text: five words and more, 15 % of them stop words, "
        "and neither code nor a field",
    )

    @model_validator(mode="after")
    def _enough_stop_words(self) -> Quality:
        if self.minimum_stop_words > len(self.stop_words) and not self.repeated_stop_words:
            raise ValueError(
                f"minimum_stop_words is {self.minimum_stop_words} of {len(self.stop_words)} stop_words: "
                "lower it, or write more stop_words"
            )
        return self


class C4(Settings):
    """C4's rules on lines and documents (Raffel et al. 2020, section 2.2), with the thresholds of datatrove.

    A line that fails is dropped from the text if `drop_lines` is true, and otherwise only not counted.
    """

    drop_lines: bool = Field(default=True, description="whether the lines that fail are dropped from the text")
    terminal_punctuation: bool = Field(default=True, description="lines end in . ? ! or a straight quotation mark")
    minimum_words_per_line: int | None = Field(default=3, description="lines with fewer words fail")
    maximum_word_length: int | None = Field(default=1000, description="characters of the longest word of a line")
    javascript: bool = Field(default=True, description="lines with the word javascript fail")
    policy: bool = Field(default=True, description="lines about cookies, privacy and terms of use fail")
    policy_phrases: list[str] = Field(
        default=["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"],
        description="in lower case",
    )
    citations: bool = Field(default=True, description="citation marks such as [1] are dropped with the lines")
    lorem_ipsum: bool = Field(default=True, description="documents with lorem ipsum are removed")
    curly_bracket: bool = Field(default=True, description="documents with an opening curly bracket are removed")
    minimum_sentences: int | None = Field(default=5, description="sentences in the lines that do not fail")


class FineWeb(Settings):
    """FineWeb's rules on lines (Penedo et al. 2024, section 3.6)."""

    punctuated_lines: float | None = Field(default=0.12, description="least share of lines that end a sentence")
    short_lines: float | None = Field(default=0.67, description="largest share of short lines")
    short_line_length: int = Field(default=30, ge=0, description="characters of a short line, at most")
    duplicate_line_characters: float | None = Field(default=0.01, description="largest share in repeated lines")
    new_lines: float | None = Field(default=0.3, description="most line breaks per word")


class NordicPile(Settings):
    """The rules of the Nordic Pile (Öhman et al. 2023) that Gopher's do not include, with GPT-NL's thresholds.

    Line lengths are the mean of mean and median over the lines that are not blank.
    """

    digits: float | None = Field(default=0.2, description="largest share of characters that are digits")
    minimum_characters: int | None = Field(default=50, description="characters that are not white space")
    minimum_line_characters: float | None = Field(
        default=9.0, description="mean of mean and median characters of a line, at least"
    )
    minimum_line_words: float | None = Field(default=2.1, description="mean of mean and median words per line")


class LanguageRules(Settings):
    """The filter rules of one language; a set of rules that is null is not applied."""

    minimum_score: float = Field(default=0.65, ge=0, le=1, description="least probability of the language")
    mixed_language: float | None = Field(
        default=None, ge=0, le=1, description="largest share of a document that may be in another language"
    )
    words: Splitter = Field(
        default="plain",
        description="lexical: without single marks, such as the bars of tables; spacy, nltk: words of that library, in "
        "which every mark is a word",
    )
    repetition: Repetition | None = Repetition()
    quality: Quality | None = Quality()
    c4: C4 | None = None
    fineweb: FineWeb | None = None
    nordic_pile: NordicPile | None = None


FLAG = r"^[a-z0-9][a-z0-9_-]*$"


class WordList(Settings):
    """A file with a word or phrase per line, and the matches that flag a document; # begins a comment."""

    name: str = Field(pattern=FLAG, description="the flag")
    path: str = Field(description="a file on this machine; `{data}` is the run's data folder")
    languages: list[str] = Field(default=[], description="only documents in these languages; in any where empty")
    minimum_hits: int | None = Field(default=1, ge=1, description="occurrences that flag a document")
    minimum_share: float | None = Field(default=None, gt=0, le=1, description="share of words that flags a document")
    remove: bool = Field(default=False, description="remove the documents that it flags")

    @model_validator(mode="after")
    def _decides(self) -> WordList:
        if self.minimum_hits is None and self.minimum_share is None:
            raise ValueError(f"the word list {self.name!r} flags nothing: give it minimum_hits or minimum_share")
        return self


class HarmfulClassifier(Settings):
    """A local fastText model that flags a document if the probability of a label reaches a threshold."""

    name: str = Field(pattern=FLAG, description="the flag")
    path: str = Field(description="a .bin or .ftz file; `{data}` is the run's data folder")
    label: str = Field(description="the label as the model has it, such as __label__toxic")
    languages: list[str] = Field(default=[], description="only documents in these languages; in any where empty")
    threshold: float = Field(default=0.5, ge=0, le=1, description="least probability that flags a document")
    remove: bool = Field(default=False, description="remove the documents that it flags")


class Harmful(Settings):
    """Word lists and classifiers, each with its flag. Polder includes none."""

    word_lists: list[WordList] = Field(default=[])
    classifiers: list[HarmfulClassifier] = Field(default=[])

    @model_validator(mode="after")
    def _distinct_names(self) -> Harmful:
        names = [entry.name for entry in self.lists_and_classifiers()]
        if len(set(names)) < len(names):
            raise ValueError(f"the flag {max(names, key=names.count)!r} is used twice: give each list its own name")
        return self

    def without_folders(self) -> Harmful:
        """Return the same settings with file names instead of paths: the folder changes no result."""
        content = self.model_dump()
        for entry in [*content["word_lists"], *content["classifiers"]]:
            entry["path"] = entry["path"].rpartition("/")[2]
        return Harmful.model_validate(content)

    def lists_and_classifiers(self) -> Iterator[WordList | HarmfulClassifier]:
        """Yield the lists, then the classifiers, in the order of their files."""
        yield from self.word_lists
        yield from self.classifiers
