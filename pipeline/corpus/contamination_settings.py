"""What a run says about evaluation items in a corpus."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.ground.settings import Settings


class Decontamination(Settings):
    """How documents that contain evaluation items are found: by runs of equal words, the n-grams.

    Words are compared without case and punctuation. A text of an item that has fewer words than an n-gram is looked
    for as a whole, but not where it has fewer than `minimum_words`: such texts stand in many documents by chance. An
    item of which no text is looked for is counted as `not_searched`.
    """

    enabled: bool = True
    ngram: int = Field(default=13, ge=1, description="words of an n-gram")
    minimum_words: int = Field(default=4, ge=1, description="a text with fewer words is not looked for")
    minimum_overlap: float = Field(
        default=0.0, ge=0, le=1, description="least share of a text's n-grams in a document; one is always needed"
    )

    @model_validator(mode="after")
    def _short_enough(self) -> Decontamination:
        if self.minimum_words > self.ngram:
            raise ValueError(f"minimum_words is {self.minimum_words}, more than the {self.ngram} words of an n-gram")
        return self


class TaskFile(Settings):
    """A file of items, and the evaluation task that they belong to."""

    task: str
    name: str


class NgramsSettings(Settings):
    """The files of items in the order in which they are given, and how long an n-gram is."""

    items: list[TaskFile]
    ngram: int
    minimum_words: int


class DecontaminateSettings(Settings):
    """How much of an item a document has to contain."""

    minimum_overlap: float
