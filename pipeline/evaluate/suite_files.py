"""Which files a suite reads: known where the rules are planned, without lm-eval."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.task_files import data_file, fewshot_file, included, read_task, searched_fields

ITEM_FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
NO_ITEMS = "dataset_infos.json"  # what a data set's library knows of it


def suite_files(suite: Suite) -> list[Path]:
    """Return the files that a suite reads, sorted: task files, the files that they include, and data files.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.texts:
        return sorted(path for _, path in _texts(suite))
    if suite.folder is None:
        mirror = Path(suite.data or "")
        files = sorted(path for path in mirror.rglob("*") if path.is_file())
        if not any(path.name == "README.md" for path in files):
            raise InputError(
                f"suite {suite.name}: there is no NAMESPACE/DATASET/README.md in {mirror}; copy the data sets "
                "of its tasks there with `python -m pipeline mirror`"
            )
        return files
    found: set[Path] = set()
    for task in _task_files(suite, suite.folder):
        found |= {task, *_local_data(suite, task, read_task(task)), *included(task)}
    return sorted(found)


def _texts(suite: Suite) -> list[tuple[str, Path]]:
    found = [(name, Path(text.path)) for name, text in sorted(suite.texts.items())]
    for name, path in found:
        if not path.is_file():
            raise InputError(f"evaluation.texts.{name}: there is no file {path}; write {{text: …}} a line")
    return found


def _task_files(suite: Suite, folder: str) -> list[Path]:
    tasks = sorted(Path(folder).glob("*.yaml"))
    if not tasks:
        raise InputError(f"suite {suite.name}: there is no *.yaml in {folder}; write a task file or leave it out")
    return tasks


def _local_data(suite: Suite, task: Path, configuration: dict[str, Any]) -> list[Path]:
    """Return the file of a task's items, and that of its examples where it has one."""
    found = []
    for name in (data_file(task, configuration), fewshot_file(task, configuration)):
        if name is None:
            continue
        beside, in_folder = task.parent / name, Path(suite.data or suite.folder or "") / name
        data = beside if beside.is_file() else in_folder
        if not data.is_file():
            raise InputError(f"task file {task}: its data file {name} is neither beside it nor in {in_folder.parent}")
        found.append(data)
    return found


@dataclass(frozen=True)
class ItemFile:
    """A file of items of a task; which of their fields tell an item, None: all; whether somebody named these."""

    task: str
    path: Path
    fields: tuple[str, ...] | None = None
    named: bool = False


def suite_items(suite: Suite) -> list[ItemFile]:
    """Return all files that hold items of a suite, by task and path.

    The examples that stand before a task's questions are those of `TASK: examples`, so that items keep their numbers.
    The tasks that lm-eval ships go by the name of their data set in the mirror, NAMESPACE/DATASET.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.texts:
        return [ItemFile(name, path) for name, path in _texts(suite)]
    if suite.folder is not None:
        read = [(task, read_task(task)) for task in _task_files(suite, suite.folder)]
        names = ("{}", "{}: examples")
        found = [
            ItemFile(name.format(content["task"]), data, *searched_fields(task, content))
            for task, content in read
            for name, data in zip(names, _local_data(suite, task, content), strict=False)
        ]
    else:
        readmes = [path for path in suite_files(suite) if path.name == "README.md"]
        found = [
            ItemFile(f"{readme.parent.parent.name}/{readme.parent.name}", path)
            for readme in readmes
            for path in readme.parent.rglob("*")
            if path.is_file() and path.name.removesuffix(".gz").endswith(ITEM_FORMATS) and path.name != NO_ITEMS
        ]
    return sorted(found, key=lambda file: (file.task, file.path))
