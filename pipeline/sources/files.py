"""Finds the raw files of a source."""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.formatting import name_problem


def divide_pattern(pattern: str) -> tuple[Path, str]:
    """Return the last folder of a glob's path that holds no wildcard, and what follows it."""
    parts = Path(pattern).parts
    literal = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:literal]), "/".join(parts[literal:])


def list_files(pattern: str) -> dict[str, Path]:
    """Return the files that a glob matches, by name, sorted by name.

    A name is the path relative to the last folder of the pattern that holds no wildcard, with forward slashes, so that
    it is the same on every machine.

    Raises:
        InputError: nothing matches, a match is a dangling link, its name would have a meaning in a rule or is no UTF-8.
    """
    base, _ = divide_pattern(pattern)
    files = {}
    for match in glob.glob(pattern, recursive=True):
        path = Path(match)
        if path.is_dir():
            continue
        if not path.exists():
            raise InputError(f"{path} is a link to a file that is missing: restore the file or remove the link")
        if any(sign in match for sign in "{}\n"):
            raise InputError(f"{match!r}: a raw file's name may hold no brace and no line break: rename the file")
        if problem := name_problem(match):
            raise InputError(problem)
        files[path.relative_to(base).as_posix()] = path
    if not files:
        raise InputError(f"no file matches {pattern}: correct the path of the source, or fetch its files")
    return dict(sorted(files.items()))


def assign_unit(name: str, units: int) -> int:
    """Return the unit of a file, which depends on its name alone, so that a new file moves no other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % units
