"""What a stage's result depends on besides its inputs and settings: its code and its environment.

The code version of a step hashes the syntax trees, without docstrings, of the modules of this package that the step
imports, transitively, and the data files that lie beside those modules and that they name in a string constant.
The environment version hashes the lock's entries of the distributions that those modules import, with their
dependencies. Formatting, comments, docstrings and modules that a step does not import change neither.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.ground.errors import InputError

PACKAGE = Path(__file__).parents[1]
LOCKS = PACKAGE.parent / "envs"
# Distributions that are not named as what one imports; to look for them in all that is installed takes a job seconds.
DISTRIBUTIONS = {"fasttext": "fasttext-numpy2-wheel", "stdnum": "python-stdnum", "yaml": "pyyaml"}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _names(folder: Path) -> frozenset[str]:
    """Return what lies in a folder, listed once: a step asks whether a few hundred names are modules."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:  # none, such as an archive among the folders of modules
        return frozenset()


def _file_of(module: str) -> Path | None:
    path = PACKAGE.parent / module.replace(".", "/")
    if f"{path.name}.py" in _names(path.parent):
        return path.with_suffix(".py")
    if path.name in _names(path.parent) and "__init__.py" in _names(path):
        return path / "__init__.py"
    return None


class _Module(NamedTuple):
    """What a file of this package is without its docstrings, what it imports, and which file names it holds."""

    dumped: str
    own: frozenset[str]
    foreign: frozenset[str]
    file_names: frozenset[str]


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return first.value
    return None


@cache
def _read(file: Path) -> _Module:
    """Read a module in one walk through its syntax tree: every job does so with all that its step imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    own: set[str] = set()
    foreign: set[str] = set()
    file_names: set[str] = set()
    docstrings: set[ast.AST] = set()
    for node in ast.walk(tree):
        if (docstring := _docstring(node)) is not None:
            docstrings.add(docstring)
            node.body = node.body[1:]  # type: ignore[attr-defined]  # it has one
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            if node.value.startswith("pipeline."):
                names = [node.value]  # a module that is started as a program of its own, `python -m NAME`
            if re.fullmatch(r"[\w.-]+\.\w+", node.value):
                file_names.add(node.value)
        for name in names:
            if name.split(".")[0] == PACKAGE.name:
                own.add(name)
            elif name.split(".")[0] not in sys.stdlib_module_names:
                foreign.add(name.split(".")[0])
    return _Module(ast.dump(tree), frozenset(own), frozenset(foreign), frozenset(file_names))


@cache
def module_files(module: str) -> tuple[Path, ...]:
    """Return the files of this package that importing `module` reads, itself and its packages included, sorted."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            file = _file_of(".".join(parts[:length]))
            if file is not None and file not in found:
                found.add(file)
                waiting += _read(file).own
    return tuple(sorted(found))


def _data_files(file: Path) -> list[Path]:
    """Return the files beside `file` that it names in a string constant."""
    names = _read(file).file_names & _names(file.parent)
    return sorted(path for name in names if (path := file.parent / name).suffix != ".py" and path.is_file())


@cache
def code_version(module: str) -> str:
    """Return the version of the code that `module` runs, 16 hexadecimal digits."""
    parts = []
    for file in module_files(module):
        parts.append([file.relative_to(PACKAGE).as_posix(), _read(file).dumped])
        parts += [[data.name, hashlib.sha256(data.read_bytes()).hexdigest()] for data in _data_files(file)]
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
        for name in sorted(_names(folder)):
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


@cache
def environment_packages(module: str, lock: str) -> dict[str, str]:
    """Return the lock's entries, name to version, of everything that `module` imports, with its dependencies."""
    pinned = _lock(lock)
    top_level = {name for file in module_files(module) for name in _read(file).foreign}
    waiting = [DISTRIBUTIONS.get(name, _canonical(name)) for name in sorted(top_level)]
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
    return f"{lock}-{_digest(json.dumps([python, environment_packages(module, lock)]))}"
