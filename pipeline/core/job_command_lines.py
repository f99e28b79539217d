"""Command lines of jobs: options, digests of their settings, numbered paths in short form, and the data folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError

DIGEST_PREFIX = "sha256:"


def settings_json(settings: Any) -> str:
    """Return the JSON of settings as in a command line."""
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def settings_digest(settings: str) -> str:
    """Return the digest of settings, `sha256:` and the hash of their JSON; a digest stays as it is."""
    return (
        settings
        if settings.startswith(DIGEST_PREFIX)
        else f"{DIGEST_PREFIX}{hashlib.sha256(settings.encode()).hexdigest()}"
    )


def command_settings_digest(command: list[str]) -> str:
    """Return the digest of the settings of a command line, full or shortened."""
    return settings_digest(command_option(command, "--settings") or "")


def replace_settings_by_digest(command: list[str]) -> list[str]:
    """Return a command line with its settings replaced by their digest."""
    before = ["", *command]
    return [settings_digest(word) if before[number] == "--settings" else word for number, word in enumerate(command)]


def command_options(command: list[str]) -> list[tuple[str, list[str]]]:
    """Return the options of a command line with their values; `--name=value` is one of one value."""
    options: list[tuple[str, list[str]]] = []
    for word in command:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options.append((name, [value] if equals else []))
        elif options:
            options[-1][1].append(word)
    return options


def command_option(command: list[str], name: str) -> str | None:
    """Return the first value of an option of a command line; None where it has none."""
    return next((values[0] for option, values in command_options(command) if option == name and values), None)


_NUMBERED = re.compile(r"(.*[./])(0|[1-9][0-9]*)((?:\.[a-z]+)?)")
_RANGE = re.compile(r"(.*)\{([0-9]+)\.\.([0-9]+)\}((?:\.[a-z]+)?)")


def compress_numbered_paths(paths: Iterable[str]) -> list[str]:
    """Return paths in order, with runs of consecutive numbers as one name: `a.{0..2}.parquet`."""
    stretches: list[tuple[str, int, int, str] | str] = []
    for path in map(str, paths):
        match = _NUMBERED.fullmatch(path)
        if match is None:
            stretches.append(path)
            continue
        start, number, end = match[1], int(match[2]), match[3]
        last = stretches[-1] if stretches else ""
        if isinstance(last, tuple) and last[0] == start and last[2] + 1 == number and last[3] == end:
            stretches[-1] = (start, last[1], number, end)
        else:
            stretches.append((start, number, number, end))
    return [
        stretch
        if isinstance(stretch, str)
        else f"{stretch[0]}{stretch[1]}{stretch[3]}"
        if stretch[1] == stretch[2]
        else f"{stretch[0]}{{{stretch[1]}..{stretch[2]}}}{stretch[3]}"
        for stretch in stretches
    ]


def expand_numbered_path(path: str) -> list[str]:
    """Return the paths of a compressed name; a name without a range stays."""
    match = _RANGE.fullmatch(path)
    if match is None:
        return [path]
    return [f"{match[1]}{number}{match[4]}" for number in range(int(match[2]), int(match[3]) + 1)]


def format_search_folder(path: str | Path) -> str:
    """Return the folder that a relative path is looked for in, for a sentence on a file that is missing."""
    return "" if Path(path).is_absolute() else f" in {Path.cwd()}"


DATA_PLACEHOLDER = "{data}"


def substitute_data_folder(what: str, path: str, data: str | None) -> str:
    """Return a path with `{data}` replaced by a folder; `what` names where the path was written.

    Raises:
        InputError: the path needs the folder, and none was given.
    """
    if DATA_PLACEHOLDER not in path:
        return path
    if data is None:
        raise InputError(
            f"{what}: its path {path} needs the folder: add --config data=FOLDER, or --data FOLDER to a "
            "command of polder"
        )
    return path.replace(DATA_PLACEHOLDER, data)
