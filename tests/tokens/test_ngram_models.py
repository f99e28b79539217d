"""The unigram and the bigram model count like a dictionary, and their probabilities sum to one."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.tokens.ngram_models import PAIR_WEIGHT, NgramModels
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet
from tests.tokens.test_validation_reader import seen


def test_probabilities_equal_hand_computed_counts(built: Path) -> None:
    reader = TokenReader(built, "train")
    rows = [values.tolist() for _, values in reader.batch_views]
    counts = Counter(token for row in rows for token in row)
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    followed = Counter(token for row in rows for token in row[:-1])
    tokens = rows[0][3:9]
    asked = [(rows[0][:3], tokens), ([reader.begin_of_text_id], [tokens[0], reader.vocabulary_size - 1])]
    models = NgramModels(built, asked)
    assert models.tokens == reader.tokens
    total = reader.tokens + reader.vocabulary_size
    for before, after in asked:
        unigram = sum(math.log((counts[token] + 1) / total) for token in after)
        assert models.score_unigram((before, after)) == pytest.approx(unigram)
        bigram = sum(
            math.log(PAIR_WEIGHT * pairs[one, other] / followed[one] + (1 - PAIR_WEIGHT) * (counts[other] + 1) / total)
            for one, other in zip([before[-1], *after[:-1]], after, strict=True)
        )
        assert models.score_bigram((before, after)) == pytest.approx(bigram)


def test_first_bigram_context_is_its_own_token_and_only_the_last_token_counts(built: Path) -> None:
    tokens = next(values for _, values in TokenReader(built, "train").batch_views)[3:9].tolist()
    models = NgramModels(built)
    alone, after_itself, after_more = (
        models.score_bigram((before, tokens)) for before in ([], tokens[:1], [7, tokens[0]])
    )
    assert alone == after_itself == after_more != models.score_bigram((tokens[:1], tokens[1:]))


def plain_losses(index: Path, documents: list[list[int]]) -> tuple[float, float]:
    """Return the losses of documents by a unigram and a bigram, with dictionaries; begin-of-text is not predicted."""
    reader = TokenReader(index, "train")
    rows = [values.tolist() for _, values in reader.batch_views]
    counts = Counter(token for row in rows for token in row)
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    alone = {token: (counts[token] + 1) / (reader.tokens + reader.vocabulary_size) for token in range(320)}
    asked = [pair for document in documents for pair in pairwise(document)]
    followed = Counter(token for row in rows for token in row[:-1])
    after = [
        0.7 * pairs[pair] / followed[pair[0]] + 0.3 * alone[pair[1]] if followed[pair[0]] else alone[pair[1]]
        for pair in asked
    ]
    losses = [-sum(map(math.log, each)) / len(asked) for each in ([alone[token] for _, token in asked], after)]
    return losses[0], losses[1]


@pytest.mark.parametrize("tokens", [None, 300])
@pytest.mark.parametrize("at_once", [1, 7, 100, 1 << 20])
def test_held_out_losses_equal_those_of_dictionaries(
    built: Path, tokens: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tokens.validation_reader.TOKENS_PER_READ", at_once)
    held_out = ValidationSet(built, tokens)
    begin = TokenReader(built, "validation").begin_of_text_id
    documents = [[begin, *predicted] for predicted in seen(held_out)[0]]
    models = NgramModels(built)
    assert models.compute_mean_losses(held_out.iterate_predicted_pairs()) == pytest.approx(
        plain_losses(built, documents)
    )
    assert models.tokens == models.training_tokens == TokenReader(built, "train").tokens


def test_token_after_an_unknown_token_uses_unigram_frequencies(built: Path) -> None:
    models = NgramModels(built)
    reader = TokenReader(built, "train")
    never = next(token for token in range(320) if all(token not in values for _, values in reader.batch_views))
    expected = plain_losses(built, [[never, 5]])
    assert models.compute_mean_losses([(np.array([never]), np.array([5]))]) == pytest.approx(expected)
    assert models.compute_mean_losses([(np.array([319]), np.array([319]))]) == pytest.approx(
        plain_losses(built, [[319, 319]])
    )


@pytest.mark.slow
def test_bigram_probabilities_sum_to_one_after_any_token(built: Path) -> None:
    """Tokens that are common, that are never seen, and that are seen only at the end of a shard."""
    models, size = NgramModels(built), TokenReader(built, "train").vocabulary_size
    asked = [([before], [token]) for before in range(0, size, 16) for token in range(size)]
    for each, step in ((models, 1), (NgramModels(built, asked), 16)):
        for before in range(0, size, step):
            total = math.fsum(math.exp(each.score_bigram(([before], [token]))) for token in range(size))
            assert total == pytest.approx(1.0)
    assert math.fsum(math.exp(models.score_unigram(([], [token]))) for token in range(size)) == pytest.approx(1.0)


def test_large_text_is_sampled_proportionally_by_source(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = TokenReader(built, "train")
    monkeypatch.setattr("pipeline.tokens.ngram_models.COUNTED_TOKENS", reader.tokens // 3)
    models = NgramModels(built, [])
    sizes = [math.ceil(len(values) * (reader.tokens // 3) / reader.tokens) for _, values in reader.batch_views]
    assert models.tokens == sum(sizes) < reader.tokens // 3 + len(sizes) + 1
    assert models.training_tokens == reader.tokens


def test_tokens_of_another_tokenizer_are_refused(built: Path) -> None:
    with pytest.raises(InputError, match=r"has a vocabulary of 320, the model's tokens reach 400: it is another's"):
        NgramModels(built, [([1], [400])])
