"""The datatrove block that removes what is not ordinary prose: Gopher's quality rules (Rae et al. 2021, A.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.utils.text import PUNCTUATION_SET

from pipeline.corpus.reader import RemovedDocuments
from pipeline.corpus.settings import Quality
from pipeline.corpus.words import split

_PUNCTUATION = "".join(sorted(PUNCTUATION_SET))
Check = tuple[str, float, float | None, float | None]


def _has_letter(word: str) -> bool:
    return word.isalpha() or any(map(str.isalpha, word))


def _checks(text: str, rules: Quality) -> Iterator[Check]:
    """Yield reason, measure, least and greatest allowed measure of each rule, the cheap ones first."""
    counts = split(text).counts
    size = max(1, counts.total())
    plain = {word: count for word, count in counts.items() if word.strip(_PUNCTUATION)}
    number = sum(plain.values())
    yield "too_few_words", number, rules.minimum_words, None
    yield "too_many_words", number, None, rules.maximum_words
    mean_length = sum(len(word) * count for word, count in plain.items()) / max(1, number)
    yield "short_words", mean_length, rules.minimum_mean_word_length, None
    yield "long_words", mean_length, None, rules.maximum_mean_word_length
    yield "hash_signs", text.count("#") / size, None, rules.symbol_ratio
    yield "ellipses", (text.count("...") + text.count("…")) / size, None, rules.symbol_ratio
    lines = text.splitlines() or [""]
    bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines)
    yield "bullet_lines", bullets / len(lines), None, rules.bullet_lines
    ellipses = sum(line.rstrip().endswith(("...", "…")) for line in lines)
    yield "ellipsis_lines", ellipses / len(lines), None, rules.ellipsis_lines
    alphabetic = sum(count for word, count in counts.items() if _has_letter(word))
    yield "few_alphabetic_words", alphabetic / size, rules.alphabetic_words, None
    yield "few_stop_words", sum(word in counts for word in set(rules.stop_words)), rules.minimum_stop_words, None


class GopherQuality(BaseFilter):  # type: ignore[misc]
    """Removes a document that is not ordinary prose, by the rules of the language in its metadata.

    Decides as datatrove's GopherQualityFilter does at the same thresholds and words.
    """

    name = "Gopher quality"

    def __init__(self, rules: Mapping[str, Quality], exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.rules = dict(rules)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        for reason, measure, least, greatest in _checks(doc.text, self.rules[doc.metadata["language"]]):
            if (least is not None and measure < least) or (greatest is not None and measure > greatest):
                doc.metadata["filter_value"] = f"{measure:.4g}" if isinstance(measure, float) else str(measure)
                return False, reason
        return True
