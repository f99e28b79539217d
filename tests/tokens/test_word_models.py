"""The counters of words count the training text, and give each choice the probability of the formula."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.ground.errors import InputError
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.word_models import PAIR_WEIGHT, WordModels


def test_probabilities_are_those_of_counts_by_hand(built: Path) -> None:
    reader = TokenReader(built, "train")
    rows = [values.tolist() for _, values in reader.views]
    counts = Counter(token for row in rows for token in row)
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    tokens = rows[0][3:9]
    asked = [(rows[0][:3], tokens), ([reader.begin_of_text_id], [tokens[0], reader.vocabulary_size - 1])]
    models = WordModels(built, asked)
    assert models.tokens == reader.tokens
    total = reader.tokens + reader.vocabulary_size
    for before, after in asked:
        unigram = sum(math.log((counts[token] + 1) / total) for token in after)
        assert models.unigram((before, after)) == pytest.approx(unigram)
        bigram = sum(
            math.log(PAIR_WEIGHT * pairs[one, other] / counts[one] + (1 - PAIR_WEIGHT) * (counts[other] + 1) / total)
            for one, other in zip([before[-1], *after[:-1]], after, strict=True)
        )
        assert models.bigram((before, after)) == pytest.approx(bigram)


def test_of_much_text_every_source_is_counted_in_its_share(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = TokenReader(built, "train")
    monkeypatch.setattr("pipeline.tokens.word_models.COUNTED_TOKENS", reader.tokens // 3)
    models = WordModels(built, [])
    sizes = [math.ceil(len(values) * (reader.tokens // 3) / reader.tokens) for _, values in reader.views]
    assert models.tokens == sum(sizes) < reader.tokens // 3 + len(sizes) + 1


def test_tokens_of_another_tokenizer_are_refused(built: Path) -> None:
    with pytest.raises(InputError, match=r"has a vocabulary of 320, the model's tokens reach 400: it is another's"):
        WordModels(built, [([1], [400])])
