"""Installed packages of a step, here or in the platform's image, compared with the lock."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform as python
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.job import installed, versions
from pipeline.job.installed import LockDifference
from pipeline.job.reach import PACKAGE

IMAGE_PYTHON_VARIABLE = "PIPELINE_PYTHON"
"""The environment variable with the program that starts Python in the platform's image; rules/platform.smk sets it."""

PROJECT = "polder"
"""The distribution of this code, whose version of each step is computed from its files."""

IMAGE_PROGRAM = (
    "import json, sys; from pipeline.job.environment_lock_comparison import current_environment; "
    "steps = json.loads(sys.argv[2]); "
    "print(json.dumps({step: current_environment(frozenset(names), sys.argv[1]) for step, names in steps.items()}))"
)


class Environment(NamedTuple):
    """Packages installed for a step: versions and hashes by name, and differences from the lock."""

    version: str
    python: str
    python_build: str
    packages: dict[str, str]
    sha256: dict[str, str | None]
    differences: Sequence[LockDifference]

    def check_against_lock(self, who: str, lock: str, platform: str | None) -> dict[str, str]:
        """Return the locked versions of packages whose difference the platform file allows.

        Raises:
            InputError: another distribution is missing or is not the lock's.
        """
        if not self.differences:
            return {}
        own = platform_files.load_platform(platform).get("own_versions", []) if platform else []
        for one in self.differences:
            if one.installed is None or one.name not in map(installed.canonical, own):
                raise InputError(one.sentence(who, lock, platform))
        return {one.name: one.locked for one in self.differences}


def current_environment(imports: frozenset[str], lock: str) -> Environment:
    """Return the environment of this process for a step with these imports."""
    closure = installed.closure(imports, lock)
    return Environment(
        versions.version_of(imports, lock),
        python.python_version(),
        " ".join([python.python_implementation(), *python.python_build(), python.python_compiler()]),
        closure.packages,
        {name: installed.distribution_sha256(name) for name in closure.packages},
        closure.differences,
    )


def step_environment(step: str, lock: str) -> Environment:
    """Return the environment of this process for a step such as corpus.filter."""
    return current_environment(versions.imported(f"pipeline.{step}"), lock)


def image_environments(
    program: str, lock: str, names: Sequence[str], variables: Mapping[str, str]
) -> dict[str, Environment]:
    """Return the environments of steps in an image, from one call of its Python.

    Raises:
        InputError: it does not answer.
    """
    steps = json.dumps({step: sorted(versions.imported(f"pipeline.{step}")) for step in names})
    words = [program, "-c", IMAGE_PROGRAM, lock, steps]
    done = subprocess.run(words, env=dict(variables), cwd=PACKAGE.parent, capture_output=True, text=True)
    try:
        if done.returncode == 0:
            return {
                step: Environment(*values)._replace(differences=[LockDifference(*one) for one in values[-1]])
                for step, values in json.loads(done.stdout.splitlines()[-1]).items()
            }
    except (ValueError, IndexError, TypeError, AttributeError):  # something else has printed
        pass
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    why = said[-1].removeprefix("error: ") if said else f"it ends with {done.returncode}"
    raise InputError(
        f"Python of the platform's image does not say what is installed ({why}): see docs/howto/use-a-container.md"
    )


def resolve_job_environment(step: str, lock: str) -> Environment:
    """Return the environment in which a job computes; the launcher of a training runs outside of the image.

    Raises:
        InputError: there is no such lock, or the image does not answer.
    """
    if os.environ.get(IMAGE_PYTHON_VARIABLE) and platform_files.current_container_image() is None:
        return image_environments(os.environ[IMAGE_PYTHON_VARIABLE], lock, [step], os.environ)[step]
    return step_environment(step, lock)


def find_modified_files(folder: Path) -> Iterator[str]:
    """Yield a sentence for each modified file of a distribution, and for an editable install.

    Every file that RECORD has a hash of is read. `folder` is the distribution's metadata.
    """
    name = installed.canonical(folder.name.split("-")[0])
    link = folder / "direct_url.json"
    if link.is_file() and json.loads(link.read_text(encoding="utf-8")).get("dir_info", {}).get("editable"):
        yield f"{name} is an editable install: its code is that of a folder, whatever its version says"
    try:
        rows = list(csv.reader((folder / "RECORD").read_text(encoding="utf-8").splitlines()))
    except OSError:
        yield f"{name} has no RECORD: its files cannot be compared with what was installed"
        return
    for path, recorded, *_ in rows:
        algorithm, _, expected = recorded.partition("=")
        if not expected or "__pycache__/" in path:
            continue
        try:
            with (folder.parent / path).open("rb") as stream:
                digest = hashlib.file_digest(stream, algorithm).digest()
        except OSError:
            yield f"{name}: {path} is gone"
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected:
            yield f"{name}: {path} was changed after it was installed"


def find_environment_problems(lock: str, platform: str | None, deep: bool) -> Iterator[str]:
    """Yield a sentence for each distribution that differs from the lock, by name.

    Args:
        platform: whose file may allow others; none allows none.
        deep: whether all files of all installed distributions are read and compared with what was installed.

    Raises:
        InputError: there is no such lock or platform.
    """
    own = platform_files.load_platform(platform).get("own_versions", []) if platform else []
    for name in installed.locked_names(lock):
        one = installed.compare_distribution_with_lock(lock, name)
        if one and (one.installed is None or name not in map(installed.canonical, own)):
            yield one.sentence("the run", lock, platform)
    for name, folder in sorted(installed.metadata_folders().items()) if deep else ():
        if name != PROJECT:
            yield from find_modified_files(folder)


def list_unlocked_packages(lock: str) -> list[str]:
    """Return the installed distributions that a lock does not name, without the installers and this project."""
    known = {*installed.locked_names(lock), "pip", "setuptools", PROJECT}
    return sorted({*installed.metadata_folders()} - known)
