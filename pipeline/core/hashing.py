"""The hash by which everything here is known: records, manifests, milestones, checkpoints."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_each(paths: Sequence[Path]) -> list[str]:
    """Return the same of many files, in their order; as many are read at once as this process has processors.

    Threads do it: the interpreter is free while bytes are read and hashed.
    """
    if len(paths) < 2:
        return [sha256_of(path) for path in paths]
    # Not all systems say what a process may run on.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(processors) as threads:
        return list(threads.map(sha256_of, paths))
