"""Raw files whose paths hold what a corpus replaces: ids, manifests and records would name it.

A process of its own looks, for what finds personal data takes tens of megabytes, which a login node does not keep for a
run. It also takes a second to load. That nothing was found is therefore kept from one start to the next, as long as no
name, no setting, and no byte of the package or of the lock changes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pipeline.config.configuration import Config
from pipeline.core import atomic_files
from pipeline.job.reach import PACKAGE
from pipeline.workflow.version_cache import package_sha256

FILE = Path(".snakemake/names_without_persons")


def problems(config: Config, file: Path = FILE) -> Iterator[str]:
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
    words = [sys.executable, "-m", "pipeline.corpus.personal_data.fields"]
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
