"""Recall and precision of the personal data search.

A match is correct if it has the right kind and covers exactly the value; for an address, the
house number and the postcode must be covered.
"""

from __future__ import annotations

from collections import Counter

from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import find_personal_data
from tests.corpus.personal_data.texts import Text

RECALL = 0.99
PRECISION = 0.98
SETTINGS = PersonalData()


def measure(texts: list[Text], errors: bool = False) -> dict[str, tuple[int, int, int]]:
    """Return for each kind the numbers of existing, found, and all reported values."""
    there: Counter[str] = Counter()
    right: Counter[str] = Counter()
    result: Counter[str] = Counter()
    for text in texts:
        spans = find_personal_data(text.text, SETTINGS)
        result.update(span.kind for span in spans)
        there.update(truth.kind for truth in text.truth)
        wrong = set(spans)
        for truth in text.truth:
            for span in spans:
                covers = span.start <= truth.core_start and truth.core_end <= span.end
                if span.kind == truth.kind and covers and truth.start <= span.start and span.end <= truth.end:
                    right[truth.kind] += 1
                    wrong.discard(span)
                    break
            else:
                if errors:
                    print("missed", truth.kind, repr(text.text[max(0, truth.start - 40) : truth.end + 20]))
        for span in sorted(wrong) if errors else ():
            print("wrong ", span.kind, repr(text.text[max(0, span.start - 40) : span.end + 20]), repr(span.value))
    return {kind: (there[kind], right[kind], result[kind]) for kind in sorted(there | result)}


def shares(counts: tuple[int, int, int]) -> tuple[float, float]:
    """Return recall and precision."""
    there, right, result = counts
    return right / max(there, 1), right / max(result, 1)
