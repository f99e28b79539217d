"""What a start has worked out and the next one need not: code versions, and that no name of a raw file is of a person.

Both hold as long as no byte of the package changes. No record rests on the versions: a job works out its own version
and refuses to run where its start named another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pipeline.config.configuration import Config
from pipeline.core import atomic_files
from pipeline.job import versions
from pipeline.job.reach import PACKAGE
from pipeline.workflow.steps import STEPS

VERSIONS_FILE = Path(".snakemake/versions_of_steps.json")


def keep_versions(file: Path = VERSIONS_FILE) -> None:
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


NAMES_FILE = Path(".snakemake/names_without_persons")


def personal_path_problems(config: Config, file: Path = NAMES_FILE) -> Iterator[str]:
    """Yield a sentence for the first raw file whose path holds personal data."""
    asked = [
        (source.name, section.personal_data.model_copy(update={"names": None, "replacement": "marker"}), names)
        for source in config.sources
        for names in [[*filter(None, [source.path]), *config.source_units(source.name).files]]
        for corpus, section in config.corpus.items()
        if source.name in config.corpus_sources(corpus)
    ]
    given = json.dumps([(kinds.model_dump(mode="json"), names) for _, kinds, names in asked])
    searched = _sha256(given, config.run.environment)
    with suppress(OSError, ValueError):
        if file.read_text(encoding="utf-8") == searched:
            return
    words = [sys.executable, "-m", "pipeline.corpus.personal_data.metadata_masking"]
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    for (source_name, _, _), shown in zip(asked, json.loads(done.stdout), strict=True):
        if shown is not None:
            yield (
                f"source {source_name}: the path of its file {shown} holds personal data, and ids, manifests and "
                "records name it: rename it, or write the value into personal_data.public_bodies of the corpus where "
                "it is no person's"
            )
            return
    if _sha256(given, config.run.environment) != searched:
        return  # somebody edits the package at this moment: it is not known which code has searched
    with suppress(OSError):  # as without it
        atomic_files.write(file, searched.encode())


def _sha256(given: str, lock: str) -> str:
    """Return a hash of all that the answer depends on, or what no other start has where that cannot be read."""
    try:
        installed = (PACKAGE.parent / "envs" / f"{lock}.lock").read_bytes()
        return hashlib.sha256(f"{package_sha256()}\0{given}\0".encode() + installed).hexdigest()
    except OSError:  # an editor's lock is a link to nothing, and other files come and go
        return str(uuid4())
