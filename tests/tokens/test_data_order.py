"""Mixing: shares kept at every step, exact epochs, nothing lost or repeated, and the inverse from a sequence."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.batch_schedule import BatchSchedule, RampStage
from pipeline.tokens.data_order import (
    StreamOrder,
    StreamShares,
    count_epochs,
    format_batch_hash,
    partial_batch_hash,
    permute,
    tabulate_epochs,
)
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import Sampling
from pipeline.tokens.token_reader import TokenReader

weights_of = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10**9)), min_size=1, max_size=40).filter(any)


@given(size=st.integers(1, 2**62), seed=st.integers(0, 2**64), data=st.data())
def test_inverse_permutation_restores_the_order(size: int, seed: int, data: st.DataObject) -> None:
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    epochs = np.arange(len(indices))
    places = permute(indices, epochs, size, seed)
    assert permute(places, epochs, size, seed, backwards=True).tolist() == indices.tolist()


def test_vectorized_permutation_equals_single_permutations() -> None:
    sizes, keys = np.array([1, 2, 3, 1000, 2**40]), np.arange(5).astype(np.uint64)
    indices, epochs = sizes // 2, np.arange(5)
    each = [permute(indices[[n]], epochs[[n]], int(sizes[n]), int(keys[n]))[0] for n in range(5)]
    assert permute(indices, epochs, sizes, keys).tolist() == each


@settings(max_examples=200)
@given(weights=weights_of, batch_size=st.integers(1, 300), start=st.integers(0, 10**7))
def test_counts_add_up_never_decrease_and_follow_the_shares(weights: list[int], batch_size: int, start: int) -> None:
    shares = StreamShares([Fraction(weight) for weight in weights], batch_size)
    before = shares.count_sequences_by_stream(start * batch_size)
    for step in range(start + 1, start + 20):
        counts = shares.count_sequences_by_stream(step * batch_size)
        assert sum(counts) == step * batch_size
        assert all(new >= old for new, old in zip(counts, before, strict=True))
        for weight, count in zip(weights, counts, strict=True):
            apart = abs(count - Fraction(step * batch_size * weight, sum(weights)))
            assert apart < (1 if weight * batch_size >= sum(weights) else 2)
            assert weight or not count
        before = counts


def test_single_sequence_batches_follow_the_shares() -> None:
    shares = StreamShares([Fraction(5), Fraction(3), Fraction(2)], 1)
    apart = [
        abs(count - Fraction(step * weight, 10))
        for step in range(1000)
        for weight, count in zip((5, 3, 2), shares.count_sequences_by_stream(step), strict=True)
    ]
    assert max(apart) < 1


def order(sizes: list[int], amounts: list[str], batch_size: int, later: list[str] | None = None) -> StreamOrder:
    phases = [(0, [Fraction(a) * n for a, n in zip(amounts, sizes, strict=True)])]
    if later:
        phases.append((7, [Fraction(a) * n for a, n in zip(later, sizes, strict=True)]))
    return StreamOrder(sizes, list(range(1, len(sizes) + 1)), phases, BatchSchedule(8, batch_size))


def test_oversampling_is_exact() -> None:
    """A round is 300 + 3 * 40 + 2.5 * 20 = 470 sequences: after two, every sequence was seen as often as requested."""
    mixed = order([300, 40, 20], ["1", "3", "2.5"], 10)
    seen = Counter(np.concatenate([mixed.batch_sequences_of_all_streams(step) for step in range(94)]).tolist())
    assert [{seen[n] for n in numbers} for numbers in (range(300), range(300, 340), range(340, 360))] == [{2}, {6}, {5}]


@pytest.mark.parametrize("batch_size", [1, 3, 16, 250])
def test_every_epoch_of_a_stream_contains_each_sequence_once(batch_size: int) -> None:
    sizes = [97, 31, 1, 5]
    mixed = order(sizes, ["1", "2", "1", "0.5"], batch_size, later=["0", "1", "1", "4"])
    stream = np.concatenate([mixed.batch_sequences_of_all_streams(step) for step in range(900 // batch_size)])
    for offset, size in zip(mixed.offsets, sizes, strict=False):
        places = stream[(stream >= offset) & (stream < offset + size)]
        counts = np.bincount(places - offset, minlength=size)
        assert counts.max() - counts.min() <= 1
        if batch_size == 1:  # the order within a batch is another
            for epoch in range(len(places) // size):
                assert len(set(places[epoch * size : (epoch + 1) * size].tolist())) == size


def test_phase_continues_after_the_previous_one() -> None:
    mixed = order([50, 20], ["1", "0"], 5, later=["0", "1"])
    first, second = (
        np.concatenate([mixed.batch_sequences_of_all_streams(step) for step in steps])
        for steps in (range(7), range(7, 11))
    )
    assert (first < 50).all() and (second >= 50).all()
    assert sorted(second.tolist()) == list(range(50, 70))
    assert mixed.count_sequences_before(7) == [35, 0] and mixed.count_sequences_before(11) == [35, 20]


def test_each_of_three_phases_begins_where_the_previous_one_ended() -> None:
    phases = [(start, [Fraction(one), Fraction(other)]) for start, one, other in ((0, 1, 0), (3, 0, 1), (8, 1, 1))]
    mixed = StreamOrder([100, 100], [1, 2], phases, BatchSchedule(8, 4))
    assert [mixed.count_sequences_before(step) for step in (3, 8, 10)] == [[12, 0], [12, 20], [16, 24]]
    read = np.concatenate([mixed.batch_sequences_of_all_streams(step) for step in range(10)])
    assert len({*read.tolist()}) == len(read) == 40, "no sequence twice, because no stream is at its end"


def test_ramp_reads_sequences_in_smaller_batches_through_all_phases() -> None:
    shares = ((0, 3, 1), (3, 1, 1), (6, 1, 3))
    phases = [(start, [Fraction(one), Fraction(other)]) for start, one, other in shares]
    ramp = [RampStage(to_step=4, batch_size=4), RampStage(to_step=5, batch_size=8)]
    mixed = StreamOrder([1000, 1000], [1, 2], phases, BatchSchedule(8, 16, ramp))
    assert [len(mixed.batch_sequences_of_all_streams(step)) for step in range(8)] == [4, 4, 4, 4, 8, 16, 16, 16]
    assert [mixed.count_sequences_before(step) for step in (3, 4, 6, 8)] == [[9, 3], [11, 5], [23, 17], [31, 41]]
    read = np.concatenate([mixed.batch_sequences_of_all_streams(step) for step in range(8)])
    assert len({*read.tolist()}) == len(read) == 72, "no sequence twice"
    assert [mixed.find_steps(int(mixed.batch_sequences_of_all_streams(step)[1]), 8) for step in range(8)] == [
        [step] for step in range(8)
    ]


def test_batch_mixes_its_streams_over_its_rows() -> None:
    mixed = order([10**6, 10**6], ["1", "1"], 64)
    halves = [(mixed.batch_sequences_of_all_streams(step)[:32] < 10**6).sum() for step in range(200)]
    assert abs(np.mean(halves) - 16) < 1 and np.std(halves) > 1.5


@settings(max_examples=10)
@given(step=st.integers(0, 80), batch_size=st.integers(1, 40), at=st.integers(0, 39))
def test_steps_of_a_sequence_are_those_whose_batch_contains_it(step: int, batch_size: int, at: int) -> None:
    mixed = order([97, 31, 1], ["1", "3", "1"], batch_size, later=["2", "1", "1"])
    sequence = int(mixed.batch_sequences_of_all_streams(step)[at % batch_size])
    expected = [
        s for s in range(step + 1) for result in mixed.batch_sequences_of_all_streams(s).tolist() if result == sequence
    ]
    assert mixed.find_steps(sequence, step + 1) == expected


def test_any_step_of_a_hundred_million_samples_is_computed_quickly() -> None:
    draw = np.random.default_rng(1)
    sizes = draw.integers(1, 400_000, size=600).tolist()
    mixed = order(sizes, [str(round(x, 3)) for x in draw.uniform(0.1, 4, 600)], 4096)
    assert sum(sizes) > 10**8
    started = time.process_time()
    for step in range(10**6, 10**6 + 5):
        batch = mixed.batch_sequences_of_all_streams(step)
    assert (time.process_time() - started) / 5 < 0.05
    started = time.process_time()
    steps = mixed.find_steps(int(batch[7]), 30_000)
    assert time.process_time() - started < 1
    assert steps and all(batch[7] in mixed.batch_sequences_of_all_streams(step) for step in steps)


T, BATCH, STEPS = 16, 4, 60


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"by": "language", "weights": {"nl": 3, "en": 1}},
        {"by": "source", "epochs": {"nl_book": 3}},
        {"by": "language", "weights": {"nl": 1}, "phases": [{"from_step": 30, "by": "language", "weights": {"en": 1}}]},
    ],
    ids=["all alike", "weights", "epochs", "phases"],
)
def test_epoch_table_equals_the_sampler(built: Path, sampling: dict[str, Any]) -> None:
    reader = TokenReader(built, "train")
    chosen = Sampling.model_validate(sampling)
    sampler = Sampler(reader, T, BATCH, seed=3, sampling=chosen, steps=STEPS)
    read: Counter[tuple[str, ...]] = Counter()
    sizes = {group: reader.select_tokens_of_groups({group}.__contains__).tokens for group in reader.groups}
    for step in range(STEPS):
        for sequence in sampler.global_batch_sequence_numbers(step).tolist():
            stream, _ = sampler.locate(sequence)
            stream_groups = sampler.groups[stream] or [*sizes]
            whole = sum(sizes[group] for group in stream_groups)
            for group in stream_groups:  # those of one stream are read equally
                read[group] += T * sizes[group] / whole
    groups = json.loads(built.read_text())["train"]["groups"]
    assert {(group["source"], group["language"]): group["tokens"] for group in groups} == sizes
    expected = count_epochs(groups, chosen, STEPS, BatchSchedule(T, BATCH))
    assert expected.keys() == {source for source, _ in sizes}
    for source, times in expected.items():
        held = sum(size for (name, _), size in sizes.items() if name == source)
        counted = sum(amount for (name, _), amount in read.items() if name == source) / held
        assert times == pytest.approx(counted, rel=0.03, abs=0.02)
    total = sum(times * sum(s for (n, _), s in sizes.items() if n == name) for name, times in expected.items())
    assert total == pytest.approx(STEPS * BATCH * T), "no token is read that belongs to no source"
    assert np.isfinite([*expected.values()]).all()


HELD = [
    {"source": "laws", "language": "nl", "cluster_size": "below 2", "tokens": 3000},
    {"source": "laws", "language": "nl", "cluster_size": "from 2", "tokens": 1000},
    {"source": "forum", "language": "nl", "cluster_size": "below 2", "tokens": 1000},
]
INDEX = {"train": {"groups": HELD}}


def shown(sampling: dict[str, Any], steps: int = 60) -> dict[tuple[str, str], tuple[int, float]]:
    training = {"batch_size": 2, "sequence_length": 50, "sampling": sampling}
    return {
        (row["column"], row["name"]): (row["tokens"], row["times"]) for row in tabulate_epochs(INDEX, training, steps)
    }


def test_unmixed_epochs_are_equal_and_listed_by_source() -> None:
    times = pytest.approx(60 * 100 / 5000)
    assert shown({}) == {("source", "forum"): (1000, times), ("source", "laws"): (4000, times)}


def test_mixture_by_copies_is_also_listed_by_copies() -> None:
    result = shown({"by": "cluster_size", "epochs": {"from 2": 2}})
    once = 60 * 100 / 6000  # 5,000 tokens, 1,000 of them twice
    assert result == {
        ("source", "forum"): (1000, pytest.approx(once)),
        ("source", "laws"): (4000, pytest.approx(once * 1.25)),
        ("cluster_size", "below 2"): (4000, pytest.approx(once)),
        ("cluster_size", "from 2"): (1000, pytest.approx(2 * once)),
    }


def test_index_without_groups_has_no_epoch_table() -> None:
    assert tabulate_epochs({}, {"batch_size": 2, "sequence_length": 50}, 10) == []
    assert tabulate_epochs(INDEX, {}, 10) == []


def test_batch_hash_equals_its_definition() -> None:
    rows = [[3, 1, 70_000], [3, 1, 70_000], [2, 9, 4], [7, 7, 7]]
    sums = [0, 0, 0, 0]
    for place, row in enumerate(rows):
        digest = hashlib.sha256(
            b"".join([place.to_bytes(8, "little"), *(t.to_bytes(4, "little") for t in row)])
        ).digest()
        sums = [total + int.from_bytes(digest[4 * n : 4 * n + 4], "little") for n, total in enumerate(sums)]
    assert format_batch_hash(partial_batch_hash(np.array(rows), 0)) == "".join(f"{total % 2**32:08x}" for total in sums)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_partial_hashes_of_any_number_of_processes_add_up(seed: int, processes: int) -> None:
    tokens_BT = np.random.default_rng(seed).integers(0, 2**17, (12, 5))
    size = 12 // processes
    parts = [partial_batch_hash(tokens_BT[rank * size :][:size], rank * size) for rank in range(processes)]
    assert format_batch_hash(np.sum(parts, axis=0)) == format_batch_hash(partial_batch_hash(tokens_BT, 0))


def test_batch_hash_detects_order_token_and_position_changes() -> None:
    tokens_BT = np.arange(20).reshape(4, 5)
    others = [tokens_BT[::-1], tokens_BT + (tokens_BT == 19), tokens_BT[:3], tokens_BT[[0, 0, 2, 3]]]
    hashes = [format_batch_hash(partial_batch_hash(rows, 0)) for rows in (tokens_BT, *others)]
    assert len({*hashes, format_batch_hash(partial_batch_hash(tokens_BT, 1))}) == 6
