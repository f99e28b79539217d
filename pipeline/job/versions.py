"""What a step's result depends on besides its inputs and settings: its code and its environment.

The code version of a step hashes the syntax trees, without docstrings, of all statements of this package that its
function `run` reaches (`pipeline.job.reach`), and the data files that these name. The environment version hashes the
installed versions of the distributions that they import, with their dependencies, without those that only draw or log.
Formatting, comments, docstrings, and what a step imports and does not use, change neither.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from pipeline.job import installed, reach

# Distributions that are not named as what one imports; to look for them in all that is installed takes a job seconds.
DISTRIBUTIONS = {"fasttext": "fasttext-numpy2-wheel", "stdnum": "python-stdnum", "yaml": "pyyaml"}


# Distributions that log, count progress and colour terminals: they are part of no result.
TELLING = {"annotated-doc", "click", "colorama", "humanize", "logbook", "loguru", "rich", "tqdm", "typer"}
TELLING |= {"absl-py", "markdown-it-py", "mdurl", "pygments", "shellingham", "wasabi", "win32-setctime"}
# Those that draw pages and pictures are part of the result of a step that imports them itself, and of no other.
DRAWING = {"grpcio", "jinja2", "markdown", "markupsafe", "pillow", "tensorboard-data-server", "werkzeug"}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_taken: dict[str, tuple[str, frozenset[str]]] = {}


def take(known: Mapping[str, tuple[str, frozenset[str]]]) -> None:
    """Have this process take code versions and imports, by the module of a step, as somebody knows them already."""
    _taken.update(known)


@cache
def code_version(module: str) -> str:
    """Return the version of the code that the step of `module` runs, 16 hexadecimal digits."""
    return _taken[module][0] if module in _taken else version_by(reach, module)


def version_by(tree: Any, module: str) -> str:
    """Return the version of a step's code in the tree that a module like `pipeline.job.reach` follows names in."""
    parts = []
    for file, statements in tree.reach(module).statements():
        parts.append([file.relative_to(tree.PACKAGE).as_posix(), *(statement.dumped for statement in statements)])
        for data in tree.data_files(file, statements):
            parts.append([data.name, hashlib.sha256(data.read_bytes()).hexdigest()])
    return _digest(json.dumps(parts))


@cache
def imported(module: str) -> frozenset[str]:
    """Return the names of the distributions that a step imports itself."""
    if module in _taken:
        return _taken[module][1]
    return frozenset(DISTRIBUTIONS.get(name, installed.canonical(name)) for name in reach.reach(module).foreign)


def environment(module: str, lock: str) -> installed.Closure:
    """Return what is installed of all that a step imports, with its dependencies, beside what the lock says."""
    return installed.closure(imported(module), lock)


def version_of(imports: frozenset[str], lock: str) -> str:
    """Return the version of the environment of a step that imports these: the lock's name and 16 hexadecimal digits.

    Of Python counts 3.11, not 3.11.7: a repair of it changes no number. See `Closure.counted` for the rest.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    without = TELLING | (DRAWING - imports)
    counted = installed.closure(imports, lock).counted()
    return f"{lock}-{_digest(json.dumps([python, {name: counted[name] for name in counted if name not in without}]))}"


def environment_version(module: str, lock: str) -> str:
    """Return the version of the environment that `module` runs in, here."""
    return version_of(imported(module), lock)
