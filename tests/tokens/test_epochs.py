"""How often sources are read, beside a count of the sequences that a training is given."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.ramp import Batches
from pipeline.tokens.epochs import epochs, read_times
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import Sampling

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
def test_it_is_what_the_sampler_gives(built: Path, sampling: dict[str, Any]) -> None:
    reader = TokenReader(built, "train")
    chosen = Sampling.model_validate(sampling)
    sampler = Sampler(reader, T, BATCH, seed=3, sampling=chosen, steps=STEPS)
    read: Counter[tuple[str, ...]] = Counter()
    sizes = {group: reader.row({group}.__contains__).tokens for group in reader.groups}
    for step in range(STEPS):
        for sequence in sampler.global_batch(step).tolist():
            stream, _ = sampler.place(sequence)
            alike = sampler.groups[stream] or [*sizes]
            whole = sum(sizes[group] for group in alike)
            for group in alike:  # those of one stream are read alike
                read[group] += T * sizes[group] / whole
    groups = json.loads(built.read_text())["train"]["groups"]
    assert {(group["source"], group["language"]): group["tokens"] for group in groups} == sizes
    expected = epochs(groups, chosen, STEPS, Batches(T, BATCH))
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
    return {(row["column"], row["name"]): (row["tokens"], row["times"]) for row in read_times(INDEX, training, steps)}


def test_without_a_mixture_all_is_read_alike_and_told_by_source() -> None:
    times = pytest.approx(60 * 100 / 5000)
    assert shown({}) == {("source", "forum"): (1000, times), ("source", "laws"): (4000, times)}


def test_what_is_mixed_by_copies_is_told_by_copies_too() -> None:
    found = shown({"by": "cluster_size", "epochs": {"from 2": 2}})
    once = 60 * 100 / 6000  # 5,000 tokens, 1,000 of them twice
    assert found == {
        ("source", "forum"): (1000, pytest.approx(once)),
        ("source", "laws"): (4000, pytest.approx(once * 1.25)),
        ("cluster_size", "below 2"): (4000, pytest.approx(once)),
        ("cluster_size", "from 2"): (1000, pytest.approx(2 * once)),
    }


def test_of_an_index_without_groups_nothing_is_told() -> None:
    assert read_times({}, {"batch_size": 2, "sequence_length": 50}, 10) == []
    assert read_times(INDEX, {}, 10) == []
