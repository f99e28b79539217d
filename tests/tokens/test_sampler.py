"""The order of training: a bijection per epoch, the same at every world size, without memory of earlier steps."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.tokens.data_order import permute, splitmix64
from pipeline.tokens.sampler import Sampler, document_boundaries, rank_share
from pipeline.tokens.settings import Sampling
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet

T = 16


@pytest.fixture(scope="module")
def reader(built: Path) -> TokenReader:
    return TokenReader(built, "train")


@given(size=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(size), np.full(size, epoch), size, seed)
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(2**32, 2**60), data=st.data())
def test_large_permutations_stay_in_range_without_collisions(size: int, data: st.DataObject) -> None:
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
def test_each_position_is_equally_likely_over_epochs(size: int) -> None:
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


def test_mixer_equals_published_splitmix64_outputs() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + number * golden) % 2**64 for number in range(3)], dtype=np.uint64)
    assert splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_epoch_contains_every_sequence_once(reader: TokenReader) -> None:
    sampler = Sampler(reader, T, global_batch_size=8, seed=42)
    assert sampler.sequences == (reader.tokens - 1) // T
    steps = -(-3 * sampler.sequences // 8)
    stream = np.concatenate([sampler.global_batch_sequence_numbers(step) for step in range(steps)])
    for epoch in range(3):
        seen = stream[epoch * sampler.sequences : (epoch + 1) * sampler.sequences]
        assert sorted(seen.tolist()) == list(range(sampler.sequences))


@given(step=st.integers(0, 10**6), world_size=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_the_same_global_batch_at_any_world_size(reader: TokenReader, step: int, world_size: int) -> None:
    sampler = Sampler(reader, T, global_batch_size=8, seed=42)
    shares = [rank_share(sampler.global_batch_sequence_numbers(step), rank, world_size) for rank in range(world_size)]
    assert {len(share) for share in shares} == {8 // world_size}
    assert np.concatenate(shares).tolist() == sampler.global_batch_sequence_numbers(step).tolist()
    tokens = [sampler.read_batch(step, rank, world_size) for rank in range(world_size)]
    whole = sampler.read_batch(step)
    for joined, expected in zip(map(np.concatenate, zip(*tokens, strict=True)), whole, strict=True):
        assert np.array_equal(joined, expected)


@given(step=st.integers(0, 30), size=st.sampled_from([1, 3, 8]))
def test_step_does_not_depend_on_earlier_steps(reader: TokenReader, step: int, size: int) -> None:
    sequential = Sampler(reader, T, size, seed=7)
    visited = [sequential.global_batch_sequence_numbers(number).tolist() for number in range(step + 1)]
    assert Sampler(reader, T, size, seed=7).global_batch_sequence_numbers(step).tolist() == visited[step]
    single = Sampler(reader, T, 1, seed=7)
    assert [single.global_batch_sequence_numbers(step * size + n)[0] for n in range(size)] == visited[step]


def test_targets_are_the_inputs_shifted_by_one(reader: TokenReader) -> None:
    sampler = Sampler(reader, T, global_batch_size=4, seed=1)
    inputs_BT, targets_BT = sampler.read_batch(5)
    assert inputs_BT.shape == targets_BT.shape == (4, T)
    assert inputs_BT.dtype == targets_BT.dtype == np.int64
    for row, number in enumerate(sampler.global_batch_sequence_numbers(5).tolist()):
        tokens = reader.read(number * T, T + 1)
        assert np.array_equal(inputs_BT[row], tokens[:-1])
        assert np.array_equal(targets_BT[row], tokens[1:])


def test_longest_possible_sequence_works_and_a_longer_one_is_refused(reader: TokenReader) -> None:
    tokens = reader.tokens
    assert Sampler(reader, tokens - 1, 2, seed=1).read_batch(0)[0].shape == (2, tokens - 1)
    message = f"sequence_length {tokens} needs at least {tokens + 1} tokens, the training split has {tokens}"
    with pytest.raises(InputError, match=message):
        Sampler(reader, tokens, 2, seed=1)


def test_world_size_that_does_not_divide_the_batch_is_refused(reader: TokenReader) -> None:
    with pytest.raises(InputError, match="global_batch_size 8 cannot be shared by 3 ranks"):
        rank_share(Sampler(reader, T, 8, seed=1).global_batch_sequence_numbers(0), 0, 3)


def mixed(reader: TokenReader, skips: tuple[int, ...] = (), **keys: object) -> Sampler:
    return Sampler(reader, T, 8, 42, Sampling.model_validate(keys), 1000, skips)


def sources_of(sampler: Sampler, step: int) -> Counter[str]:
    batch = sampler.read_batch(step)[0]
    rows = zip(batch, map(sampler.locate, sampler.global_batch_sequence_numbers(step).tolist()), strict=True)
    result: Counter[str] = Counter()
    for tokens_T, (stream, start) in rows:
        assert np.array_equal(tokens_T, sampler.rows[stream].read(start, T))
        result.update({row["source"] for row in sampler.rows[stream].documents_in(start, T)})
    return result


def test_weights_phases_and_epochs_determine_the_batch_sources(reader: TokenReader) -> None:
    phases = [{"from_share": 0.5, "by": "language", "weights": {"en": 3, "nl": 1}}, {"from_step": 600}]
    sampler = mixed(reader, weights={"nl_book": 1}, phases=phases)
    assert sources_of(sampler, 499) == {"nl_book": 8}
    assert sources_of(sampler, 500) == {"nl_book": 2, "en_book": 6}
    assert set(sources_of(sampler, 700)) == {"nl_book", "en_book"}
    often = mixed(reader, epochs={"nl_book": 3})
    english, dutch = (often.order.sizes[often.groups.index([(f"{name}_book", name)])] for name in ("en", "nl"))
    steps = (english + 3 * dutch) // 8
    counts = dict(
        zip([groups[0][1] for groups in often.groups], often.order.count_sequences_before(steps), strict=True)
    )
    assert english - 8 <= counts["en"] <= english and 3 * dutch - 8 <= counts["nl"] <= 3 * dutch


@pytest.mark.parametrize("keys", [{}, {"epochs": {"nl_book": 2}}, {"by": "language", "weights": {"nl": 1, "en": 9}}])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_mixture_is_the_same_at_every_world_size(reader: TokenReader, keys: dict, world_size: int) -> None:
    sampler = mixed(reader, **keys)
    for step in (0, 10**6):
        shares = [
            rank_share(sampler.global_batch_sequence_numbers(step), rank, world_size) for rank in range(world_size)
        ]
        assert np.concatenate(shares).tolist() == sampler.global_batch_sequence_numbers(step).tolist()


@given(skips=st.sets(st.integers(0, 40), max_size=12).map(sorted))
def test_skips_remove_only_their_batches(skips: list[int]) -> None:
    sampler = Sampler.__new__(Sampler)
    sampler.skips = skips
    taken = [sampler.data_step(step) for step in range(60)]
    assert taken == [step for step in range(100) if step not in skips][:60]


def test_skipped_batch_is_replaced_by_the_next_one(reader: TokenReader) -> None:
    plain, skipping = mixed(reader), mixed(reader, skips=(2, 5))
    expected = [plain.global_batch_sequence_numbers(step).tolist() for step in (0, 1, 3, 4, 6, 7)]
    assert [skipping.global_batch_sequence_numbers(step).tolist() for step in range(6)] == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weights": {"nl_boek": 1}}, "sampling: the tokens have no source nl_boek: did you mean nl_book"),
        ({"by": "language", "epochs": {"fy": 2}}, "sampling: the tokens have no language fy: there is en, nl"),
        ({"epochs": {"nl_book": 0, "en_book": 0}}, "sampling: nothing is left of the tokens from step 0 on"),
    ],
)
def test_mixture_of_missing_groups_is_refused(reader: TokenReader, keys: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixed(reader, **keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weights": {"a": -1}}, "greater than or equal to 0"),
        ({"weights": {"a": 0}}, "all weights are 0"),
        ({"weights": {"a": 1}, "epochs": {"a": 1}}, "exclude each other"),
        ({"phases": [{"weights": {"a": 1}}]}, "starts either from_step or from_share"),
    ],
)
def test_invalid_mixture_settings_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sampling.model_validate(keys)


@pytest.mark.parametrize(("starts", "message"), [((5, 5), "order them"), ((1000,), "is not below the 1000 steps")])
def test_phases_out_of_order_or_after_the_end_are_refused(starts: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling.model_validate({"phases": [{"from_step": start} for start in starts]}).mixtures(1000)


def test_document_limits_include_document_and_row_starts(reader: TokenReader) -> None:
    sampler = Sampler(reader, 200, 4, seed=1)
    input_BT, _ = sampler.read_batch(0)
    expected = []
    for row, number in enumerate(sampler.global_batch_sequence_numbers(0).tolist()):
        documents = reader.documents_in(number * 200, 200)
        expected += [row * 200 + max(document["start"] - number * 200, 0) for document in documents]
    limits = document_boundaries(input_BT, reader.begin_of_text_id)
    assert limits.dtype == np.int32 and limits.tolist() == [*expected, 800] and len(expected) > 4


def test_tokens_outside_the_vocabulary_are_refused(built: Path, tmp_path: Path) -> None:
    index = shutil.copytree(built.parent, tmp_path / "altered") / built.name
    for split in ("train", "validation"):
        tokens = TokenReader(index, split).slices(0, 200)[0].tobytes()
        path = index.parent / split / "0.arrow"
        content = path.read_bytes()
        assert tokens in content
        path.write_bytes(content.replace(tokens, b"\xff" * len(tokens)))
    reader = TokenReader(index, "train")
    with pytest.raises(InputError, match="holds the token 65535 of a vocabulary of 320: it was altered"):
        Sampler(reader, 16, reader.tokens // 16 - 1, seed=1).read_batch(0)
    with pytest.raises(InputError, match="was altered"):
        list(ValidationSet(index).batches(16, 8))
