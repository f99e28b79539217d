"""What the records of a run tell of the files that its steps wrote."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple


class Recorded(NamedTuple):
    """What a record tells of a file that its step wrote: its hash, its size in bytes, and until when it had them."""

    sha256: str
    size: int
    seconds: float


def as_written(run_directory: str | Path, outputs: list[dict[str, Any]]) -> bool:
    """Return whether the outputs that a record lists are there with their sizes."""
    try:
        return all(os.stat(f"{run_directory}/{entry['path']}").st_size == entry["bytes"] for entry in outputs)
    except FileNotFoundError:
        return False


def recorded(folder: Path, paths: Iterable[str]) -> dict[str, Recorded]:
    """Return what the records in a folder tell of files that its steps wrote, by path.

    A run of ten thousand units has fifty thousand records, so those of other files are not opened: what a step
    wrote has the wildcards of its record's name in its path, in their order, between slashes and dots. Where
    several records fit, that of the step which wrote the file before is read first: mostly all are of one step.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.endswith(".json") and not name.startswith("."):
            names.setdefault(tuple(name.split(".")[2:-1]), []).append(name)
    wildcards, longest = {word for words in names for word in words}, max(map(len, names), default=0)
    found: dict[str, Recorded] = {}
    unread, last_step = {name for fitting in names.values() for name in fitting}, ""
    for path in paths:
        words = [word for word in re.split("[/.]", path) if word in wildcards]
        subsets = {subset for length in range(longest + 1) for subset in combinations(words, length)}
        fitting = [name for subset in subsets & names.keys() for name in names[subset] if name in unread]
        for name in sorted(fitting, key=lambda name: (not name.startswith(last_step), name)):
            if path in found:
                break
            unread.remove(name)
            try:
                record = json.loads((folder / name).read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # its step begins anew beside this one, and wrote nothing that is asked for
            seconds = datetime.fromisoformat(record["ended"]).timestamp()
            for entry in record["outputs"]:
                found[entry["path"]] = Recorded(entry["sha256"], entry["bytes"], seconds)
            if path in found:
                last_step = f"{record['step']}."
    return found
