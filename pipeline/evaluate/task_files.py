"""Task files (lm-eval's YAML) and the data that they read.

Light enough to be imported where the rules are planned: it needs no lm-eval.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.evaluate.settings import Suite

ITEM_FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def suite_files(suite: Suite) -> list[Path]:
    """Return the files that a suite reads, sorted: task files, the files that they include, and data files.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.folder is None:
        mirror = Path(suite.data or "")
        files = sorted(path for path in mirror.rglob("*") if path.is_file())
        if not any(path.name == "README.md" for path in files):
            raise InputError(
                f"suite {suite.name}: there is no NAMESPACE/DATASET/README.md in {mirror}; copy the data sets "
                "of its tasks there, in the layout of their hub"
            )
        return files
    found: set[Path] = set()
    for task in _task_files(suite, suite.folder):
        found |= {task, _local_data(suite, task, read_task(task)), *_included(task)}
    return sorted(found)


def _task_files(suite: Suite, folder: str) -> list[Path]:
    tasks = sorted(Path(folder).glob("*.yaml"))
    if not tasks:
        raise InputError(f"suite {suite.name}: there is no *.yaml in {folder}; write a task file or leave it out")
    return tasks


def _local_data(suite: Suite, task: Path, configuration: dict[str, Any]) -> Path:
    name = data_file(task, configuration)
    beside, in_folder = task.parent / name, Path(suite.data or suite.folder or "") / name
    data = beside if beside.is_file() else in_folder
    if not data.is_file():
        raise InputError(f"task file {task}: its data file {name} is neither beside it nor in {in_folder.parent}")
    return data


def suite_items(suite: Suite) -> list[tuple[str, Path]]:
    """Return (task, file) of all files that hold items of a suite, sorted.

    The tasks that lm-eval ships go by the name of their data set in the mirror, NAMESPACE/DATASET.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.folder is not None:
        read = [(task, read_task(task)) for task in _task_files(suite, suite.folder)]
        return sorted((content["task"], _local_data(suite, task, content)) for task, content in read)
    readmes = [path for path in suite_files(suite) if path.name == "README.md"]
    return sorted(
        (f"{readme.parent.parent.name}/{readme.parent.name}", path)
        for readme in readmes
        for path in readme.parent.rglob("*")
        if path.is_file() and path.name.removesuffix(".gz").endswith(ITEM_FORMATS)
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"task file {path} cannot be read: {problem}; write plain YAML with Jinja templates") from None
    if not isinstance(content, dict):
        raise InputError(f"task file {path} holds no keys; see config/tasks/README.md")
    return content


def _included(path: Path) -> list[Path]:
    """Return the files that a task file includes, nearest first."""
    chain = [path]
    while (name := _load(chain[-1]).get("include")) is not None:
        included = chain[-1].parent / str(name)
        if included in chain or not included.is_file():
            raise InputError(f"task file {chain[-1]}: include names {name}, which is missing or includes itself")
        chain.append(included)
    return chain[1:]


def read_task(path: Path) -> dict[str, Any]:
    """Return a task's configuration, with the keys of the files that it includes below its own.

    Raises:
        InputError: when the file is no YAML or has no `task`.
    """
    configuration: dict[str, Any] = {}
    for file in (path, *_included(path)):
        configuration = {**_load(file), **configuration}
    configuration.pop("include", None)
    if not isinstance(configuration.get("task"), str):
        raise InputError(f"task file {path}: the key task is missing; give the task a name")
    return configuration


def data_file(path: Path, configuration: dict[str, Any]) -> str:
    """Return the name of the task's data file.

    Raises:
        InputError: when the task does not read exactly one local file as its test set.
    """
    keywords = configuration.get("dataset_kwargs")
    files = keywords.get("data_files") if isinstance(keywords, dict) else None
    name = files.get("test") if isinstance(files, dict) else None
    if configuration.get("dataset_path") != "json" or not isinstance(name, str) or len(files or {}) != 1:
        raise InputError(
            f"task file {path}: write `dataset_path: json` and `dataset_kwargs: {{data_files: {{test: NAME.jsonl}}}}`"
        )
    return name


def given_data_file(path: Path, name: str, given: Sequence[Path]) -> Path:
    """Return the one of the given files that a task file means by `name`; the one beside it goes first.

    Raises:
        InputError: when there is none, or more than one.
    """
    beside = path.parent / name
    found = [beside] if beside in given else sorted({file for file in given if file.as_posix().endswith(f"/{name}")})
    if len(found) != 1:
        problem = "is not among the inputs" if not found else f"may be any of {', '.join(map(str, found))}"
        raise InputError(f"task file {path}: its data file {name} {problem}; give it once, with --input tasks")
    return found[0]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the examples of a data file, one JSON object a line, gzip-compressed where its name ends in .gz.

    Raises:
        InputError: when a line is no JSON object, or has other fields than the first.
    """
    rows: list[dict[str, Any]] = []
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise InputError(f"{path}, line {number}: not a JSON object; mend or delete the line")
                if rows and row.keys() != rows[0].keys():
                    different = ", ".join(sorted(row.keys() ^ rows[0].keys()))
                    raise InputError(
                        f"{path}, line {number}: the field {different} is not in every line; mend the line"
                    )
                rows.append(row)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; make it anew") from None
    if not rows:
        raise InputError(f"{path} is empty; write one JSON object a line")
    return rows
