"""Read task files (lm-eval's YAML) and their data, and list the files of a suite.

It does not import lm-eval, so that planning the rules stays fast.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import parse_unique_json, parse_yaml
from pipeline.evaluate.settings import KNOWN_SUITES, Suite, SuiteSettings


@cache
def _parse_cached(text: str, path: Path) -> Any:
    return parse_yaml(text, path)


def _load_task_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a task file; parsing is cached, as an invocation needs them dozens of times."""
    try:
        content = deepcopy(_parse_cached(path.read_text(encoding="utf-8"), path))
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"task file {path} cannot be read: {problem}; write plain YAML with Jinja templates") from None
    if not isinstance(content, dict):
        raise InputError(f"task file {path} holds no keys; see docs/reference/tasks.md")
    return content


def find_includes(path: Path) -> list[Path]:
    """Return the files that a task file includes, nearest first."""
    chain = [path]
    while (name := _load_task_yaml(chain[-1]).get("include")) is not None:
        included = chain[-1].parent / str(name)
        if included in chain or not included.is_file():
            raise InputError(f"task file {chain[-1]}: include names {name}, which is missing or includes itself")
        chain.append(included)
    return chain[1:]


def read_task_config(path: Path) -> dict[str, Any]:
    """Return a task's configuration, with defaults from the files that it includes.

    Raises:
        InputError: when the file is no YAML or has no `task`.
    """
    configuration: dict[str, Any] = {}
    for file in (path, *find_includes(path)):
        configuration = {**_load_task_yaml(file), **configuration}
    configuration.pop("include", None)
    if not isinstance(configuration.get("task"), str):
        raise InputError(f"task file {path}: the key task is missing; give the task a name")
    return configuration


def read_data_set_name(configuration: dict[str, Any]) -> str | None:
    """Return NAMESPACE/DATASET of a task whose data are in a mirror; None for one with its own file."""
    name = configuration.get("dataset_path")
    return name if isinstance(name, str) and name.count("/") == 1 else None


def read_data_file_name(path: Path, configuration: dict[str, Any]) -> str:
    """Return the name of the task's data file.

    Raises:
        InputError: when the task does not read exactly one local file as its test set.
    """
    keywords = configuration.get("dataset_kwargs")
    files = keywords.get("data_files") if isinstance(keywords, dict) else None
    name = files.get("test") if isinstance(files, dict) else None
    others = {*(files or {})} - {"test", "fewshot"}
    if configuration.get("dataset_path") != "json" or not isinstance(name, str) or others:
        raise InputError(
            f"task file {path}: write `dataset_path: json` and `dataset_kwargs: {{data_files: {{test: NAME.jsonl}}}}`"
            ", and also `fewshot: NAME.jsonl` for examples"
        )
    return name


def read_fewshot_file_name(path: Path, configuration: dict[str, Any]) -> str | None:
    """Return the name of the file of few-shot examples; None for a task without one.

    Raises:
        InputError: the name is no text.
    """
    name = configuration["dataset_kwargs"]["data_files"].get("fewshot")
    if name is not None and not isinstance(name, str):
        raise InputError(f"task file {path}: write the name of one file, as `fewshot: NAME.jsonl`")
    return name


def find_searched_fields(path: Path, configuration: dict[str, Any]) -> tuple[tuple[str, ...] | None, bool]:
    """Return the fields by which an item is searched in documents, and whether the task names them.

    These are the fields of `metadata.searched`, else those of the templates of prompt, choices and target. None, if
    these have no field, means all fields.

    Raises:
        InputError: `metadata.searched` is no list of names, or a template is no Jinja.
    """
    named = (configuration.get("metadata") or {}).get("searched")
    if named is not None:
        if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
            raise InputError(f"task file {path}: metadata.searched is no list of fields: write `searched: [question]`")
        return tuple(sorted(set(named))), True
    fields: set[str] = set()
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        value = configuration.get(key)
        for template in value if isinstance(value, list) else [value]:
            if not isinstance(template, str):
                continue
            try:
                fields |= meta.find_undeclared_variables(Environment(autoescape=True).parse(template))
            except TemplateSyntaxError as error:
                raise InputError(f"task file {path}: {key} is no Jinja template: {error}; correct it") from None
        if isinstance(value, str) and re.fullmatch(r"\w+", value):  # lm-eval takes a plain word for a field
            fields.add(value)
    return tuple(sorted(fields)) or None, False


def find_data_file(path: Path, name: str, given: Sequence[Path]) -> Path:
    """Find the data file `name` of a task file among the given files, first in the task's own folder.

    Raises:
        InputError: when there is none, or more than one.
    """
    own = path.parent / name
    matches = [own] if own in given else sorted({file for file in given if file.as_posix().endswith(f"/{name}")})
    if len(matches) != 1:
        problem = "is not among the inputs" if not matches else f"may be any of {', '.join(map(str, matches))}"
        raise InputError(f"task file {path}: its data file {name} {problem}; give it once, with --input tasks")
    return matches[0]


def read_data_rows(path: Path) -> list[dict[str, Any]]:
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
                    row = parse_unique_json(line, f"{path}, line {number}")
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise InputError(f"{path}, line {number}: not a JSON object; correct or delete the line")
                if rows and row.keys() != rows[0].keys():
                    different = ", ".join(sorted(row.keys() ^ rows[0].keys()))
                    raise InputError(
                        f"{path}, line {number}: the field {different} is not in every line; correct the line"
                    )
                rows.append(row)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; create it again") from None
    if not rows:
        raise InputError(f"{path} is empty; write one JSON object a line")
    return rows


CARD = "README.md"
MIRROR_LIST = "mirror.json"
ITEM_FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
METADATA_FILE = "dataset_infos.json"  # what a data set's library knows of it


def list_suite_files(suite: Suite) -> list[Path]:
    """Return the files that a suite reads, sorted: task files, the files that they include, and data files.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.texts:
        return sorted(path for _, path in _list_text_files(suite))
    if suite.folder is None:
        mirror = Path(suite.data or "")
        files = sorted(path for path in mirror.rglob("*") if path.is_file())
        if not any(path.name == CARD for path in files):
            raise InputError(
                f"suite {suite.name}: there is no NAMESPACE/DATASET/README.md in {mirror}; copy the data sets "
                "of its tasks there with `polder mirror`"
            )
        return files
    paths: set[Path] = set()
    for task in list_suite_task_files(suite, suite.folder):
        paths |= {task, *_find_local_data(suite, task, read_task_config(task)), *find_includes(task)}
    return sorted(paths)


def _list_text_files(suite: Suite) -> list[tuple[str, Path]]:
    text_files = [(name, Path(text.path)) for name, text in sorted(suite.texts.items())]
    for name, path in text_files:
        if not path.is_file():
            raise InputError(f"evaluation.texts.{name}: there is no file {path}; write {{text: …}} a line")
    return text_files


def format_mirror_command_arguments(suite: Suite | SuiteSettings) -> str:
    """Return the words of `polder mirror` that name the data sets of a suite of task files."""
    known = next((name for name, one in KNOWN_SUITES.items() if one.folder == suite.folder), None)
    return known or "--configuration CONFIG"


def list_suite_task_files(suite: Suite, folder: str) -> list[Path]:
    """Return the task files of a suite's folder.

    Raises:
        InputError: there is none.
    """
    tasks = sorted(Path(folder).glob("*.yaml"))
    if not tasks:
        raise InputError(
            f"suite {suite.name}: there is no *.yaml in {Path(folder).absolute()}; run this in your checkout of "
            "Polder, write a task file, or leave the suite out"
        )
    return tasks


def _find_local_data(suite: Suite, task: Path, configuration: dict[str, Any]) -> list[Path]:
    """Return the files of a task's items and of its few-shot examples, if it has any; of mirrored data all files."""
    if data_set := read_data_set_name(configuration):
        mirror = Path(suite.data or "")
        if suite.data is None or not (mirror / data_set / CARD).is_file():
            raise InputError(
                f"suite {suite.name}: {task} reads {data_set}, and there is no {mirror / data_set / CARD}; "
                f"copy it with `polder mirror {suite.data or 'FOLDER'} {format_mirror_command_arguments(suite)}`"
            )
        listed = [path for path in [mirror / MIRROR_LIST] if path.is_file()]
        return listed + sorted(path for path in (mirror / data_set).rglob("*") if path.is_file())
    files = []
    for name in (read_data_file_name(task, configuration), read_fewshot_file_name(task, configuration)):
        if name is None:
            continue
        own, in_folder = task.parent / name, Path(suite.data or suite.folder or "") / name
        data = own if own.is_file() else in_folder
        if not data.is_file():
            raise InputError(
                f"task file {task}: its data file {name} is in neither {task.parent} nor {in_folder.parent}"
            )
        files.append(data)
    return files


@dataclass(frozen=True)
class ItemFile:
    """A file of items of a task, with the fields to search for (None: all), and whether the task names them."""

    task: str
    path: Path
    fields: tuple[str, ...] | None = None
    named: bool = False


def list_item_files(suite: Suite) -> list[ItemFile]:
    """Return all files that hold items of a suite, by task and path.

    Few-shot examples belong to the task `TASK: examples`, so that items keep their numbers. Tasks that lm-eval ships
    have the name of their data set in the mirror, NAMESPACE/DATASET.

    Raises:
        InputError: when the folder, a task or a data file is missing or wrong.
    """
    if suite.texts:
        return [ItemFile(name, path) for name, path in _list_text_files(suite)]
    if suite.folder is not None:
        read = [(task, read_task_config(task)) for task in list_suite_task_files(suite, suite.folder)]
        names = ("{}", "{}: examples")
        item_files = [
            ItemFile(name.format(content["task"]), data, *find_searched_fields(task, content))
            for task, content in read
            if read_data_set_name(content) is None
            for name, data in zip(names, _find_local_data(suite, task, content), strict=False)
        ]
    else:
        item_files = []
    item_files += [
        ItemFile(f"{card.parent.parent.name}/{card.parent.name}", path)
        for card in list_suite_files(suite)
        if card.name == CARD
        for path in card.parent.rglob("*")
        if path.is_file() and path.name.removesuffix(".gz").endswith(ITEM_FORMATS) and path.name != METADATA_FILE
    ]
    return sorted(item_files, key=lambda file: (file.task, file.path))
