"""Hashes the raw files of one unit of a source."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.sources.settings import FingerprintSettings

# Also compressed; the readers import Arrow, which takes 0.15 CPU seconds.
FORMATS_WITH_FIELDS = (".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather")  # .json is in .jsonl too


def run(settings: FingerprintSettings, *, listing: Path, files: list[Path], fingerprint: Path) -> dict[str, Any]:
    """Write name, size in bytes and sha256 of every file of the unit, sorted by name, and whether rows state licenses.

    Args:
        listing: the unit's file of the listing, which names the files in order.

    Raises:
        InputError: a file cannot be read.
    """
    listed = json.loads(listing.read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = []
    for entry, path in zip(listed["files"], files, strict=True):
        try:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): restore the file or its permissions") from None
        entries.append({"name": entry["name"], "bytes": size, "sha256": sha256})
    is_part = any(entry["part"] is not None for entry in listed["files"])
    content = {
        "source": settings.source,
        "unit": listed["unit"],
        "is_part": is_part,
        "states_license": _any_states_license(listed["files"], files, is_part, settings.document_bytes),
        "files": sorted(entries, key=lambda entry: str(entry["name"])),
    }
    fingerprint.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"files": len(entries), "bytes": sum(entry["bytes"] for entry in entries)}


def _any_states_license(entries: list[dict[str, Any]], files: list[Path], is_part: bool, limit: int) -> bool:
    if not is_part and not any(ending in entry["name"] for entry in entries for ending in FORMATS_WITH_FIELDS):
        return False
    from pipeline.sources.record_formats import states_license
    from pipeline.sources.source_units import part_name

    names = [part_name(0) if is_part else entry["name"] for entry in entries]
    return any(states_license(path, name, limit) for name, path in zip(names, files, strict=True))
