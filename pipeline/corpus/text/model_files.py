"""The hash of a folder's files, by which a model counts among the settings of the steps that use it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of


@cache
def fingerprint(folder: str) -> str:
    """Return the SHA-256 of the names and bytes of all files in a folder, hidden ones left out.

    Raises:
        InputError: the folder is missing or empty.
    """
    root, digest = Path(folder), hashlib.sha256()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError(f"personal_data.names: there are no files in {folder}: give the folder of a spaCy pipeline")
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()
