"""Load the tasks of `evaluation.texts`: bits per byte, which compare models with any tokenizers and corpora.

Each text is read in windows of the model's sequence length: the first after begin-of-text, each other one after the
last token before it, and the last one after as many tokens as fit. Begin-of-text itself is not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.evaluate.item_results import BITS
from pipeline.evaluate.settings import TextSettings
from pipeline.evaluate.task_file_reader import read_data_rows

if TYPE_CHECKING:
    from lm_eval.api.task import Task

GENRE = "genre"


def find_text_files(text: TextSettings, given: Sequence[Path]) -> list[Path]:
    return sorted({file for file in given if file.name == text.path})


def make_text_task(name: str, text: TextSettings, given: Sequence[Path]) -> dict[str, Task]:
    """Make the task that measures the probability of each text of a file, with genres as parts; return it by name.

    Raises:
        InputError: the file is not among the given ones, or a line has no text.
    """
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    files = find_text_files(text, given)
    if len(files) != 1:
        problem = f"may be any of {', '.join(map(str, files))}" if files else "is not among the inputs"
        raise InputError(f"evaluation.texts.{name}: its file {text.path} {problem}; give it once, under its own name")
    rows = read_data_rows(files[0])
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
