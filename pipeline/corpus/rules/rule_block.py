"""What a rule is, a measure of a document and a threshold, and what the datatrove blocks have in common that apply it.

How a rule is added: docs/howto/add-a-filter.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.text.splitters import Splitter
from pipeline.corpus.text.words import WordSequence, split_words

Rules = TypeVar("Rules")


class DocumentMeasures(Generic[Rules]):
    """A document and the rules of its language; what several rules need of a document is a cached property."""

    def __init__(self, text: str, rules: Rules, splitter: Splitter, language: str) -> None:
        self.text = text
        self.rules = rules
        self._splitter = splitter
        self._language = language

    @cached_property
    def words(self) -> WordSequence:
        """The words of the text, split once for all blocks."""
        return split_words(self.text, self._splitter, self._language)


class _AppliedRule(NamedTuple):
    """A rule with the threshold of one language."""

    reason: str
    measure: Callable[[Any], float]
    threshold: float
    is_least: bool


@dataclass(frozen=True)
class FilterRule:
    """A document goes for `reason` where what `measure` returns of it lies beyond the threshold.

    `least` or `most` is the key of the threshold in the rules of a language; a threshold of None switches the rule off.
    Where the key holds a threshold for each length n of n-grams, `{n}` stands for it in the reason, and the measure is
    told n. `corpus why` says of the value what the docstring of the measure says that it returns.
    """

    reason: str
    measure: Callable[..., float]
    least: str = ""
    most: str = ""

    def with_thresholds(self, rules: Any) -> Iterator[_AppliedRule]:
        """Yield the rule with each of its thresholds in the rules of one language."""
        threshold = getattr(rules, self.least or self.most)
        if isinstance(threshold, Mapping):
            for n, limit in threshold.items():
                yield _AppliedRule(self.reason.format(n=n), partial(self.measure, n=n), limit, bool(self.least))
        elif threshold is not None:
            yield _AppliedRule(self.reason, self.measure, threshold, bool(self.least))


class RuleBlock(BaseFilter, Generic[Rules]):  # type: ignore[misc]
    """Judges a document by the rules of the language in its metadata.

    `section` is their key in `LanguageRules`. `splitters` says for each language how it is split into words; `plain`
    where it says nothing.
    """

    section: ClassVar[str]

    def __init__(
        self,
        rules: Mapping[str, Rules | None],
        exclusion_writer: RemovedDocuments | None = None,
        splitters: Mapping[str, Splitter] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.rules = dict(rules)
        self.splitters = dict(splitters or {})


class MeasureBlock(RuleBlock[Rules]):
    """Removes a document of which a measure lies beyond its threshold; without rules for its language, none.

    The rules are asked in the order in which they are declared, the cheap ones first. The first that removes the
    document is the reason; the value of its measure goes to `filter_value` of the metadata.
    """

    measures: ClassVar[type[DocumentMeasures[Any]]]
    filter_rules: ClassVar[tuple[FilterRule, ...]]

    @cached_property
    def _applied(self) -> dict[str, list[_AppliedRule]]:
        return {
            language: [applied for rule in self.filter_rules for applied in rule.with_thresholds(section)]
            for language, section in self.rules.items()
            if section is not None
        }

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        language = doc.metadata["language"]
        rules = self.rules[language]
        if rules is None:
            return True
        judged = self.measures(doc.text, rules, self.splitters.get(language, "plain"), language)
        for reason, measure, threshold, is_least in self._applied[language]:
            value = measure(judged)
            if value < threshold if is_least else value > threshold:
                return record_removal(doc, reason, value)
        return True


def record_removal(doc: Document, reason: str, value: Any) -> tuple[bool, str]:
    """Return that a document is removed, and note the value that decided it."""
    doc.metadata["filter_value"] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return False, reason
