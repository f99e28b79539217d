"""Texts as a ruler: their bits per byte compare models whatever their tokenizers and corpora are.

Each text is read in pieces as long as the model's sequence length: the first after begin-of-text, each after the last
token of the one before, and the last after as many tokens as still fit. Begin-of-text itself is not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.evaluate.items import BITS
from pipeline.evaluate.settings import TextSettings
from pipeline.evaluate.task_files import read_rows

if TYPE_CHECKING:
    from lm_eval.api.task import Task

GENRE = "genre"


def text_files(text: TextSettings, given: Sequence[Path]) -> list[Path]:
    """Return those of the given files that have the name of a file of texts."""
    return sorted({file for file in given if file.name == text.path})


def text_task(name: str, text: TextSettings, given: Sequence[Path]) -> dict[str, Task]:
    """Return, by its name, the task that asks for the probability of each text of a file; genres are its parts.

    Raises:
        InputError: the file is not among those that are given, or a line has no text.
    """
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    files = text_files(text, given)
    if len(files) != 1:
        problem = f"may be any of {', '.join(map(str, files))}" if files else "is not among the inputs"
        raise InputError(f"evaluation.texts.{name}: its file {text.path} {problem}; give it once, under its own name")
    rows = read_rows(files[0])
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("text"), str) or not row["text"].strip():
            raise InputError(f"{files[0]}, line {number}: the field text holds no text; mend or delete the line")
    kept = Dataset.from_list([{key: str(row[key]) for key in ("text", GENRE) if key in row} for row in rows])
    metadata: dict[str, Any] = {"version": 1.0, "language": text.language}
    task = ConfigurableTask(
        config={
            "task": name,
            "custom_dataset": lambda **_: {"test": kept},
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": BITS, "aggregation": BITS, "higher_is_better": False}],
            "metadata": metadata | ({"parts": GENRE} if GENRE in rows[0] else {}),
        }
    )
    return {name: task}
