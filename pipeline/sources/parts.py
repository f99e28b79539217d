"""Parts: what a large file, or a data set without files, is cut into, so that each part is a unit of its own.

A part is Parquet with one row per record, those without a text included, and with the ids that the records have in the
whole file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.byte_streams import Damage, DamagedFile
from pipeline.sources.raw_documents import RawDocument

PART_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("text", "url", "title", "date", "holder", "original_id", "license")),
        *(pa.field(name, pa.string()) for name in ("reason", "value", "encoding_known_by")),
        pa.field("decoding_errors", pa.int64()),
    ]
)
ROWS_PER_GROUP = 1000
BYTES_PER_GROUP = 1 << 23
PARTS_OPEN = 100


def part_name(part: int) -> str:
    """Return the name of a part's file."""
    return f"{part:05d}.parquet"


def count_parts(size: int, unit_bytes: int) -> int:
    """Return how many parts a file of `size` bytes is cut into; 1 leaves it whole."""
    return max(-(-size // unit_bytes), 1)


def file_number(name: str) -> str:
    """Return the number of a file that is cut, which depends on its name alone: at most 12 digits."""
    return str(1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (10**12 - 1))


def part_unit(name: str, part: int) -> str:
    """Return the unit of a part: the file's number and five digits, so that no other file moves it."""
    return f"{file_number(name)}{part:05d}"


class PartWriter:
    """Writes the parts of one file into a folder; every part exists in the end, also one without a row.

    Groups of rows of parts beyond PARTS_OPEN wait in files of their own until their part is finished.

    Args:
        raw_bytes: of the raw file, those that each part stands for; none where there is no raw file.
    """

    def __init__(self, folder: Path, parts: int, raw_bytes: list[int] | None = None) -> None:
        self.documents = 0
        self.bytes = 0
        self._folder = folder
        self._raw_bytes = raw_bytes
        self._rows: dict[int, list[dict[str, Any]]] = {part: [] for part in range(parts)}
        self._sizes = dict.fromkeys(self._rows, 0)
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._waiting: dict[int, list[Path]] = {}

    def write(self, part: int, document: RawDocument) -> None:
        """Add one document to a part."""
        self.documents += 1
        self.bytes += document.size
        self._rows[part].append(vars(document))
        self._sizes[part] += document.size
        if len(self._rows[part]) == ROWS_PER_GROUP or self._sizes[part] >= BYTES_PER_GROUP:
            self._flush(part)

    def finish(self, part: int) -> None:
        """Write what remains of a part to which nothing more is added."""
        self._close(part, {})

    def finish_damaged(self, damage: Damage) -> None:
        """Write all parts of a file that cannot be read whole: none has a row, and each says why."""
        for part in self._rows:
            self._close(part, {"damage": damage})

    def _close(self, part: int, described: dict[str, Any]) -> None:
        self._flush(part)
        with self._writers.pop(part, None) or self._open(part) as writer:
            for path in self._waiting.pop(part, []):
                writer.write_table(pq.read_table(path))
                path.unlink()
            if self._raw_bytes is not None:
                stored = {"raw_bytes": self._raw_bytes[part], **described}
                writer.add_key_value_metadata({"polder": json.dumps(stored)})

    def _open(self, part: int) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._folder / part_name(part), PART_SCHEMA, compression="zstd")

    def _flush(self, part: int) -> None:
        if self._rows[part]:
            rows = pa.Table.from_pylist(self._rows[part], schema=PART_SCHEMA)
            if not (part in self._writers or part in self._waiting) and len(self._writers) < PARTS_OPEN:
                self._writers[part] = self._open(part)
            if part in self._writers:
                self._writers[part].write_table(rows)
            else:
                waiting = self._waiting.setdefault(part, [])
                waiting.append(self._folder / f"{part}.{len(waiting)}")
                pq.write_table(rows, waiting[-1], compression="zstd")
        self._rows[part], self._sizes[part] = [], 0


def _described(file: pq.ParquetFile) -> dict[str, Any]:
    """Return what a Parquet file says of the raw file that it is a part of, where it is one."""
    stored = (file.metadata.metadata or {}).get(b"polder")
    return dict(json.loads(stored)) if stored else {}


def raw_bytes(path: Path) -> int:
    """Return the bytes of the raw file that a part stands for; of a data set, which has none, its own."""
    with pq.ParquetFile(path) as file:
        return int(_described(file).get("raw_bytes", path.stat().st_size))


def read_part(path: Path) -> Iterator[RawDocument]:
    """Yield the documents of a part.

    Raises:
        DamagedFile: the raw file that it is a part of cannot be read whole.
        InputError: the file is no part, or damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            if damage := _described(file).get("damage"):
                raise DamagedFile(f"{path} is a part of a file that cannot be read whole ({damage})", damage)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    yield RawDocument(**row)
    except (pa.ArrowException, OSError, TypeError):
        raise InputError(f"{path} is damaged: delete its folder, so that the source is cut again") from None


def write_in_order(folder: Path, raw_bytes: list[int], documents: Iterable[tuple[int, RawDocument]]) -> PartWriter:
    """Write (part, document) pairs whose parts never decrease, holding one part open at a time.

    Args:
        raw_bytes: of the raw file, those that each part stands for.
    """
    parts = len(raw_bytes)
    writer = PartWriter(folder, parts, raw_bytes)
    current = 0
    for part, document in documents:
        while current < part:
            writer.finish(current)
            current += 1
        writer.write(part, document)
    for part in range(current, parts):
        writer.finish(part)
    return writer
