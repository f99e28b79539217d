"""The rules on the words of paragraphs and documents of OBELICS, with its measures.

Its special characters are a list of marks and all emoji. Here they are all characters but letters and the marks on
them, by their Unicode category, which is the same for what is on that list.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isqrt
from typing import Final

from pipeline.interleaved.page_nodes import PAGE_END
from pipeline.interleaved.settings import TextRules

# Reasons, in the order in which the rules are applied.
WORD_COUNT: Final = "word_count"
CHARACTER_REPETITION: Final = "character_repetition"
WORD_REPETITION: Final = "word_repetition"
SPECIAL_CHARACTERS: Final = "special_characters"
STOP_WORDS: Final = "stop_words"
FLAGGED_WORDS: Final = "flagged_words"
PUNCTUATION: Final = "punctuation"
COMMON_WORDS: Final = "common_words"

_TOKEN = re.compile(r"[\w']+|[,;:?!.]")
_MARKS = frozenset(",;:?!.")
_SPAM = (
    "facebook twitter instagram reddit youtube pinterest flickr share tweet post comment subscribe newletter blogger "
    "bloggers interested might like sign-up sign log logged access contact content privacy policy website cookies "
    "cookie licensed password account follow terms mailing list download loading click"
)
SPAM_WORDS = frozenset(_SPAM.split())
"""Words of invitations and notices, as OBELICS lists them, `newletter` included."""


@lru_cache(1 << 16)
def is_special(character: str) -> bool:
    """Return whether a character is no letter, nor a mark on one."""
    return unicodedata.category(character)[0] not in "LM"


def split_stripped_words(text: str) -> list[str]:
    """Return the words between white space in lower case, without special characters around them."""
    words = []
    for word in re.split(r"[ \n\t]+", text.lower()):
        begin, end = 0, len(word)
        while begin < end and is_special(word[begin]):
            begin += 1
        while end > begin and is_special(word[end - 1]):
            end -= 1
        if begin < end:
            words.append(word[begin:end])
    return words


def measure_character_repetition(text: str, size: int) -> float:
    """Return the share of the most frequent n-grams of characters among all.

    Counted are at most the square root of the number of different n-grams, and none that occurs once.
    """
    counts = Counter(text[start : start + size] for start in range(len(text) - size + 1))
    repeated = sorted((count for count in counts.values() if count > 1), reverse=True)
    return sum(repeated[: isqrt(len(counts))]) / max(1, counts.total())


def measure_word_repetition(words: list[str], size: int) -> float:
    """Return the share of n-grams of words that occur more than once."""
    counts = Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))
    return sum(count for count in counts.values() if count > 1) / max(1, counts.total())


def measure_share(words: list[str], listed: Iterable[str]) -> float:
    """Return the share of the words that are listed; 0 without words."""
    known = listed if isinstance(listed, frozenset) else frozenset(listed)
    return sum(word in known for word in words) / max(1, len(words))


def measure_punctuation(text: str, needed_from: int = 0) -> float:
    """Return the share of marks among words and marks; 1 for a text of fewer than `needed_from`."""
    tokens = _TOKEN.findall(text)
    if tokens and len(tokens) < needed_from:
        return 1.0
    return sum(token in _MARKS for token in tokens) / max(1, len(tokens))


def find_broken_rule(text: str, rules: TextRules, lists: Mapping[str, frozenset[str]]) -> tuple[str, float] | None:
    """Return the first rule that a text breaks, with the value that decided; None if it breaks none.

    Args:
        lists: the words of stop_words, flagged_words and common_words; a missing list switches its rule off.
    """
    words = split_stripped_words(text)
    if not rules.minimum_words <= len(words) <= rules.maximum_words:
        return WORD_COUNT, len(words)
    if (most := rules.character_repetition) is not None:
        value = measure_character_repetition(text, rules.character_ngram)
        if value > most:
            return CHARACTER_REPETITION, value
    if (most := rules.word_repetition) is not None:
        value = measure_word_repetition(words, rules.word_ngram)
        if value > most:
            return WORD_REPETITION, value
    if (most := rules.special_characters) is not None:
        value = sum(map(is_special, text)) / max(1, len(text))
        if value > most:
            return SPECIAL_CHARACTERS, value
    shares = {name: measure_share(words, listed) for name, listed in lists.items()}
    if rules.stop_words is not None and shares.get(STOP_WORDS, 1.0) < rules.stop_words:
        return STOP_WORDS, shares[STOP_WORDS]
    if rules.flagged_words is not None and shares.get(FLAGGED_WORDS, 0.0) > rules.flagged_words:
        return FLAGGED_WORDS, shares[FLAGGED_WORDS]
    if rules.punctuation is not None:
        value = measure_punctuation(text, rules.punctuation_from_words)
        if value < rules.punctuation:
            return PUNCTUATION, value
    if rules.common_words is not None and shares.get(COMMON_WORDS, 1.0) < rules.common_words:
        return COMMON_WORDS, shares[COMMON_WORDS]
    return None


def filter_paragraphs(
    text: str, rules: TextRules, lists: Mapping[str, frozenset[str]], removed: Counter[str]
) -> str | None:
    """Return a text without the paragraphs that break a rule, which are counted; None if nothing is left.

    The end of a page is kept, but counts as no text.
    """
    kept = []
    for paragraph in text.split("\n\n"):
        removed["in"] += paragraph != PAGE_END
        broken = None if paragraph == PAGE_END else find_broken_rule(paragraph, rules, lists)
        if broken is None:
            kept.append(paragraph)
        else:
            removed[broken[0]] += 1
    return "\n\n".join(kept) or None


def count_paragraphs(text: str) -> int:
    """Return the number of paragraphs of a text, without ends of pages."""
    return sum(paragraph != PAGE_END for paragraph in text.split("\n\n"))


def is_spam(paragraph: str, least_share: float) -> bool:
    """Return whether a paragraph has so many words of invitations and notices."""
    return measure_share(split_stripped_words(paragraph), SPAM_WORDS) >= least_share
