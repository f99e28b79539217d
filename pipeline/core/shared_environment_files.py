"""Files with the Python version and packages of jobs; records with the same environment share one file."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.atomic_files import compact_json, write_atomically
from pipeline.core.errors import InputError
from pipeline.core.job_records import FileReference, Record
from pipeline.layout import ENVIRONMENT


def write_environment(run_directory: Path, environment: dict[str, Any]) -> FileReference:
    """Write Python version and packages of a job to a file named by their hash, unless it exists.

    Raises:
        DiskFull: the disk is full; no partial file is left.
    """
    text = compact_json(environment)
    sha256 = hashlib.sha256(text).hexdigest()
    file = FileReference(ENVIRONMENT.relative_path(digest=sha256[:16]), sha256)
    if not (run_directory / file.path).exists():
        write_atomically(run_directory / file.path, text)
    return file


def read_environment(run_directory: Path, record: Record) -> dict[str, Any]:
    """Return Python version and packages of the job of a record.

    Raises:
        InputError: the file that the record names is missing or was changed.
    """
    if record.environment_file is None:  # records of earlier versions hold it themselves
        return record.environment or {}
    return _read_verified(run_directory, record.environment_file)


@cache
def _read_verified(run_directory: Path, file: FileReference) -> dict[str, Any]:
    try:
        text = (run_directory / file.path).read_bytes()
    except OSError:
        raise InputError(f"{file.path} is missing: put it back, a record names it") from None
    if hashlib.sha256(text).hexdigest() != file.sha256:
        raise InputError(f"{file.path} was changed: its record says that its sha256 is {file.sha256}")
    environment: dict[str, Any] = json.loads(text)
    return environment
