"""The measures and limits on words, with values computed by hand."""

from __future__ import annotations

from collections import Counter
from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.interleaved.page_nodes import PAGE_END
from pipeline.interleaved.settings import InterleavedRules, TextRules
from pipeline.interleaved.text_rules import (
    count_paragraphs,
    filter_paragraphs,
    find_broken_rule,
    is_spam,
    is_special,
    measure_character_repetition,
    measure_punctuation,
    measure_word_repetition,
    split_stripped_words,
)

LIMITS = {
    "minimum_words": 0,
    "maximum_words": 1000,
    "character_repetition": None,
    "word_repetition": None,
    "special_characters": None,
    "stop_words": None,
    "flagged_words": None,
    "punctuation": None,
    "common_words": None,
}


def broken(text: str, lists: dict[str, set[str]] | None = None, **limits: object) -> tuple[str, float] | None:
    rules = TextRules.model_validate(LIMITS | limits)
    return find_broken_rule(text, rules, {kind: frozenset(words) for kind, words in (lists or {}).items()})


def test_defaults_are_the_published_thresholds() -> None:
    rules = InterleavedRules()
    names = ("minimum_words", "maximum_words", "character_ngram", "character_repetition", "word_ngram")
    names += ("word_repetition", "special_characters", "stop_words", "flagged_words", "punctuation")
    names += ("punctuation_from_words", "common_words")
    assert [getattr(rules.paragraphs, name) for name in names] == [
        *(4, 1000, 10, 0.1, 5, 0.1, 0.3, 0.3, 0.01, 0.001, 12, 0.8)
    ]
    assert [getattr(rules.documents, name) for name in names] == [
        *(10, 2000, 10, 0.1, 5, 0.2, 0.275, 0.35, 0.01, 0.03, 0, 0.9)
    ]
    assert (rules.minimum_images, rules.maximum_images, rules.language_score, rules.spam_words) == (1, 30, 0.8, 0.12)
    images = rules.images
    assert (images.minimum_pixels, images.maximum_pixels, images.maximum_aspect_ratio) == (150, 20_000, 2)
    assert (images.maximum_occurrences, images.formats) == (10, ["jpeg", "jpg", "png", "webp"])
    assert images.url_words == ["logo", "button", "icon", "plugin", "widget", "porn", "xxx", "sex"]


def test_words_are_without_the_characters_around_them() -> None:
    assert split_stripped_words("«De» molen's\n12 e-mail: -- 😀Één!") == ["de", "molen's", "e-mail", "één"]
    assert [is_special(character) for character in "aé1-😀 \u0301"] == [False, False, True, True, True, True, False]


def test_character_repetition_counts_the_most_frequent_ngrams() -> None:
    # 11 n-grams of 2 characters: ab 5 times, ba 4 times, bc, cd once: four different ones, so at most two count.
    assert measure_character_repetition("ababababab" + "cd", 2) == pytest.approx(9 / 11)
    assert measure_character_repetition("abcd", 2) == 0
    assert measure_character_repetition("a", 2) == 0


@given(st.text("ab ", max_size=60), st.integers(1, 4))
def test_character_repetition_equals_its_definition(text: str, size: int) -> None:
    grams = [text[start : start + size] for start in range(len(text) - size + 1)]
    counts = sorted((grams.count(gram) for gram in {*grams}), reverse=True)
    number = min(isqrt(len(counts)), sum(count > 1 for count in counts))
    expected = sum(counts[:number]) / len(grams) if grams else 0
    assert measure_character_repetition(text, size) == pytest.approx(expected)


def test_word_repetition_counts_every_occurrence_of_a_repeated_ngram() -> None:
    assert measure_word_repetition(["a", "b", "a", "b", "c"], 2) == pytest.approx(2 / 4)
    assert measure_word_repetition(["a"], 2) == 0


def test_punctuation_is_a_share_of_words_and_marks() -> None:
    assert measure_punctuation("Een, twee.") == 2 / 4
    assert measure_punctuation("Een twee", 3) == 1 and measure_punctuation("Een twee drie", 3) == 0
    assert measure_punctuation("— 😀", 3) == 0


@pytest.mark.parametrize(
    ("text", "limits", "words", "reason"),
    [
        ("De kat de hond", {"minimum_words": 5}, "", ("word_count", 4)),
        ("De kat de hond", {"maximum_words": 3}, "", ("word_count", 4)),
        ("abababcd", {"character_repetition": 0.7, "character_ngram": 2}, "", ("character_repetition", 5 / 7)),
        ("De kat de hond", {"word_repetition": 0.4, "word_ngram": 1}, "", ("word_repetition", 2 / 4)),
        ("De kat, de hond.", {"special_characters": 0.3}, "", ("special_characters", 5 / 16)),
        ("De kat de hond", {"stop_words": 0.6}, "de", ("stop_words", 2 / 4)),
        ("De kat de hond", {"flagged_words": 0.2}, "kat", ("flagged_words", 1 / 4)),
        ("De kat, de hond", {"punctuation": 0.3}, "", ("punctuation", 1 / 5)),
        ("De kat de hond", {"common_words": 0.9}, "de kat", ("common_words", 3 / 4)),
    ],
)
def test_each_rule_removes_beyond_its_limit(
    text: str, limits: dict[str, float], words: str, reason: tuple[str, float]
) -> None:
    (rule, *_) = limits
    lists = {rule: {*words.split()}} if words else {}
    result = broken(text, lists, **limits)
    assert result is not None and (result[0], pytest.approx(result[1])) == reason
    assert broken(text, lists, **limits | {rule: reason[1]}) is None, "the limit itself is allowed"


def test_rule_without_its_list_is_not_applied() -> None:
    assert broken("Iets anders", {}, stop_words=0.9, flagged_words=0.0, common_words=0.9) is None


def test_first_broken_rule_decides() -> None:
    assert broken("!!! ???", {}, minimum_words=1, special_characters=0.1) == ("word_count", 0)
    lists = {"stop_words": {"x"}, "flagged_words": {"kat"}}
    result = broken("kat kat", lists, stop_words=0.5, flagged_words=0.1)
    assert result is not None and result[0] == "stop_words"


def test_paragraphs_are_filtered_one_by_one_and_the_end_of_the_page_stays() -> None:
    counts: Counter[str] = Counter()
    rules = TextRules.model_validate(LIMITS | {"minimum_words": 2})
    assert filter_paragraphs(f"een twee\n\neen\n\n{PAGE_END}", rules, {}, counts) == f"een twee\n\n{PAGE_END}"
    assert counts == {"in": 2, "word_count": 1}
    assert filter_paragraphs("een", rules, {}, counts) is None
    assert count_paragraphs(f"een\n\n{PAGE_END}\n\ntwee") == 2


def test_paragraph_of_invitations_is_spam() -> None:
    assert is_spam("Follow us on Facebook!", 0.12) and not is_spam("De molen staat aan de dijk.", 0.12)
    words = "click " + "woord " * 7  # one of eight is more than 0.12, one of nine less
    assert is_spam(words, 0.12) and not is_spam(words + "woord", 0.12)
