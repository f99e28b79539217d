"""What another model answered to the same items, read from its files: a baseline for the one that is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.evaluate.corpus_level import Statistics
from pipeline.evaluate.items import ANSWER_BITS, BITS, Answered, Item, Key, read_answers
from pipeline.evaluate.settings import ADOPTED, UNTRAINED
from pipeline.evaluate.verdict import SLOR, credit, scaled


class Answers(NamedTuple):
    """Of a model: what it answered, and by suite, task and metric its scores."""

    answered: Answered
    scores: dict[tuple[str, str, str], float]

    def credits(self, metric: str, items: Sequence[Item], keys: Sequence[Key]) -> NDArray[np.float64]:
        """Return what a metric says of each item, 1 and 0 of right and wrong, nats of texts; NaN of what was not asked.

        By SLOR, what the items say of frequency is taken off its log-probabilities, as off those of the judged model.
        """
        given = self.answered.log_probabilities
        if metric == SLOR:
            of_items = zip(items, keys, strict=True)
            values = {key: credit(item, scaled(item, SLOR, given[key])) for item, key in of_items if key in given}
        elif metric in (BITS, ANSWER_BITS):
            values = {key: nats for key, (nats, _) in self.answered.likely.get(metric, {}).items()}
        else:
            numbers = self.answered.right.get(metric, {}) | self.answered.graded.get(metric, {})
            values = {key: float(value) for key, value in numbers.items()}
        return np.array([values.get(key, math.nan) for key in keys], dtype=np.float64)

    def statistics(self, metric: str, keys: Sequence[Key]) -> list[Statistics | None]:
        """Return what each item adds to a corpus-level metric; None of what was not asked."""
        values = self.answered.statistics.get(metric, {})
        return [values.get(key) for key in keys]


def read_baselines(files: Sequence[Path]) -> dict[str, Answers]:
    """Return what baselines answered, of `…/NAME/items.parquet` and `…/NAME/results.json`, by their names.

    The untrained model, or the one that was adopted, is called so, as there is one for each model.

    Raises:
        InputError: a file is none of these.
    """
    found = {}
    for folder in sorted({file.parent for file in files}):
        kind = folder.name.partition("-")[0]
        name = kind if kind in (UNTRAINED, ADOPTED) else folder.name
        found[name] = Answers(read_answers(folder / "items.parquet"), _scores(folder / "results.json"))
    return found


def _scores(results: Path) -> dict[tuple[str, str, str], float]:
    try:
        rows = json.loads(results.read_text(encoding="utf-8"))["tasks"]
        return {(row["suite"], row["task"], row["metric"]): row["value"] for row in rows if row["value"] is not None}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{results} tells no scores ({error!r}): remove it, so that it is made again") from None
