"""What a run says about evaluation items in a corpus."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.core.settings import Settings


class NgramSelection(Settings):
    """Which runs of equal words of an item are looked for. Words are compared without case and punctuation."""

    ngram: int = Field(default=13, ge=1, description="words of an n-gram; a shorter text is looked for as a whole")
    alone_words: int = Field(
        default=8, ge=1, description="a text with fewer words is found only beside another text of its item"
    )
    minimum_words: int = Field(default=4, ge=1, description="a text with fewer words is only looked for beside others")

    @model_validator(mode="after")
    def _short_enough(self) -> NgramSelection:
        if self.minimum_words > self.ngram:
            raise ValueError(f"minimum_words is {self.minimum_words}, more than the {self.ngram} words of an n-gram")
        return self


class ContaminationThresholds(Settings):
    """Which n-grams of an item mark a document."""

    minimum_overlap: float = Field(
        default=0.0, ge=0, le=1, description="least share of a text's n-grams in a document; one is always needed"
    )
    maximum_documents: int = Field(
        default=10, ge=1, description="an n-gram that stands in more documents of the corpus is a phrase and marks none"
    )
    cannot_hold_items: list[str] = Field(
        default=[],
        description="sources, such as old books, whose text cannot hold items: what is found there is chance, stays, "
        "and tells how much elsewhere may be chance",
    )


class Decontamination(NgramSelection, ContaminationThresholds):
    """How documents that contain evaluation items are found: by runs of equal words, the n-grams.

    An item of which no text is looked for is counted as `not_searched`.
    """

    enabled: bool = True
    suites: list[str] | None = Field(
        default=None,
        description="whose items leave the corpus; items of suites that are added to evaluation.suites later are only "
        "counted. None: all suites of the evaluation",
    )
    fields: dict[str, list[str]] = Field(
        default={}, description="by task, the fields of an item that are looked for, instead of those of the task file"
    )


class TaskItemsFile(Settings):
    """A file of items, the evaluation task that they belong to, and which of their fields count; None: all.

    Where the fields were named, each has to be in an item.
    """

    task: str
    name: str
    fields: list[str] | None = None
    named: bool = False


class NgramsSettings(NgramSelection):
    """The files of items in the order in which they are given, and how long an n-gram is."""

    items: list[TaskItemsFile]


class CountItemsSettings(NgramsSettings, ContaminationThresholds):
    """What the decontamination is told, of the suites that are not its own."""

    corpus: str
