"""What the datatrove blocks have in common that remove a document when a measure lies outside its bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.reader import RemovedDocuments
from pipeline.corpus.text.splitters import Splitter
from pipeline.corpus.text.words import Words, split

Rules = TypeVar("Rules")
# Reason, measure, least and greatest allowed measure; a bound of None is no bound.
Check = tuple[str, float, float | None, float | None]


class RuleBlock(BaseFilter, Generic[Rules]):  # type: ignore[misc]
    """Judges a document by the rules of the language in its metadata.

    `splitters` says for each language how it is split into words; `plain` where it says nothing.
    """

    def __init__(
        self,
        rules: Mapping[str, Rules | None],
        exclusion_writer: RemovedDocuments | None = None,
        splitters: Mapping[str, Splitter] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.rules = dict(rules)
        self.splitters = dict(splitters or {})

    def words(self, doc: Document) -> Words:
        """Return the words of a document."""
        language = doc.metadata["language"]
        return split(doc.text, self.splitters.get(language, "plain"), language)


class MeasureBlock(RuleBlock[Rules]):
    """Removes a document of which a measure lies outside its bounds; without rules for its language, none.

    The first such measure is the reason; its value goes to `filter_value` of the metadata.
    """

    @abstractmethod
    def checks(self, doc: Document, rules: Rules) -> Iterator[Check]:
        """Yield the checks of a document, the cheap ones first."""

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        rules = self.rules[doc.metadata["language"]]
        if rules is None:
            return True
        for reason, measure, least, greatest in self.checks(doc, rules):
            if (least is not None and measure < least) or (greatest is not None and measure > greatest):
                return removed(doc, reason, measure)
        return True


def removed(doc: Document, reason: str, value: Any) -> tuple[bool, str]:
    """Return that a document is removed, and note the value that decided it."""
    doc.metadata["filter_value"] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return False, reason
