"""Simulated coverage of the confidence intervals of scores: means, shares, differences, corpus-level metrics.

    PYTHONPATH=. python benchmarks/interval_coverage.py [--rounds 2000] [--run results/RUN]

A line is a distribution, a column a number of units: items, or clusters of items. --run adds the values of real items,
drawn with replacement, whose overall value is the truth. The last lines are the lowest coverage of each kind, which
`pipeline.core.confidence_intervals.SIMULATED_COVERAGE` repeats.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipeline.core.confidence_intervals import COVERAGE_SIZES as SIZES
from pipeline.core.confidence_intervals import ConfidenceInterval, ratio_interval
from tests.evaluate.coverage import KINDS, Draw, Floats, coverage


def _real(run: Path) -> dict[str, Draw]:
    """Return draws of the bits per byte of the items of each task of a run."""
    draws: dict[str, Draw] = {}
    for path in sorted(run.glob("evaluation/*/*/items.parquet")):
        rows = [row for row in pq.read_table(path).to_pylist() if row["bytes"]]
        for task in sorted({row["task"] for row in rows}):
            of_task = [row for row in rows if row["task"] == task]
            places = [row["right_answers"][0] if row["right_answers"] else 0 for row in of_task]
            nats = np.array([-row["log_probabilities"][place] for row, place in zip(of_task, places, strict=True)])
            sizes = np.array([float(row["bytes"]) for row in of_task])

            def draw(
                random: np.random.Generator, units: int, nats: Floats = nats, sizes: Floats = sizes
            ) -> tuple[ConfidenceInterval, float]:
                drawn = random.integers(len(nats), size=units)
                return ratio_interval(nats[drawn], sizes[drawn]), float(nats.sum() / sizes.sum())

            draws[f"{path.parent.parent.name}, {path.parent.name}, {task}"] = draw
    return draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--run", type=Path)
    given = parser.parse_args()
    print("| distribution |", " | ".join(map(str, SIZES)), "|")
    print("|---|" + "---|" * len(SIZES))
    kinds = KINDS | ({"real items": _real(given.run)} if given.run else {})
    lowest: dict[str, list[float]] = {}
    for kind, draws in kinds.items():
        for name, draw in draws.items():
            rounds = given.rounds if kind != "function" else given.rounds // 4  # which are slow
            held = [coverage(draw, units, rounds) for units in SIZES]
            print(f"| {kind}: {name} |", " | ".join(f"{one:.3f}" for one in held), "|", flush=True)
            lowest[kind] = [min(pair) for pair in zip(held, lowest.get(kind, held), strict=True)]
    for kind, held in lowest.items():
        print(f"| **lowest, {kind}** |", " | ".join(f"{one:.3f}" for one in held), "|")


if __name__ == "__main__":
    main()
