"""Paths as people and command lines write them: with `{data}` in them, and one short name for many numbered files.

`a.0.parquet a.1.parquet a.2.parquet` is `a.{0..2}.parquet`: a job may read the files of ten thousand units, and a
command line that lists them one by one is longer than a system allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.core.errors import InputError

_NUMBERED = re.compile(r"(.*[./])(0|[1-9][0-9]*)((?:\.[a-z]+)?)")
_RANGE = re.compile(r"(.*)\{([0-9]+)\.\.([0-9]+)\}((?:\.[a-z]+)?)")


def shorten(paths: Iterable[str]) -> list[str]:
    """Return the paths in their order, each stretch that differs in a number alone, counting up by one, as one name."""
    stretches: list[tuple[str, int, int, str] | str] = []
    for path in map(str, paths):
        match = _NUMBERED.fullmatch(path)
        if match is None:
            stretches.append(path)
            continue
        head, number, tail = match[1], int(match[2]), match[3]
        last = stretches[-1] if stretches else ""
        if isinstance(last, tuple) and last[0] == head and last[2] + 1 == number and last[3] == tail:
            stretches[-1] = (head, last[1], number, tail)
        else:
            stretches.append((head, number, number, tail))
    return [
        stretch
        if isinstance(stretch, str)
        else f"{stretch[0]}{stretch[1]}{stretch[3]}"
        if stretch[1] == stretch[2]
        else f"{stretch[0]}{{{stretch[1]}..{stretch[2]}}}{stretch[3]}"
        for stretch in stretches
    ]


def expand(path: str) -> list[str]:
    """Return the paths that `shorten` made one name of; a name without a range is itself."""
    match = _RANGE.fullmatch(path)
    if match is None:
        return [path]
    return [f"{match[1]}{number}{match[4]}" for number in range(int(match[2]), int(match[3]) + 1)]


DATA = "{data}"


def with_data(what: str, path: str, data: str | None) -> str:
    """Return a path with the folder that `{data}` stands for in it; `what` names where the path was written.

    Raises:
        InputError: the path needs the folder, and none was given.
    """
    if DATA not in path:
        return path
    if data is None:
        raise InputError(
            f"{what}: its path {path} needs the folder: add --config data=FOLDER, or --data FOLDER to `python -m "
            "pipeline`"
        )
    return path.replace(DATA, data)
