"""Metrics of simplified text: SARI, and how hard a text is to read.

Readability has no reference: it does not say whether a text means the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from pipeline.core.unicode_normalization import normalize_nfc

TOKEN = re.compile(r"\w+|[^\w\s]")
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")  # with parts that an apostrophe or hyphen joins
SENTENCE_END = re.compile(r"[.!?…]+(?=\s|$)")
# The e of "made" and "called"; not that of "table", "houses", "needed" or "handled".
ENGLISH_SILENT = re.compile(r"(?<=[^aeiouy])(?<![bcdfgkpstz]l)(?:e|(?<![cghsxz])es|(?<![dt])ed)$")
ENGLISH_NUCLEUS = re.compile(r"[aeiouy]+")
# Vowels of one syllable in Dutch; a vowel with a diaeresis begins another one.
DUTCH_NUCLEUS = re.compile(r"aai|ooi|oei|eeu|ieu|aa|ee|oo|uu|ie|oe|eu|ui|ei|ij|ou|au|[aeiouyàáâäèéêëìíîïòóôöùúûü]")
LONGEST_NGRAM = 4  # tokens of an n-gram


def tokenize_lowercase(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in lower case."""
    return TOKEN.findall(normalize_nfc(text).lower())


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def mean(shares: Iterable[float], empty: float = 0.0) -> float:
    """Return the mean of shares, or `empty` where there are none."""
    values = [*shares]
    return sum(values) / len(values) if values else empty


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def sari(source: str, text: str, references: Sequence[str]) -> float:
    """Return SARI, from 0 to 100: the quality of added, kept and deleted n-grams by the references.

    The mean, over n-grams of 1 to 4 tokens, of F1 of the added ones, F1 of the kept ones and the precision of the
    deleted ones (Xu, Napoles, Pavlick, Chen and Callison-Burch, TACL 4, 2016), as the authors' program counts: an
    n-gram of source and text counts as often as there are references, and 0 / 0 is 0. A text without anything of its
    source has all deletions right and may exceed a copy: a score needs both as baselines.
    """
    return _sari([*map(tokenize_lowercase, (source, text, *references))])


def sari_13a(source: str, text: str, references: Sequence[str]) -> float:
    """Return SARI as the library `evaluate` and EuroEval compute it.

    The tokens are those of sacreBLEU's 13a in lower case, 0 / 0 is 1, and the recall of kept n-grams counts each
    occurrence, not each n-gram.
    """
    tokenize = _tokenizer_13a()
    return _sari([tokenize(one.lower()).split(" ") for one in (source, text, *references)], is_of_evaluate=True)


@cache
def _tokenizer_13a() -> Callable[[str], str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    make: Callable[[], Callable[[str], str]] = Tokenizer13a
    return make()


def _sari(sides: Sequence[Sequence[str]], is_of_evaluate: bool = False) -> float:
    """Return SARI of the tokens of the source, the text and each reference."""
    empty, copies = float(is_of_evaluate), len(sides) - 2
    total = 0.0
    for n in range(1, LONGEST_NGRAM + 1):
        before, after, *others = (_ngrams(words, n) for words in sides)
        good: Counter[tuple[str, ...]] = sum(others, Counter())
        before, after = (
            Counter({gram: count * copies for gram, count in counts.items()}) for counts in (before, after)
        )
        kept, to_keep = before & after, before & good
        rightly_kept = kept & good
        deleted = before - after
        rightly_deleted = deleted - good
        added, to_add = after.keys() - before.keys(), good.keys() - before.keys()
        rightly_added = len(added & to_add)
        total += _f1(*(rightly_added / len(grams) if grams else empty for grams in (added, to_add)))
        recall = (
            rightly_kept.total() / to_keep.total()
            if is_of_evaluate and to_keep
            else mean((rightly_kept[gram] / count for gram, count in to_keep.items()), empty)
        )
        total += _f1(mean((rightly_kept[gram] / count for gram, count in kept.items()), empty), recall)
        total += mean((rightly_deleted[gram] / count for gram, count in deleted.items()), empty)
    return 100 * total / LONGEST_NGRAM / 3


def count_dutch_syllables(word: str) -> int:
    """Estimate the number of syllables of a Dutch word: its groups of vowels that are one sound; at least one."""
    return max(1, len(DUTCH_NUCLEUS.findall(normalize_nfc(word).lower())))


def count_english_syllables(word: str) -> int:
    """Estimate the number of syllables of an English word: its groups of vowels without a silent e; at least one."""
    return max(1, len(ENGLISH_NUCLEUS.findall(ENGLISH_SILENT.sub("", normalize_nfc(word).lower()))))


def _split_readable_words(text: str) -> tuple[list[str], float]:
    """Return the words of a text, and the mean number of words of a sentence; NaN without words."""
    text = normalize_nfc(text)
    words = WORD.findall(text)
    return words, len(words) / max(1, len(SENTENCE_END.findall(text))) if words else math.nan


def lix(text: str) -> float:
    """Return LIX: words a sentence, and the percentage of words of more than six letters (Björnsson, Läsbarhet, 1968).

    Lower is easier: below 30 very easy, above 60 very hard. NaN for a text without words.
    """
    words, a_sentence = _split_readable_words(text)
    return a_sentence + 100 * mean(len(word) > 6 for word in words)


def flesch_douma(text: str) -> float:
    """Return 206.835 - 77 syllables a word - 0.93 words a sentence (Douma, De leesbaarheid van landbouwbladen, 1960).

    Higher is easier: above 80 easy, below 45 hard. NaN for a text without words.
    """
    words, a_sentence = _split_readable_words(text)
    return 206.835 - 77 * mean(map(count_dutch_syllables, words)) - 0.93 * a_sentence


def flesch_kincaid(text: str) -> float:
    """Return the grade 0.39 words a sentence + 11.8 syllables a word - 15.59 (Kincaid and others, 1975).

    The years of school that an English text requires; lower is easier. NaN for a text without words.
    """
    words, a_sentence = _split_readable_words(text)
    return 0.39 * a_sentence + 11.8 * mean(map(count_english_syllables, words)) - 15.59


READABILITY: dict[str, Callable[[str], float]] = {
    "lix": lix,
    "flesch_douma": flesch_douma,
    "flesch_kincaid": flesch_kincaid,
}
SARI: dict[str, Callable[[str, str, Sequence[str]], float]] = {"sari": sari, "sari_13a": sari_13a}
