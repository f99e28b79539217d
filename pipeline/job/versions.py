"""What a step's result depends on besides its inputs and settings: its code and its environment.

The code version of a step hashes the syntax trees, without docstrings, of all statements of this package that its
function `run` reaches (`pipeline.job.reach`), and the data files that these name. The environment version hashes the
lock's entries of the distributions that they import, with their dependencies, without those that only draw or log.
Formatting, comments, docstrings, and what a step imports and does not use, change neither.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pipeline.ground.errors import InputError
from pipeline.job.reach import PACKAGE, Reach, Statement, file_of, module_of, names_in

LOCKS = PACKAGE.parent / "envs"
# Distributions that are not named as what one imports; to look for them in all that is installed takes a job seconds.
DISTRIBUTIONS = {"fasttext": "fasttext-numpy2-wheel", "stdnum": "python-stdnum", "yaml": "pyyaml"}


WATCHING = "WATCHING"
# Distributions that log, count progress and colour terminals: they are part of no result.
TELLING = {"annotated-doc", "click", "colorama", "humanize", "logbook", "loguru", "rich", "tqdm", "typer"}
TELLING |= {"absl-py", "markdown-it-py", "mdurl", "pygments", "shellingham", "wasabi", "win32-setctime"}
# Those that draw pages and pictures are part of the result of a step that imports them itself, and of no other.
DRAWING = {"grpcio", "jinja2", "markdown", "markupsafe", "pillow", "tensorboard-data-server", "werkzeug"}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def reach(module: str) -> Reach:
    """Return what a step can run from its function `run` on.

    A step may name modules in a constant WATCHING: what only watches, and changes nothing of the result.
    """
    apart: tuple[str, ...] = ()
    if (file := file_of(module)) is not None:
        for number in module_of(file).binding.get(WATCHING, []):
            apart = ast.literal_eval(module_of(file).statements[number].node.value)  # type: ignore[attr-defined]
    return Reach(module, "run", apart)


def _data_files(file: Path, statements: Iterable[Statement]) -> list[Path]:
    """Return the files at `file` that the statements name in a string constant."""
    named = {file.parent / name for statement in statements for name in statement.file_names}
    return sorted(path for path in named if path.suffix != ".py" and path.name in names_in(path.parent))


@cache
def code_version(module: str) -> str:
    """Return the version of the code that the step of `module` runs, 16 hexadecimal digits."""
    parts = []
    for file, statements in reach(module).statements():
        parts.append([file.relative_to(PACKAGE).as_posix(), *(statement.dumped for statement in statements)])
        for data in _data_files(file, statements):
            parts.append([data.name, hashlib.sha256(data.read_bytes()).hexdigest()])
    return _digest(json.dumps(parts))


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def _lock(name: str) -> dict[str, str]:
    """Return the distributions of a lock with their version; of lines for several Python versions, all of them."""
    path = LOCKS / f"{name}.lock"
    if not path.is_file():
        raise InputError(f"the environment {name!r} has no lock {path}: choose one of envs/*.lock in run.environment")
    entries: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*])?==(.+)", line)
        if match:
            entries.setdefault(_canonical(match[1]), []).append(match[2].strip())
    return {distribution: " | ".join(sorted(versions)) for distribution, versions in entries.items()}


@cache
def _metadata() -> dict[str, Path]:
    """Return the metadata of the installed distributions, by their names in one list of the folders of modules."""
    found: dict[str, Path] = {}
    for folder in map(Path, sys.path):
        for name in sorted(names_in(folder)):
            if name.endswith(".dist-info"):
                found.setdefault(_canonical(name.split("-")[0]), folder / name / "METADATA")
    return found


@cache
def _requirements(distribution: str) -> tuple[str, ...]:
    """Return what a distribution requires: the head of its metadata alone, of the few dozen that a step needs.

    Python's own module for it would read the long descriptions too, and ask for each name in each folder.
    """
    path = _metadata().get(distribution)
    if path is None:
        return ()
    with path.open(encoding="utf-8") as lines:
        head = itertools.takewhile(str.strip, lines)
        required = [line.split(":", 1)[1] for line in head if line.startswith("Requires-Dist:")]
    return tuple(
        _canonical(re.split(r"[^\w.-]", entry.strip(), maxsplit=1)[0]) for entry in required if "extra ==" not in entry
    )


def _imported(module: str) -> set[str]:
    return {DISTRIBUTIONS.get(name, _canonical(name)) for name in reach(module).foreign}


@cache
def environment_packages(module: str, lock: str) -> dict[str, str]:
    """Return the lock's entries, name to version, of all that a step imports, with its dependencies."""
    pinned = _lock(lock)
    waiting = sorted(_imported(module))
    found: set[str] = set()
    while waiting:
        distribution = waiting.pop()
        if distribution not in found and distribution in pinned:
            found.add(distribution)
            waiting += _requirements(distribution)
    return {distribution: pinned[distribution] for distribution in sorted(found)}


@cache
def environment_version(module: str, lock: str) -> str:
    """Return the version of the environment that `module` runs in: the lock's name and 16 hexadecimal digits."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    without = TELLING | (DRAWING - _imported(module))
    counted = {name: pinned for name, pinned in environment_packages(module, lock).items() if name not in without}
    return f"{lock}-{_digest(json.dumps([python, counted]))}"
