"""The order of training: a bijection per epoch, the same at every world size, without memory of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.tokens.permutation import mix, permute
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.sampler import IGNORED, Sampler, validation_batches

T = 16


@pytest.fixture(scope="module")
def reader(built: Path) -> TokenReader:
    return TokenReader(built, "train")


@settings(deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(size), np.full(size, epoch), size, seed)
    assert sorted(order.tolist()) == list(range(size))


@settings(deadline=None)
@given(size=st.integers(2**32, 2**60), data=st.data())
def test_large_sizes_stay_inside_and_do_not_collide(size: int, data: st.DataObject) -> None:
    chosen = np.unique(np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=50))))
    order = permute(chosen, np.zeros(len(chosen), dtype=np.int64), size, 1)
    assert len(set(order.tolist())) == len(chosen)
    assert order.min() >= 0 and order.max() < size


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    size = 5000
    orders = [permute(np.arange(size), np.full(size, epoch), size, seed) for seed in (0, 1) for epoch in (0, 1)]
    orders.append(np.arange(size))
    for number, order in enumerate(orders):
        for other in orders[:number]:
            assert (order == other).sum() < 10  # one is expected of unrelated orders
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.06  # four standard deviations


@pytest.mark.parametrize("size", [3, 5, 7, 13])
def test_each_place_is_equally_likely_over_epochs(size: int) -> None:
    """The mean of many chi-squared statistics, so that a small bias shows; small sizes suffer first from few rounds."""
    epochs = np.arange(20_000)
    expected = len(epochs) / size
    statistics = []
    for seed in range(12):
        for index in (0, size // 2, size - 1):
            counts = np.bincount(permute(np.full(len(epochs), index), epochs, size, seed), minlength=size)
            statistics.append(((counts - expected) ** 2).sum() / expected)
    standard_error = np.sqrt(2 * (size - 1) / len(statistics))
    assert abs(np.mean(statistics) - (size - 1)) < 4 * standard_error


def test_mixer_gives_the_published_outputs_of_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + number * golden) % 2**64 for number in range(3)], dtype=np.uint64)
    assert mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_an_epoch_shows_every_sequence_once(reader: TokenReader) -> None:
    sampler = Sampler(reader, T, global_batch_size=8, seed=42)
    assert sampler.sequences == (reader.tokens - 1) // T
    steps = -(-3 * sampler.sequences // 8)
    stream = np.concatenate([sampler.global_batch(step) for step in range(steps)])
    for epoch in range(3):
        seen = stream[epoch * sampler.sequences : (epoch + 1) * sampler.sequences]
        assert sorted(seen.tolist()) == list(range(sampler.sequences))


@settings(deadline=None)
@given(step=st.integers(0, 10**6), world_size=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_the_same_global_batch_at_any_world_size(reader: TokenReader, step: int, world_size: int) -> None:
    sampler = Sampler(reader, T, global_batch_size=8, seed=42)
    shares = [sampler.rank_batch(step, rank, world_size) for rank in range(world_size)]
    assert {len(share) for share in shares} == {8 // world_size}
    assert np.concatenate(shares).tolist() == sampler.global_batch(step).tolist()
    tokens = [sampler.batch_tokens(step, rank, world_size) for rank in range(world_size)]
    whole = sampler.batch_tokens(step)
    for joined, expected in zip(map(np.concatenate, zip(*tokens, strict=True)), whole, strict=True):
        assert np.array_equal(joined, expected)


@settings(deadline=None)
@given(step=st.integers(0, 100), size=st.sampled_from([1, 3, 8]))
def test_a_step_does_not_depend_on_the_steps_before(reader: TokenReader, step: int, size: int) -> None:
    sequential = Sampler(reader, T, size, seed=7)
    visited = [sequential.global_batch(number).tolist() for number in range(step + 1)]
    assert Sampler(reader, T, size, seed=7).global_batch(step).tolist() == visited[step]
    single = Sampler(reader, T, 1, seed=7)
    assert [single.global_batch(step * size + n)[0] for n in range(size)] == visited[step]


def test_inputs_and_targets_are_the_text_and_its_successor(reader: TokenReader) -> None:
    sampler = Sampler(reader, T, global_batch_size=4, seed=1)
    inputs_BT, targets_BT = sampler.batch_tokens(5)
    assert inputs_BT.shape == targets_BT.shape == (4, T)
    assert inputs_BT.dtype == targets_BT.dtype == np.int64
    for row, number in enumerate(sampler.global_batch(5).tolist()):
        tokens = reader.read(number * T, T + 1)
        assert np.array_equal(inputs_BT[row], tokens[:-1])
        assert np.array_equal(targets_BT[row], tokens[1:])


def test_the_longest_possible_sequence_works_and_one_more_is_refused(reader: TokenReader) -> None:
    tokens = reader.tokens
    assert Sampler(reader, tokens - 1, 2, seed=1).batch_tokens(0)[0].shape == (2, tokens - 1)
    message = f"sequence_length {tokens} needs at least {tokens + 1} tokens, the training split has {tokens}"
    with pytest.raises(InputError, match=message):
        Sampler(reader, tokens, 2, seed=1)


def test_a_world_size_that_does_not_divide_the_batch_is_refused(reader: TokenReader) -> None:
    with pytest.raises(InputError, match="global_batch_size 8 cannot be shared by 3 ranks"):
        Sampler(reader, T, 8, seed=1).rank_batch(0, 0, 3)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_validation_predicts_every_token_once_on_equally_many_batches(built: Path, world_size: int) -> None:
    reader = TokenReader(built, "validation")
    expected = reader.read(0, reader.tokens)
    ranks = [list(validation_batches(reader, T, 4, rank, world_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert {inputs.shape for batches in ranks for inputs, _ in batches} == {(4 // world_size, T)}
    ordered = [batch for batches in zip(*ranks, strict=True) for batch in batches]
    inputs = np.concatenate([inputs_BT.ravel() for inputs_BT, _ in ordered])
    targets = np.concatenate([targets_BT.ravel() for _, targets_BT in ordered])
    assert np.array_equal(inputs[targets != IGNORED], expected[:-1])
    assert np.array_equal(targets[targets != IGNORED], expected[1:])
    assert (inputs[targets == IGNORED] == reader.begin_of_text_id).all()


def test_validation_can_stop_early_and_needs_text(
    built: Path, tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    assert len(list(validation_batches(TokenReader(built, "validation"), T, 4, batches=2))) == 2
    empty = build_tokens(tmp_path / "tokens", [write(tmp_path / "empty.parquet", [])], tokenizer, 1)
    with pytest.raises(InputError, match="the validation split has 0 tokens and nothing to predict"):
        next(validation_batches(TokenReader(empty, "validation"), T, 4))
