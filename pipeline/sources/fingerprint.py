"""Hashes the raw files of one unit of a source, and says whether its rows state licences, which the filter compares."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.byte_streams import Pieces, lines
from pipeline.sources.parts import part_name
from pipeline.sources.raw_documents import COMMON_LICENSE_KEYS, value_at
from pipeline.sources.record_formats import column_at, python_value, split_name, stored_keys
from pipeline.sources.settings import FingerprintSettings
from pipeline.sources.spdx_licenses import as_written


def run(settings: FingerprintSettings, *, listing: Path, files: list[Path], fingerprint: Path) -> dict[str, Any]:
    """Write name, size in bytes and sha256 of every file of the unit, sorted by name, and whether rows state licences.

    Args:
        listing: the unit's file of the listing, which names the files in their order.

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
    names = [part_name(0) if is_part else entry["name"] for entry in listed["files"]]
    content = {
        "source": settings.source,
        "unit": listed["unit"],
        "is_part": is_part,
        "states_license": any(
            states_license(path, name, settings.document_bytes) for name, path in zip(names, files, strict=True)
        ),
        "files": sorted(entries, key=lambda entry: str(entry["name"])),
    }
    fingerprint.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"files": len(entries), "bytes": sum(entry["bytes"] for entry in entries)}


# A line without any of these has no such field: \u may spell a letter of its name.
POSSIBLE_FIELD = re.compile(rb"licen[cs]e|\\u")


def _json_values(path: Path, compression: str, limit: int) -> Iterator[Any]:
    for _, line, _, _ in lines(iter(Pieces(path, compression)), limit):
        if line is None or not POSSIBLE_FIELD.search(line):
            continue
        with suppress(ValueError, RecursionError):  # the filter counts a broken line
            fields = json.loads(line.decode("utf-8-sig"))
            if isinstance(fields, dict):
                yield from (value_at(fields, key) for key in COMMON_LICENSE_KEYS)


def _parquet_values(path: Path) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        present = stored_keys(file.schema_arrow, [*COMMON_LICENSE_KEYS])
        for batch in file.iter_batches(columns=present) if present else ():
            for key in present:
                for cell in column_at(batch, key):
                    with suppress(UnicodeDecodeError):
                        yield python_value(cell)


def states_license(path: Path, name: str, limit: int) -> bool:
    """Return whether a row of a raw file says which licence it has; reading stops at the first one that does.

    A file that cannot be read states none: the filter leaves it out, or stops.

    Args:
        name: tells the format; a part of a file is Parquet.
        limit: the largest row, in bytes, that the filter reads.
    """
    stem, compression = split_name(name)
    if stem.endswith((".jsonl", ".ndjson")):
        values = _json_values(path, compression, limit)
    elif stem.endswith(".parquet") and not compression:
        values = _parquet_values(path)
    else:  # a text or a page has no fields
        return False
    with suppress(InputError, pa.ArrowException, OSError, KeyError):  # KeyError: two columns of one name
        return any(as_written(value) for value in values)
    return False
