"""Settings for evaluation items in a corpus."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.core.settings import Settings


class NgramSelection(Settings):
    """Which n-grams of an item are searched. Words are compared without case and punctuation."""

    ngram: int = Field(default=13, ge=1, description="words of an n-gram; a shorter text is one n-gram")
    alone_words: int = Field(default=8, ge=1, description="a shorter text counts only near another text of its item")
    minimum_words: int = Field(default=4, ge=1, description="a text with fewer words only supports other texts")

    @model_validator(mode="after")
    def _short_enough(self) -> NgramSelection:
        if self.minimum_words > self.ngram:
            raise ValueError(f"minimum_words is {self.minimum_words}, more than the {self.ngram} words of an n-gram")
        return self


class ContaminationThresholds(Settings):
    """Which n-grams of an item mark a document as contaminated."""

    minimum_overlap: float = Field(
        default=0.0, ge=0, le=1, description="minimum share of a text's n-grams in a document; at least one is needed"
    )
    maximum_documents: int = Field(
        default=10, ge=1, description="an n-gram in more documents of the corpus is common and marks none"
    )
    cannot_hold_items: list[str] = Field(
        default=[],
        description="sources, such as old books, that cannot contain items: matches there are chance, are kept, "
        "and estimate the chance matches in other sources",
    )


class Decontamination(NgramSelection, ContaminationThresholds):
    """How documents that contain evaluation items are found, by n-grams.

    An item without a searched n-gram counts as `not_searched`.
    """

    enabled: bool = Field(default=True, description="whether documents with evaluation items are removed")
    suites: list[str] | None = Field(
        default=None,
        description="evaluation suites to remove from the corpus; items of other suites are only counted. None: all "
        "suites of the evaluation",
    )
    fields: dict[str, list[str]] = Field(
        default={}, description="by task, the fields of an item to search for, instead of those of the task file"
    )


class TaskItemsFile(Settings):
    """A file of items, its evaluation task, and the fields to search; None: all.

    If the fields are `named` by a user, each must be in an item.
    """

    task: str
    name: str
    fields: list[str] | None = None
    named: bool = False


class NgramsSettings(NgramSelection):
    """Settings of corpus.ngrams: the files of items, in order, and the length of n-grams."""

    items: list[TaskItemsFile]


class CountItemsSettings(NgramsSettings, ContaminationThresholds):
    """Settings of corpus.count_items: those of the decontamination, for other suites."""

    corpus: str
