"""What a stage's result depends on besides its inputs and settings: its code and its environment.

The code version of a step hashes the syntax trees, without docstrings, of the modules of this package that the step
imports, transitively, and the data files that lie beside those modules and that they name in a string constant.
The environment version hashes the lock's entries of the distributions that those modules import, with their
dependencies. Formatting, comments, docstrings and modules that a step does not import change neither.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline.errors import InputError

PACKAGE = Path(__file__).parent
LOCKS = PACKAGE.parent / "envs"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file_of(module: str) -> Path | None:
    path = PACKAGE.parent / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


@cache
def _parsed(file: Path) -> ast.Module:
    return _without_docstrings(ast.parse(file.read_text(encoding="utf-8")))


@cache
def _dumped(file: Path) -> str:
    return ast.dump(_parsed(file))


@cache
def _imports(file: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules of this package and the third-party top-level names that `file` imports."""
    own: set[str] = set()
    foreign: set[str] = set()
    for node in ast.walk(_parsed(file)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("pipeline."):
            names = [node.value]  # a module that is started as a program of its own, `python -m NAME`
        for name in names:
            if name.split(".")[0] == PACKAGE.name:
                own.add(name)
            elif name.split(".")[0] not in sys.stdlib_module_names:
                foreign.add(name.split(".")[0])
    return frozenset(own), frozenset(foreign)


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
                waiting += _imports(file)[0]
    return tuple(sorted(found))


@cache
def _data_files(file: Path) -> list[Path]:
    """Return the files beside `file` that it names in a string constant."""
    names = {
        node.value
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.-]+\.\w+", node.value)
    }
    return sorted(path for name in names if (path := file.parent / name).is_file() and path.suffix != ".py")


@cache
def code_version(module: str) -> str:
    """Return the version of the code that `module` runs, 16 hexadecimal digits."""
    parts = []
    for file in module_files(module):
        parts.append([file.relative_to(PACKAGE).as_posix(), _dumped(file)])
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
def _distributions() -> dict[str, list[str]]:
    """Return the installed distributions by the top-level names that they provide."""
    return {name: [_canonical(d) for d in found] for name, found in metadata.packages_distributions().items()}


@cache
def _requirements(distribution: str) -> tuple[str, ...]:
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(
        _canonical(re.split(r"[^\w.-]", entry, maxsplit=1)[0]) for entry in required if "extra ==" not in entry
    )


@cache
def environment_packages(module: str, lock: str) -> dict[str, str]:
    """Return the lock's entries, name to version, of everything that `module` imports, with its dependencies."""
    pinned = _lock(lock)
    top_level = {name for file in module_files(module) for name in _imports(file)[1]}
    waiting = [distribution for name in sorted(top_level) for distribution in _distributions().get(name, [])]
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
