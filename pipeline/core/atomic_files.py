"""Atomic file writes: to a name of this process, then renamed, so that readers see a complete file or none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.full_disk_errors import disk_full_error, is_disk_full, remove_path
from pipeline.core.output_lease import temporary_output_path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file and its folder atomically; an existing file stays until it is replaced.

    Raises:
        DiskFull: the disk is full; no partial file is left.
    """
    partial = temporary_output_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        full = disk_full_error(error, [path.parent]) if is_disk_full(error) else None
        remove_path(partial)
        if full:
            raise full from error
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically, on one line, with sorted keys.

    Raises:
        DiskFull: as `write_atomically`.
    """
    write_atomically(path, compact_json(content))


def compact_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8 with sorted keys, without indentation, and with a line end."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode() + b"\n"


@contextmanager
def apply_umask(path: Path) -> Iterator[None]:
    """Give a file that is written in the block the permissions of the umask.

    safetensors writes files that only their owner may read.
    """
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)
