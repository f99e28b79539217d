"""The repetition and quality blocks decide as those of datatrove on the same words."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import gopher_quality_filter, gopher_repetition_filter
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus.rules.gopher import GopherQuality, GopherRepetition, RepetitionMeasures, measure_ngram_repetition
from pipeline.corpus.rules.presets import DUTCH, ENGLISH
from pipeline.corpus.rules.settings import LanguageRules
from pipeline.corpus.text.word_splitting import _cached_splitter, word_tokenize
from tests.corpus.rules.peers import stock

DEMONSTRATION = Path(__file__).parents[3] / "config" / "corpus"
REASONS = {
    "dup_para_frac": "duplicate_paragraphs",
    "dup_para_char_frac": "duplicate_paragraph_characters",
    "dup_line_frac": "duplicate_lines",
    "dup_line_char_frac": "duplicate_line_characters",
    "gopher_short_doc": "too_few_words",
    "gopher_long_doc": "too_many_words",
    "gopher_below_avg_threshold": "short_words",
    "gopher_above_avg_threshold": "long_words",
    "gopher_too_many_hashes": "hash_signs",
    "gopher_too_many_ellipsis": "ellipses",
    "gopher_too_many_bullets": "bullet_lines",
    "gopher_too_many_end_ellipsis": "ellipsis_lines",
    "gopher_below_alpha_threshold": "few_alphabetic_words",
    "gopher_enough_stop_words": "few_stop_words",
    "empty": "empty",
} | {f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)}

Decision = bool | tuple[bool, str]


def theirs(text: str, rules: LanguageRules) -> tuple[Decision, Decision]:
    """Return the decisions of datatrove's blocks with the same thresholds."""
    stock_blocks = stock(rules, "nld")
    blocks = (stock_blocks["repetition"], stock_blocks["quality"])
    decisions = []
    for block in blocks:
        decision = block.filter(Document(text=text, id=""))
        decisions.append(decision if decision is True else (False, REASONS.get(decision[1], decision[1])))
    return decisions[0], decisions[1]


def ours(text: str, rules: LanguageRules) -> tuple[Decision, Decision]:
    document = Document(text=text, id="", metadata={"language": "xx"})
    return GopherRepetition({"xx": rules.repetition}).filter(document), GopherQuality({"xx": rules.quality}).filter(
        document
    )


@pytest.fixture(autouse=True)
def same_words() -> Iterator[None]:
    """Replace the words of datatrove's blocks by those of this package."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (gopher_quality_filter, gopher_repetition_filter):
            patch.setattr(module, "split_into_words", lambda text, language: word_tokenize(text))
        yield


def demonstration_texts() -> list[str]:
    lines = [line for path in sorted(DEMONSTRATION.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    results = []
    for line in lines:
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(text, str) and text.strip():
            results.append(text)
    return results


@pytest.mark.parametrize("rules", [DUTCH, ENGLISH], ids=["Dutch", "English"])
def test_decisions_equal_datatrove_on_real_and_corrupted_texts(rules: LanguageRules, texts: dict[str, str]) -> None:
    chance = random.Random(1)
    real = [*texts.values(), *demonstration_texts()[:100]]
    spoilt = []
    for text in real:
        words = text.split()
        piece = " ".join(words[: chance.randint(3, 25)])
        place = chance.randrange(len(words))
        spoilt.append(" ".join([*words[:place], *[piece] * chance.randint(1, 8), *words[place:]]))
        spoilt.append(text.replace(". ", chance.choice(["...\n", "\n- ", " # ", ".\n\n", " 1 2 3 "])))
        spoilt.append("\n".join([text[:60]] * chance.randint(1, 3) + [text]))
    decisions = set()
    for text in real + spoilt:
        decision = ours(text, rules)
        assert decision == theirs(text, rules), text
        decisions |= set(decision)
    assert True in decisions and len(decisions) > 8


WORDS = st.lists(
    st.sampled_from(["de", "en", "##", "..", "12", "\n\n", "\n", "- a", "zo", "…"]), min_size=1, max_size=80
)


@settings(max_examples=150)
@given(WORDS.map(" ".join).filter(lambda text: bool(text.strip())))
def test_decisions_equal_datatrove_on_random_words(text: str) -> None:
    rules = ENGLISH.model_copy(update={"quality": ENGLISH.quality.model_copy(update={"minimum_words": 1})})
    repetition, quality = ours(text, rules)
    their_repetition, their_quality = theirs(text, rules)
    assert repetition == their_repetition
    if any(word.strip("#.…- ") for word in word_tokenize(text)):
        assert quality == their_quality


@settings(max_examples=300)
@given(st.lists(st.sampled_from([3, 5, 7, 11]), max_size=40), st.integers(1, 9), st.integers(1, 45))
def test_repeated_ngram_counts_equal_hand_computed_ones(numbers: list[int], largest: int, within: int) -> None:
    lengths = [1 + number % 4 for number in numbers]
    arrays = (np.array(numbers, dtype=np.int64), np.array(lengths, dtype=np.int64))
    top, repeated = measure_ngram_repetition(*arrays, largest, within)
    for n in range(2, largest + 1):
        n_grams = [tuple(numbers[place : place + n]) for place in range(len(numbers) - n + 1)]
        characters = {n_gram: sum(1 + number % 4 for number in n_gram) for n_gram in n_grams}
        counts = Counter(n_grams)
        commonest = max(counts, key=lambda n_gram: counts[n_gram], default=())
        assert top[n] == ((characters[commonest] + n - 1) * counts[commonest] if n_grams else 0)
        read: dict[tuple[int, ...], int] = {}
        place = total = 0
        while place < len(n_grams):
            again = place - read.get(n_grams[place], -len(numbers) - within) <= within
            total += characters[n_grams[place]] * again
            read[n_grams[place]] = place
            place += n if again else 1
        assert repeated[n] == total


def test_windowed_repetition_does_not_grow_with_text_length() -> None:
    """Sentences of a hundred random words, common ones more often: repetition grows with length."""
    chance = random.Random(5)
    vocabulary = [f"woord{number}" for number in range(12)]
    phrases = [" ".join(chance.choices(vocabulary, k=6)) + "." for _ in range(400)]
    shares: dict[int | None, list[float]] = {None: [], 200: []}
    for size in (300, 3000):
        text = " ".join(chance.choices(phrases, k=size // 6))
        for within, result in shares.items():
            rules = ENGLISH.repetition.model_copy(update={"within_words": within})
            result.append(RepetitionMeasures(text, rules, "plain", "nl").duplicate_n_gram_character_share(6))
    whole, within_200 = shares[None], shares[200]
    assert whole[1] > 4 * whole[0] and within_200[1] < 2 * within_200[0]
    paragraph = " ".join(chance.choices(vocabulary, k=150))
    for text, share in ((f"{paragraph}\n{paragraph}", 0.4), (paragraph, 0.0)):  # copied text is found as before
        repeated_share = RepetitionMeasures(text, rules, "plain", "nl").duplicate_n_gram_character_share(6)
        assert repeated_share >= share and (share or repeated_share < 0.1)


def test_disabled_rule_removes_nothing() -> None:
    text = "\n\n".join(["dezelfde regel komt steeds weer terug in deze tekst"] * 9)
    off = ENGLISH.repetition.model_copy(
        update=dict.fromkeys(
            (
                "duplicate_lines",
                "duplicate_line_characters",
                "duplicate_paragraphs",
                "duplicate_paragraph_characters",
            )
        )
        | {"top_n_grams": {}, "duplicate_n_grams": {}}
    )
    document = Document(text=text, id="", metadata={"language": "nl"})
    assert GopherRepetition({"nl": off}).filter(document) is True
    assert GopherRepetition({"nl": ENGLISH.repetition}).filter(document) == (False, "duplicate_paragraphs")
    assert document.metadata["filter_value"] == "0.8889"


def test_words_are_split_once(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    count: Callable[[str], list[str]] = lambda text: calls.append(text) or word_tokenize(text)  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr("pipeline.corpus.text.word_splitting.word_tokenize", count)
    _cached_splitter.cache_clear()
    assert ours(texts["nl_water"], DUTCH) == (True, True)
    assert sorted(" ".join(calls).split()) == sorted(set(texts["nl_water"].split()))
    _cached_splitter.cache_clear()
