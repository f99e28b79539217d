"""A task of lm-eval from a task file, its items, and a file of examples that stand before each question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.evaluate.task_files import data_file, fewshot_file, given_data_file, read_rows
from pipeline.evaluate.written import OWN, problem, score
from pipeline.ground.errors import InputError

if TYPE_CHECKING:
    from lm_eval.api.task import Task


def task_of_file(path: Path, configuration: dict[str, Any], given: Sequence[Path]) -> dict[str, Task]:
    """Return, by its name, the task of a file, with data from the files that are given.

    Raises:
        InputError: file and data do not fit, or examples are too few or among the items.
    """
    from datasets import Dataset
    from jinja2 import TemplateError
    from lm_eval.api.task import ConfigurableTask

    data = given_data_file(path, data_file(path, configuration), given)
    rows = {"test": read_rows(data)}
    if (examples := fewshot_file(path, configuration)) is not None:
        rows["fewshot"] = read_rows(given_data_file(path, examples, given))
        configuration = {**configuration, "fewshot_split": "fewshot"}
        if repeated := [number for number, row in enumerate(rows["fewshot"], 1) if row in rows["test"]]:
            raise InputError(f"task file {path}: {examples}, line {repeated[0]}, is one of the items; write another")
    # The rows are read here and not by the data-set library: a bad line is named, and nothing is cached on disk.
    try:
        splits = {name: Dataset.from_list(found) for name, found in rows.items()}
        local: dict[str, Any] = {"dataset_kwargs": None, "custom_dataset": lambda **_: splits}
        metrics = [one["metric"] for one in configuration.get("metric_list") or ()]
        if {*metrics} & {*OWN}:
            metadata = configuration.get("metadata") or {}
            local["process_results"] = lambda fields, results: score(results[0], fields, metrics, metadata)
            for number, row in enumerate(rows["test"], start=1):
                if lack := problem(row, metrics, metadata):
                    raise InputError(f"task file {path}, line {number} of {data.name}: {lack}")
        task = ConfigurableTask(config={"test_split": "test", **configuration, **local})
        _check_shots(path, task, examples)
        return {configuration["task"]: task}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, TemplateError) as error:
        raise InputError(
            f"task file {path} does not fit its data file {data.name} ({type(error).__name__}: {error}); "
            "compare the fields that its templates name with those of the data"
        ) from None


def _check_shots(path: Path, task: Task, examples: str | None) -> None:
    """Check that there are as many examples as are to stand before a question, and that these are no items.

    Raises:
        InputError: they are too few, or lm-eval would take them from the items.
    """
    shots = task.get_config("num_fewshot") or 0
    if not shots:
        return
    if examples is None and not task.get_config("fewshot_config").samples:
        raise InputError(
            f"task file {path}: num_fewshot: {shots} would take its examples from the items: name a file of them, "
            "`dataset_kwargs: {data_files: {test: …, fewshot: NAME.jsonl}}`"
        )
    if shots > len(task.sampler.df):
        raise InputError(
            f"task file {path}: num_fewshot: {shots}, and {examples or 'fewshot_config: samples'} has "
            f"{len(task.sampler.df)} examples; write more of them or ask for fewer"
        )
