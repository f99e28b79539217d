"""Files that others see whole or not at all: written under a name of this process, and renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.disk_space import disk_full_error, is_disk_full, remove_path
from pipeline.core.lease import partial_path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one stroke, and the folder that it lies in; what was there before is there until then.

    Raises:
        DiskFull: there is no room for it; nothing of it is left.
    """
    beside = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        full = disk_full_error(error, [path.parent]) if is_disk_full(error) else None
        remove_path(beside)
        if full:
            raise full from error
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically, on one line, with sorted keys.

    Raises:
        DiskFull: as `write`.
    """
    write_atomically(path, compact_json(content))


def compact_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8 with sorted keys, without indentation, and with a line end."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode() + b"\n"


@contextmanager
def apply_umask(path: Path) -> Iterator[None]:
    """Give a file that is written meanwhile the mode of all other files, which the umask decides.

    The library safetensors writes files that their user alone may read.
    """
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)
