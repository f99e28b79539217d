"""What a run says about harmful content: lists of words, and classifiers, that flag documents or remove them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from pipeline.core.settings import Settings

FLAG = r"^[a-z0-9][a-z0-9_-]*$"


class WordList(Settings):
    """A file with a word or phrase on each line, and how many of them flag a document; # begins a comment."""

    name: str = Field(pattern=FLAG, description="the flag")
    path: str = Field(description="a file on this machine; `{data}` stands for the run's data folder")
    languages: list[str] = Field(default=[], description="only documents in these languages; in any where empty")
    minimum_hits: int | None = Field(default=1, ge=1, description="occurrences that flag a document")
    minimum_share: float | None = Field(default=None, gt=0, le=1, description="share of the words that does so too")
    remove: bool = Field(default=False, description="remove the documents that it flags")

    @model_validator(mode="after")
    def _decides(self) -> WordList:
        if self.minimum_hits is None and self.minimum_share is None:
            raise ValueError(f"the word list {self.name!r} flags nothing: give it minimum_hits or minimum_share")
        return self


class Classifier(Settings):
    """A local fastText model that flags a document from a probability of one of its labels on."""

    name: str = Field(pattern=FLAG, description="the flag")
    path: str = Field(description="a .bin or .ftz file; `{data}` stands for the run's data folder")
    label: str = Field(description="the label as the model has it, such as __label__toxic")
    languages: list[str] = Field(default=[], description="only documents in these languages; in any where empty")
    threshold: float = Field(default=0.5, ge=0, le=1)
    remove: bool = Field(default=False, description="remove the documents that it flags")


class Harmful(Settings):
    """Every list and classifier with its flag. None comes with Polder."""

    word_lists: list[WordList] = Field(default=[])
    classifiers: list[Classifier] = Field(default=[])

    @model_validator(mode="after")
    def _distinct_names(self) -> Harmful:
        names = [entry.name for entry in self.entries()]
        if len(set(names)) < len(names):
            raise ValueError(f"the flag {max(names, key=names.count)!r} stands twice: give each list its own name")
        return self

    def named(self) -> Harmful:
        """Return the same with the names of the files: where they lie decides nothing."""
        content = self.model_dump()
        for entry in [*content["word_lists"], *content["classifiers"]]:
            entry["path"] = entry["path"].rpartition("/")[2]
        return Harmful.model_validate(content)

    def entries(self) -> Iterator[WordList | Classifier]:
        """Yield the lists and then the classifiers, in the order in which their files are given."""
        yield from self.word_lists
        yield from self.classifiers
