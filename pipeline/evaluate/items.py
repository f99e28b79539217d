"""The items of a task as a model answered them: prompts by hash, log-probabilities of the choices, right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.ground.errors import InputError

if TYPE_CHECKING:
    from lm_eval.api.task import Task

METRICS = ("acc", "acc_norm")  # of choices: by the log-probability, and by that per character
SCHEMA = pa.schema(
    [
        ("suite", pa.string()),
        ("task", pa.string()),
        ("item", pa.int32()),
        ("prompt_sha256", pa.string()),
        ("log_probabilities", pa.list_(pa.float64())),
        ("answer", pa.int32()),
        ("right_answers", pa.list_(pa.int32())),
        *((metric, pa.bool_()) for metric in METRICS),
    ]
)


@dataclass(frozen=True)
class Item:
    """One question with choices: what was asked, and what the model said.

    `texts` are (context, continuation) per choice, and `right` which answers are; `correct` tells per metric whether
    the model's answer is one of them. Of a task with an aim no answer is right, and no metric tells.
    """

    number: int
    prompt_sha256: str
    choices: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    right: frozenset[int]
    log_probabilities: tuple[float, ...]
    correct: dict[str, bool]

    @property
    def answer(self) -> int:
        """The choice of the greatest log-probability; of equal ones the first."""
        return max(range(len(self.choices)), key=lambda number: (self.log_probabilities[number], -number))


def aim_of(task: Task) -> float | None:
    """Return the share of first choices that a task aims at; None of a task that is to be answered rightly.

    Raises:
        InputError: when it is no share.
    """
    aim = (task.config.metadata or {}).get("aim")
    if aim is not None and not (isinstance(aim, int | float) and 0 <= aim <= 1):
        raise InputError(f"task {task.config.task}: metadata: {{aim: {aim}}} is no share; write a number from 0 to 1")
    return aim


def _right(task: Task, doc: Any, choices: Sequence[str]) -> frozenset[int]:
    target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    targets = target if isinstance(target, list) else [target]
    numbers = (list(choices).index(one) if isinstance(one, str) and one in choices else one for one in targets)
    return frozenset(number for number in numbers if isinstance(number, int) and 0 <= number < len(choices))


def items_of(task: Task, samples: Sequence[dict[str, Any]]) -> list[Item]:
    """Return the items of a task with choices, of what lm-eval logged; none of a task without."""
    if task.OUTPUT_TYPE != "multiple_choice" or callable(task.config.process_results):
        return []
    found = []
    has_right_answers = aim_of(task) is None
    for sample in samples:
        choices = tuple(map(str, task.doc_to_choice(sample["doc"])))
        found.append(
            Item(
                sample["doc_id"],
                sample["prompt_hash"],
                choices,
                tuple((str(context), str(text)) for context, text in sample["arguments"][: len(choices)]),
                _right(task, sample["doc"], choices) if has_right_answers else frozenset(),
                tuple(float(answer[0]) for answer in sample["filtered_resps"][: len(choices)]),
                {metric: bool(sample[metric]) for metric in METRICS if metric in sample and has_right_answers},
            )
        )
    return found


def write_items(path: Path, answered: Iterable[tuple[str, str, list[Item]]]) -> None:
    """Write the items of (suite, task, items) as a Parquet file."""
    rows = [
        {
            "suite": suite,
            "task": task,
            "item": item.number,
            "prompt_sha256": item.prompt_sha256,
            "log_probabilities": list(item.log_probabilities),
            "answer": item.answer,
            "right_answers": sorted(item.right),
            **{metric: item.correct.get(metric) for metric in METRICS},
        }
        for suite, task, items in answered
        for item in items
    ]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
