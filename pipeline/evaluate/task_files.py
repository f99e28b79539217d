"""Task files (lm-eval's YAML) and the data that they read.

Light enough to be imported where the rules are planned: it needs no lm-eval.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import parse_json, parse_yaml


@cache
def _parsed(text: str, path: Path) -> Any:
    return parse_yaml(text, path)


def _load(path: Path) -> dict[str, Any]:
    """Return the keys of a task file, which a start asks for dozens of times."""
    try:
        content = deepcopy(_parsed(path.read_text(encoding="utf-8"), path))
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"task file {path} cannot be read: {problem}; write plain YAML with Jinja templates") from None
    if not isinstance(content, dict):
        raise InputError(f"task file {path} holds no keys; see config/tasks/README.md")
    return content


def included(path: Path) -> list[Path]:
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
    for file in (path, *included(path)):
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
    others = {*(files or {})} - {"test", "fewshot"}
    if configuration.get("dataset_path") != "json" or not isinstance(name, str) or others:
        raise InputError(
            f"task file {path}: write `dataset_path: json` and `dataset_kwargs: {{data_files: {{test: NAME.jsonl}}}}`"
            ", and `fewshot: NAME.jsonl` beside `test` for examples"
        )
    return name


def fewshot_file(path: Path, configuration: dict[str, Any]) -> str | None:
    """Return the name of the file of the examples that stand before a question; None of a task without one.

    Raises:
        InputError: when what is named is no file.
    """
    name = configuration["dataset_kwargs"]["data_files"].get("fewshot")
    if name is not None and not isinstance(name, str):
        raise InputError(f"task file {path}: write the name of one file, as `fewshot: NAME.jsonl`")
    return name


def searched_fields(path: Path, configuration: dict[str, Any]) -> tuple[tuple[str, ...] | None, bool]:
    """Return which fields of an item tell that a document holds it, and whether the task names them.

    Those are the fields of `metadata.searched`, else those that the prompt, the choices or the target are made of.
    Where these name no field it is None: all fields count.

    Raises:
        InputError: `metadata.searched` is no list of names, or a template is no Jinja.
    """
    named = (configuration.get("metadata") or {}).get("searched")
    if named is not None:
        if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
            raise InputError(f"task file {path}: metadata.searched is no list of fields: write `searched: [question]`")
        return tuple(sorted(set(named))), True
    found: set[str] = set()
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        value = configuration.get(key)
        for template in value if isinstance(value, list) else [value]:
            if not isinstance(template, str):
                continue
            try:
                found |= meta.find_undeclared_variables(Environment(autoescape=True).parse(template))
            except TemplateSyntaxError as error:
                raise InputError(f"task file {path}: {key} is no Jinja template: {error}; mend it") from None
        if isinstance(value, str) and re.fullmatch(r"\w+", value):  # lm-eval takes a plain word for a field
            found.add(value)
    return tuple(sorted(found)) or None, False


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
                    row = parse_json(line, f"{path}, line {number}")
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
