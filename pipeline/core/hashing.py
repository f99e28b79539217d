"""SHA-256 of files and folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from pipeline.core.archived_run_files import StoredFile


def hash_file(path: StoredFile) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_each_file(paths: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of many files, in their order, reading one file per processor at once.

    Threads do it: the interpreter is free while bytes are read and hashed.
    """
    if len(paths) < 2:
        return [hash_file(path) for path in paths]
    # Not all systems say what a process may run on.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(processors) as threads:
        return list(threads.map(hash_file, paths))


@cache
def hash_folder(folder: str, key: str, content: str) -> str:
    """Return the SHA-256 of the names and bytes of all files in a folder, hidden ones left out.

    Args:
        key: the configuration key of the folder, for the message.
        content: what the folder should hold, for the message.

    Raises:
        InputError: the folder is missing or empty.
    """
    root, digest = Path(folder), hashlib.sha256()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError(f"{key}: there are no files in {folder}: give the folder of {content}")
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()
