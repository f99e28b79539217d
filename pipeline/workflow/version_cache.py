"""The versions of all steps' code, kept from one start to the next: to follow every name of the package takes seconds.

They hold as long as no byte of the package changes. No record rests on them: a job works out its own version and
refuses to run where its start named another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from pipeline.core import atomic_files
from pipeline.job import versions
from pipeline.job.reach import PACKAGE
from pipeline.workflow.steps import STEPS

FILE = Path(".snakemake/versions_of_steps.json")


def keep(file: Path = FILE) -> None:
    """Have the code version of each step and the distributions that it imports at hand, read or worked out and written.

    Where the file cannot be written, or a file of the package not be read, the next start works them out again.
    """
    try:
        package = package_sha256()
    except OSError:  # an editor's lock is a link to nothing, and other files come and go
        return
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        told = json.loads(file.read_bytes())
        if told["package"] == package:
            versions.take({module: (code, frozenset(names)) for module, (code, names) in told["modules"].items()})
            return
    modules = {
        module: (versions.code_version(module), sorted(versions.imported(module)))
        for module in (f"pipeline.{step}" for step in STEPS)
    }
    with suppress(OSError):
        if package_sha256() != package:
            return  # somebody edits it at this moment
        atomic_files.write_json(file, {"package": package, "modules": modules})


def package_sha256() -> str:
    """Return a hash of the names and bytes of all files of the package, and of Python's version."""
    found = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for folder, below, names in os.walk(PACKAGE):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for path in (Path(folder, name) for name in sorted(names)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return found.hexdigest()
