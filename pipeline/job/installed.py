"""Installed distributions, read from their metadata, and their differences from a lock.

A distribution is known by its folder NAME-VERSION.dist-info: METADATA names its version and what it requires, RECORD
the hash of each of its files as they were installed. Of the hundreds that are there a job reads those alone that its
step imports, with their dependencies.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.job.reach import PACKAGE, names_in

LOCKS = PACKAGE.parent / "envs"
# Files of the installer, which differ between two installations of one wheel.
INSTALLERS = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_build.json", "uv_cache.json")


class Distribution(NamedTuple):
    """An installed distribution; `folder` is its metadata, None of one that has no dist-info."""

    version: str
    requires: tuple[tuple[str, str | None], ...]
    folder: Path | None


class LockDifference(NamedTuple):
    """A distribution that differs from the lock; `installed` is None if it is missing."""

    name: str
    locked: str
    installed: str | None

    def sentence(self, who: str, lock: str, platform: str | None = None) -> str:
        """Return the difference and the command that fixes it."""
        here = f"{self.installed} is installed" if self.installed else "it is not installed"
        virtual = Path(sys.prefix).name if Path(sys.prefix).name.startswith(".venv") else ".venv"
        way_out = f"run `sh envs/setup.sh {virtual} envs/{lock}.lock`"
        if platform_files.current_container_image() and virtual not in Path(sys.prefix).name:
            way_out = "build the image again, see docs/howto/use-a-container.md"
        file = f"workflow/platforms/{platform or 'NAME'}.yaml"
        return (
            f"{who} needs {self.name} {self.locked} by envs/{lock}.lock, but {here}: {way_out}, or, where the machine "
            f"brings its own, write own_versions: [{self.name}] into {file}"
        )


class Closure(NamedTuple):
    """The distributions that a step imports, with their dependencies, by name in order.

    `packages` are the versions that are installed, `locked` those of the lock, where it names them.
    """

    packages: dict[str, str]
    locked: dict[str, str]
    differences: tuple[LockDifference, ...]

    def counted(self) -> dict[str, str]:
        """Return the versions that affect results by name, local parts (+cpu) included.

        A version that differs from the lock is marked, so that a changed lock is noticed before it is
        installed. Hashes, Python's build, kernel and driver do not count: reinstalling a version or updating a driver
        reruns no training.
        """
        other = {name: f"{installed or 'nothing'} for {locked}" for name, locked, installed in self.differences}
        return dict(sorted({**self.packages, **other}.items()))


def canonical(distribution: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def marker_applies(marker: str) -> bool:
    """Return whether a marker such as `python_full_version < '3.12'` is true of this Python."""
    from packaging.markers import Marker  # no lock has a marker for the few distributions of the shortest steps

    return Marker(marker).evaluate()


@cache
def _read_lock(lock: str) -> dict[str, list[tuple[str, str | None]]]:
    path = LOCKS / f"{lock}.lock"
    if not path.is_file():
        raise InputError(f"the environment {lock!r} has no lock {path}: choose one of envs/*.lock in run.environment")
    pins: dict[str, list[tuple[str, str | None]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*])?==([^;\s]+)\s*(?:;\s*(.+))?", line):
            pins.setdefault(canonical(match[1]), []).append((match[2], match[3]))
    return pins


@cache
def locked_version(lock: str, name: str) -> str | None:
    """Return the version that a lock names for this Python and machine; None where it names none."""
    for version, marker in _read_lock(lock).get(name, []):
        if marker is None or marker_applies(marker):
            return version
    return None


def locked_names(lock: str) -> list[str]:
    """Return the distributions that a lock names for this Python and machine."""
    return [name for name in sorted(_read_lock(lock)) if locked_version(lock, name)]


@cache
def metadata_folders() -> dict[str, Path]:
    """Return the metadata folder of each installed distribution by normalized name."""
    folders: dict[str, Path] = {}
    for folder in map(Path, sys.path):
        for name in sorted(names_in(folder)):
            if name.endswith(".dist-info"):
                folders.setdefault(canonical(name.split("-")[0]), folder / name)
    return folders


def _parse_requirement(entry: str) -> tuple[str, str | None]:
    requirement, _, marker = entry.partition(";")
    return canonical(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]), marker.strip() or None


@cache
def find_distribution(name: str) -> Distribution | None:
    """Return an installed distribution, read from the header of its metadata; None if it is not installed.

    importlib.metadata would also read the long descriptions and search each folder for each name. It is used for
    packages without dist-info, such as Debian's.
    """
    folder = metadata_folders().get(name)
    if folder is None:
        from importlib import metadata

        try:
            return Distribution(metadata.version(name), (), None)
        except metadata.PackageNotFoundError:
            return None
    try:
        with (folder / "METADATA").open(encoding="utf-8") as lines:
            header = [line.partition(":") for line in itertools.takewhile(str.strip, lines)]
        version = next(value.strip() for key, _, value in header if key == "Version")
    except (OSError, StopIteration):  # what an installation that was broken off leaves behind
        return None
    required = [value.strip() for key, _, value in header if key == "Requires-Dist" and "extra ==" not in value]
    return Distribution(version, tuple(map(_parse_requirement, required)), folder)


def _is_locked(version: str, locked: str) -> bool:
    """Return whether a version is the lock's: 2.13.0+cpu is 2.13.0 (PEP 440), and torch is locked so."""
    if version == locked:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(f"=={locked}").contains(version, prereleases=True)


def compare_distribution_with_lock(lock: str, name: str) -> LockDifference | None:
    """Return the difference of a distribution from the lock; None if there is none or the lock does not name it."""
    locked, here = locked_version(lock, name), find_distribution(name)
    if locked is None or (here and _is_locked(here.version, locked)):
        return None
    return LockDifference(name, locked, here and here.version)


@cache
def closure(imported: frozenset[str], lock: str) -> Closure:
    """Return the distributions of these names, with their dependencies.

    What is installed without being in the lock, such as torch of a ROCm image, counts where it is imported or required.
    """
    waiting: list[tuple[str, str | None]] = [(name, None) for name in sorted(imported)]
    distributions: dict[str, Distribution | None] = {}
    while waiting:
        name, marker = waiting.pop()
        if name in distributions:
            continue
        if locked_version(lock, name) is None and (
            name not in metadata_folders() or (marker is not None and not marker_applies(marker))
        ):
            continue
        distributions[name] = here = find_distribution(name)
        waiting += here.requires if here else ()
    names = sorted(distributions)
    locked = {name: version for name in names if (version := locked_version(lock, name))}
    return Closure(
        {name: here.version for name in names if (here := distributions[name])},
        locked,
        tuple(one for name in names if (one := compare_distribution_with_lock(lock, name))),
    )


@cache
def distribution_sha256(name: str) -> str | None:
    """Return a hash of the hashes of a distribution's files that its RECORD names; None where it has no RECORD.

    Without what differs between two installations of one wheel: scripts, whose first line is the path of Python, what
    Python has compiled, and what the installer says of itself. No file of the distribution is read.
    """
    folder = metadata_folders().get(name)
    try:
        record = (folder / "RECORD").read_bytes() if folder else b""
    except OSError:
        return None
    if folder is None:
        return None
    own = tuple(f"{folder.name}/{file},".encode() for file in INSTALLERS)
    lines = [
        line
        for line in record.splitlines()
        if b",sha256=" in line and b"__pycache__/" not in line and not line.startswith((b"../", b"/", *own))
    ]
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest() if lines else None
