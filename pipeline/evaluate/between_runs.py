"""What the answers of two runs say of their models: which one is better, where chance alone hardly gives it.

Of each model of both runs the last checkpoint that both evaluated is compared item by item, by the tests of the step
`evaluate differences`, and over all models together.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.evaluate.checkpoint import Checkpoint, read
from pipeline.evaluate.differences import compared_in_all, judge
from pipeline.evaluate.items import Key


def _answers(run: Path) -> dict[str, dict[int, Path]]:
    """Return the tables of items of a run, by model and step."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(run.glob("evaluation/*/*/items.parquet")):
        if path.parent.name.isdecimal():
            found.setdefault(path.parent.parent.name, {})[int(path.parent.name)] = path
    return found


def _keys(one: Checkpoint) -> set[Key]:
    """Return the items that can be compared with another checkpoint's."""
    return set(chain(*one.likely.values(), *one.right.values(), *one.graded.values(), *one.statistics.values()))


def _line(row: dict[str, Any]) -> str:
    a, b = row["a"], row["b"]
    low, high = -row["high"], -row["low"]
    return (
        f"  {a['model']}, step {a['step']}: {row['suite']}/{row['task']} {row['metric']}: "
        f"{a['value']:.4f} → {b['value']:.4f}, difference {-row['difference']:+.4f} ({low:+.4f} to {high:+.4f}) on "
        f"{row['items']} items: the {'first' if row['better'] == 'a' else 'second'} run is better"
    )


def told(a: Path, b: Path) -> list[str]:
    """Return how many comparisons of the models of two runs show a real difference, a line for each of these.

    Raises:
        InputError: a table of items is none.
    """
    answers_a, answers_b = _answers(a), _answers(b)
    if not answers_a and not answers_b:
        return []
    rows: list[dict[str, Any]] = []
    beside: list[str] = []
    models = sorted(answers_a.keys() & answers_b.keys())
    for model in models:
        steps = answers_a[model].keys() & answers_b[model].keys()
        if not steps:
            beside.append(f"  {model}: not compared, for no checkpoint of it was evaluated in both runs")
            continue
        one, other = (read(answers[model][max(steps)]) for answers in (answers_a, answers_b))
        rows += compared_in_all(one, other)
        alone_a, alone_b = len(_keys(one) - _keys(other)), len(_keys(other) - _keys(one))
        if alone_a or alone_b:
            beside.append(
                f"  {model}, step {max(steps)}: {alone_a} items were answered by the first run alone, {alone_b} by the "
                "second alone; they are not compared"
            )
    if not models:
        return ["answers: not compared, for no model was evaluated in both runs"]
    judge(rows)
    real = [row for row in rows if row["better"]]
    return [
        f"answers: {len(real)} of {len(rows)} comparisons show a real difference (on items that both runs answered, "
        "two-sided, 5 % over all of them after Holm; 95 % intervals)",
        *map(_line, real),
        *beside,
    ]
