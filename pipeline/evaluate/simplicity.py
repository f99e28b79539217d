"""How simple a text is, and how well it simplifies another one: SARI, and readability by the lengths of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pipeline.core.normalization import composed

TOKEN = re.compile(r"\w+|[^\w\s]")
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")  # one of these is a word, with what an apostrophe or hyphen joins to it
SENTENCE_END = re.compile(r"[.!?…]+(?=\s|$)")
# The e of "made" and "called"; not that of "table", "houses", "needed" or "handled".
ENGLISH_SILENT = re.compile(r"(?<=[^aeiouy])(?<![bcdfgkpstz]l)(?:e|(?<![cghsxz])es|(?<![dt])ed)$")
ENGLISH_NUCLEUS = re.compile(r"[aeiouy]+")
# What is one syllable in Dutch; a vowel with a diaeresis begins another one.
DUTCH_NUCLEUS = re.compile(r"aai|ooi|oei|eeu|ieu|aa|ee|oo|uu|ie|oe|eu|ui|ei|ij|ou|au|[aeiouyàáâäèéêëìíîïòóôöùúûü]")
LONGEST = 4  # tokens of an n-gram


def tokens(text: str) -> list[str]:
    """Return the words and signs of a text in small letters."""
    return TOKEN.findall(composed(text).lower())


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def _mean(shares: Iterable[float]) -> float:
    found = [*shares]
    return sum(found) / len(found) if found else 0.0


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def sari(source: str, text: str, references: Sequence[str]) -> float:
    """Return SARI, from 0 to 100: what is rightly added, kept and left out, by the references.

    The mean, over n-grams of 1 to 4 tokens, of F1 of the added ones, F1 of the kept ones and the precision of the
    deleted ones (Xu, Napoles, Pavlick, Chen and Callison-Burch, TACL 4, 2016), as their own program counts: an n-gram
    of source and text counts as often as there are references, and 0 / 0 is 0. A text that has nothing of its source
    has all deletions right that the references make, and may so reach more than a copy: both belong beside a score.
    """
    sides = [tokens(source), tokens(text), *map(tokens, references)]
    total = 0.0
    for n in range(1, LONGEST + 1):
        before, after, *others = (_ngrams(words, n) for words in sides)
        good: Counter[tuple[str, ...]] = sum(others, Counter())
        before, after = (
            Counter({gram: count * len(references) for gram, count in counts.items()}) for counts in (before, after)
        )
        kept, to_keep = before & after, before & good
        rightly_kept = kept & good
        deleted = before - after
        rightly_deleted = deleted - good
        added, to_add = after.keys() - before.keys(), good.keys() - before.keys()
        rightly_added = len(added & to_add)
        total += _harmonic(rightly_added / max(len(added), 1), rightly_added / max(len(to_add), 1))
        total += _harmonic(
            _mean(rightly_kept[gram] / count for gram, count in kept.items()),
            _mean(rightly_kept[gram] / count for gram, count in to_keep.items()),
        )
        total += _mean(rightly_deleted[gram] / count for gram, count in deleted.items())
    return 100 * total / LONGEST / 3


def dutch_syllables(word: str) -> int:
    """Return about how many syllables a Dutch word has: its groups of vowels that are one sound; at least one."""
    return max(1, len(DUTCH_NUCLEUS.findall(composed(word).lower())))


def english_syllables(word: str) -> int:
    """Return about how many syllables an English word has: its groups of vowels without a silent e; at least one."""
    return max(1, len(ENGLISH_NUCLEUS.findall(ENGLISH_SILENT.sub("", composed(word).lower()))))


def _words(text: str) -> tuple[list[str], float]:
    """Return the words of a text, and how many a sentence has on average; NaN of none."""
    text = composed(text)
    words = WORD.findall(text)
    return words, len(words) / max(1, len(SENTENCE_END.findall(text))) if words else math.nan


def lix(text: str) -> float:
    """Return LIX: words a sentence, and the percentage of words of more than six letters (Björnsson, Läsbarhet, 1968).

    The lower, the easier: below 30 very easy, above 60 very hard. NaN of a text without words.
    """
    words, a_sentence = _words(text)
    return a_sentence + 100 * _mean(len(word) > 6 for word in words)


def flesch_douma(text: str) -> float:
    """Return 206.835 - 77 syllables a word - 0.93 words a sentence (Douma, De leesbaarheid van landbouwbladen, 1960).

    The higher, the easier: above 80 easy, below 45 hard. NaN of a text without words.
    """
    words, a_sentence = _words(text)
    return 206.835 - 77 * _mean(map(dutch_syllables, words)) - 0.93 * a_sentence


def flesch_kincaid(text: str) -> float:
    """Return the grade 0.39 words a sentence + 11.8 syllables a word - 15.59 (Kincaid and others, 1975).

    The years of school that an English text asks for; the lower, the easier. NaN of a text without words.
    """
    words, a_sentence = _words(text)
    return 0.39 * a_sentence + 11.8 * _mean(map(english_syllables, words)) - 15.59
