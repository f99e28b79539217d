"""Cache what each invocation would compute again: code versions, and the search of file names for personal data.

Both are valid as long as no byte of the package changes. Records do not depend on the cache: a job computes its own
version and refuses to run if it was planned with another one.
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


def cache_code_versions(file: Path = VERSIONS_FILE) -> None:
    """Load the code version and the imported distributions of each step from the cache, or compute and write them.

    If a file cannot be read or written, the next invocation computes them again.
    """
    try:
        package = package_sha256()
    except OSError:  # an editor's lock is a link to nothing, and other files come and go
        return
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        cached = json.loads(file.read_bytes())
        if cached["package"] == package:
            versions.take({module: (code, frozenset(names)) for module, (code, names) in cached["modules"].items()})
            return
    modules = {
        module: (versions.code_version(module), sorted(versions.imported(module)))
        for module in (f"pipeline.{step}" for step in STEPS)
    }
    with suppress(OSError):
        if package_sha256() != package:
            return  # the package is being edited
        atomic_files.write_json(file, {"package": package, "modules": modules})


def package_sha256() -> str:
    """Return a hash of the names and bytes of all files of the package, and of Python's version."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for folder, below, names in os.walk(PACKAGE):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for path in (Path(folder, name) for name in sorted(names)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


NAMES_FILE = Path(".snakemake/names_without_persons")


def find_personal_data_in_paths(config: Config, file: Path = NAMES_FILE) -> Iterator[str]:
    """Yield a sentence for the first raw file whose path holds personal data."""
    searches = [
        (source.name, section.personal_data.model_copy(update={"names": None, "replacement": "marker"}), names)
        for source in config.sources
        for names in [[*filter(None, [source.path]), *config.source_units(source.name).files]]
        for corpus, section in config.corpus.items()
        if source.name in config.corpus_sources(corpus)
    ]
    given = json.dumps([(kinds.model_dump(mode="json"), names) for _, kinds, names in searches])
    sha256 = _search_cache_key(given, config.run.environment)
    with suppress(OSError, ValueError):
        if file.read_text(encoding="utf-8") == sha256:
            return
    words = [sys.executable, "-m", "pipeline.corpus.personal_data.metadata_masking"]
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    for (source_name, _, _), shown in zip(searches, json.loads(done.stdout), strict=True):
        if shown is not None:
            yield (
                f"source {source_name}: the path of its file {shown} has personal data, and ids, manifests and "
                "records name it: rename it; if it is not a person's, add the value to personal_data.public_bodies of "
                "the corpus"
            )
            return
    if _search_cache_key(given, config.run.environment) != sha256:
        return  # the package is being edited: it is unknown which code has searched
    with suppress(OSError):
        atomic_files.write_atomically(file, sha256.encode())


def _search_cache_key(given: str, lock: str) -> str:
    """Return a hash of everything that the search depends on; a unique value if that cannot be read."""
    try:
        installed = (PACKAGE.parent / "envs" / f"{lock}.lock").read_bytes()
        return hashlib.sha256(f"{package_sha256()}\0{given}\0".encode() + installed).hexdigest()
    except OSError:  # an editor's lock is a link to nothing, and other files come and go
        return str(uuid4())
