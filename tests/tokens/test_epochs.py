"""How often sources are read, beside a count of the sequences that a training is given."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.tokens.epochs import epochs
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
    read: Counter[tuple[str, str]] = Counter()
    sizes = {group: reader.row({group}.__contains__).tokens for group in reader.groups}
    for step in range(STEPS):
        for sequence in sampler.global_batch(step).tolist():
            stream, _ = sampler.place(sequence)
            groups = sampler.groups[stream] or [*sizes]
            whole = sum(sizes[group] for group in groups)
            for group in groups:  # those of one stream are read alike
                read[group] += T * sizes[group] / whole
    expected = epochs(sizes, chosen, STEPS, T * BATCH)
    assert expected.keys() == {source for source, _ in sizes}
    for source, times in expected.items():
        held = sum(size for (name, _), size in sizes.items() if name == source)
        counted = sum(amount for (name, _), amount in read.items() if name == source) / held
        assert times == pytest.approx(counted, rel=0.03, abs=0.02)
    total = sum(times * sum(s for (n, _), s in sizes.items() if n == name) for name, times in expected.items())
    assert total == pytest.approx(STEPS * BATCH * T), "no token is read that belongs to no source"
    assert np.isfinite([*expected.values()]).all()
