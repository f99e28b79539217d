"""Filter rules, each a measure of a document and a threshold, and the datatrove blocks that apply them.

To add a rule, see docs/howto/add-a-filter.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.text.word_splitting import WordSequence, split_words
from pipeline.corpus.text.word_tokenizers import Splitter

Rules = TypeVar("Rules")


class DocumentMeasures(Generic[Rules]):
    """Measures of a document for the rules of its language; values that several rules need are cached properties."""

    def __init__(self, text: str, rules: Rules, splitter: Splitter, language: str) -> None:
        self.text = text
        self.rules = rules
        self._splitter = splitter
        self._language = language

    @cached_property
    def words(self) -> WordSequence:
        """The words of the text, split once and shared by all blocks."""
        return split_words(self.text, self._splitter, self._language)


class _AppliedRule(NamedTuple):
    """A rule with the threshold of one language."""

    reason: str
    measure: Callable[[Any], float]
    threshold: float
    is_least: bool


@dataclass(frozen=True)
class FilterRule:
    """Removes a document with `reason` if the result of `measure` is beyond the threshold.

    `least` or `most` is the key of the threshold in the rules of a language; a threshold of None disables the rule. If
    the key has a threshold for each length n of n-grams, `{n}` in the reason is replaced, and the measure gets n.
    `removal_explanations` explains the value with the first line of the measure's docstring.
    """

    reason: str
    measure: Callable[..., float]
    least: str = ""
    most: str = ""

    def iterate_rule_thresholds(self, rules: Any) -> Iterator[_AppliedRule]:
        """Yield the rule with each of its thresholds in the rules of one language."""
        threshold = getattr(rules, self.least or self.most)
        if isinstance(threshold, Mapping):
            for n, limit in threshold.items():
                yield _AppliedRule(self.reason.format(n=n), partial(self.measure, n=n), limit, bool(self.least))
        elif threshold is not None:
            yield _AppliedRule(self.reason, self.measure, threshold, bool(self.least))


class RuleBlock(BaseFilter, Generic[Rules]):  # type: ignore[misc]
    """Applies the rules of the language in a document's metadata.

    `section` is the key of the rules in `LanguageRules`. `splitters` is the word splitter of each language, `plain` by
    default.
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
    """Removes a document if a measure is beyond its threshold; keeps documents of languages without rules.

    The rules apply in the order of declaration, the cheap ones first. The first failing rule is the reason; the
    value of its measure is stored as `filter_value` in the metadata.
    """

    measures: ClassVar[type[DocumentMeasures[Any]]]
    filter_rules: ClassVar[tuple[FilterRule, ...]]

    @cached_property
    def _applied_rules(self) -> dict[str, list[_AppliedRule]]:
        return {
            language: [applied for rule in self.filter_rules for applied in rule.iterate_rule_thresholds(section)]
            for language, section in self.rules.items()
            if section is not None
        }

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        language = doc.metadata["language"]
        rules = self.rules[language]
        if rules is None:
            return True
        judged = self.measures(doc.text, rules, self.splitters.get(language, "plain"), language)
        for reason, measure, threshold, is_least in self._applied_rules[language]:
            value = measure(judged)
            if value < threshold if is_least else value > threshold:
                return record_removal(doc, reason, value)
        return True


def record_removal(doc: Document, reason: str, value: Any) -> tuple[bool, str]:
    """Store the value that decided, and return datatrove's result for a removed document."""
    doc.metadata["filter_value"] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return False, reason
