"""Hashes the raw files of one unit of a source."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.sources.settings import FingerprintSettings


def run(settings: FingerprintSettings, *, files: list[Path], fingerprint: Path) -> dict[str, Any]:
    """Write name, size in bytes and sha256 of every file, sorted by name.

    Raises:
        InputError: the number of files is not that of the names, or a file cannot be read.
    """
    if len(files) != len(settings.names):
        raise InputError(
            f"source {settings.source}, unit {settings.unit}: {len(files)} files are given for {len(settings.names)} "
            "names: start snakemake again, so that it lists the files anew"
        )
    entries: list[dict[str, Any]] = []
    for name, path in sorted(zip(settings.names, files, strict=True)):
        try:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): restore the file or its permissions") from None
        entries.append({"name": name, "bytes": size, "sha256": sha256})
    content = {"unit": settings.unit, "files": entries}
    fingerprint.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"files": len(entries), "bytes": sum(entry["bytes"] for entry in entries)}
