"""Reads and writes signatures for deduplication: one Parquet file per unit, one row per document, in order.

Columns: `characters` is the length of the document without case and repeated white space. `content_0` and `content_1`
are the first 128 bits of the sha256 of that text. `bucket_…` is a 64-bit number, equal for two documents if all hashes
of that MinHash band agree, and 0 for a document too short for a signature. `ngrams` is the number of n-grams, counted
with repetition. `paragraphs` has one number per paragraph, 0 if it is too short to be removed. `lines` has one number
for the domain and text of each line that is long enough, and `passages` one for each anchor of a passage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.core.errors import InputError
from pipeline.corpus.document_streams import PARAGRAPH_BREAK
from pipeline.corpus.documents import encode_parquet_metadata, make_non_nullable_fields
from pipeline.corpus.settings import SignatureSettings

CONTENT = ["content_0", "content_1"]
KEY_LIST = pa.list_(pa.uint64())
ROWS_PER_GROUP = 50_000
DOCUMENT_BYTES = 32  # memory for the parent and root of a document, its number and the size of its cluster
KEY_BYTES = 16  # minimum memory per document for keys, so that the units are read a few times at most
Numbers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def band_columns(settings: SignatureSettings) -> list[str]:
    """Return the names of the columns of MinHash bands; datatrove calls bands buckets."""
    return [f"bucket_{number:03d}" for number in range(settings.bands)] if settings.minhash else []


def signature_schema(settings: SignatureSettings) -> pa.Schema:
    fields = (
        make_non_nullable_fields(id=pa.string(), characters=pa.int64())
        + make_non_nullable_fields(ngrams=pa.int64()) * settings.minhash
    )
    fields += make_non_nullable_fields(**dict.fromkeys(CONTENT + band_columns(settings), pa.uint64()))
    lists = {
        "paragraphs": settings.paragraphs,
        "lines": settings.line_characters is not None,
        "passages": settings.passage_words is not None,
    }
    return pa.schema(fields + make_non_nullable_fields(**{name: KEY_LIST for name, signed in lists.items() if signed}))


def content_hash(text: str) -> tuple[int, bytes]:
    """Return the number of characters and the sha256 of a text without case and repeated white space."""
    # Imported here, because steps that only compare hashes need no compiler.
    from pipeline.corpus.text.pretoken_ids import collapse_white_space

    plain, characters = collapse_white_space(text.casefold())
    return characters, hashlib.sha256(plain.data).digest()


def paragraph_keys(text: str, least_characters: int) -> list[int]:
    """Return the first 64 bits of the hash of each paragraph, 0 if it is too short; empty lines end paragraphs."""
    keys = []
    for paragraph in PARAGRAPH_BREAK.split(text)[::2]:
        characters, sha256 = content_hash(paragraph)
        keys.append(int.from_bytes(sha256[:8], "big") or 1 if characters >= least_characters else 0)
    return keys


def find_long_text_lines(text: str, least_characters: int) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and words of each line that is long enough, in bytes, without white space around it."""
    start = 0
    for line in text.encode().split(b"\n"):
        stripped = line.strip(b" \t\r\f\v")
        words = " ".join(stripped.decode().casefold().split())
        if len(words) >= least_characters:
            first = start + line.index(stripped)
            yield first, first + len(stripped), words
        start += len(line) + 1


def line_keys(text: str, domain: str, least_characters: int) -> list[int]:
    """Return 64 bits, not 0, of the hash of each line that is long enough and its domain; case does not count."""
    return [
        xxhash.xxh3_64_intdigest(f"{domain}\n{words}") or 1
        for *_, words in find_long_text_lines(text, least_characters)
    ]


class SignatureWriter:
    """Writes the rows of one unit, a group at a time."""

    def __init__(self, path: Path, settings: SignatureSettings, unit: Mapping[str, Any]) -> None:
        self.schema = signature_schema(settings)
        self.metadata = {"source": unit["source"], "unit": unit["unit"], "paragraphs": 0}
        compression = {name: "zstd" if name in ("id", "characters", "ngrams") else "none" for name in self.schema.names}
        self._writer = pq.ParquetWriter(path, self.schema, compression=compression, use_dictionary=False)
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == 1000:
            self._flush()

    def _flush(self) -> None:
        self.write(pa.RecordBatch.from_pylist(self._rows, schema=self.schema))
        self._rows = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        if sum(map(len, self._batches)) >= ROWS_PER_GROUP:
            self._write_group()
        if "paragraphs" in self.schema.names:
            self.metadata["paragraphs"] += len(rows["paragraphs"].flatten())

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._batches, self.schema), row_group_size=ROWS_PER_GROUP)
        self._batches = []

    def close(self) -> None:
        """Write the remaining rows and the metadata."""
        self._flush()
        self._write_group()
        self._writer.add_key_value_metadata(encode_parquet_metadata(self.metadata))
        self._writer.close()


@dataclass(frozen=True)
class SignedUnit:
    """The signatures of one unit; documents and paragraphs are numbered consecutively through all units.

    `rank` is the position of its source among the preferred ones, and `id_bytes` the size of its ids.
    """

    path: Path
    source: str
    unit: int
    rank: int
    rows: int
    first: int
    paragraphs: int
    first_paragraph: int
    id_bytes: int

    @property
    def corpus_document_range(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def read(self, columns: list[str]) -> pa.Table:
        with pq.ParquetFile(self.path, pre_buffer=True) as file:
            return file.read(columns, use_threads=False)

    def keys(self, columns: list[str]) -> Keys:
        """Return columns of numbers, shape (columns, rows)."""
        table = self.read(columns)
        return np.stack([table[name].to_numpy() for name in columns])


def open_units(
    paths: Iterable[Path], settings: SignatureSettings, prefer: Sequence[str], first: int = 0
) -> list[SignedUnit]:
    """Return the units sorted by source and unit.

    Documents are numbered in this order. Paragraphs are numbered by preferred source, then source and unit.

    Args:
        first: the number of the first document.

    Raises:
        InputError: a file has other columns, or two files are the same unit.
    """
    units: list[SignedUnit] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(signature_schema(settings)):
                raise InputError(f"{path} has signatures of another kind: rerun corpus.signatures with these settings")
            metadata = json.loads(file.metadata.metadata[b"polder"])
            groups = (file.metadata.row_group(group) for group in range(file.num_row_groups))
            id_bytes = sum(group.column(0).total_uncompressed_size for group in groups)
            rank = prefer.index(metadata["source"]) if metadata["source"] in prefer else len(prefer)
            described = (metadata["source"], metadata["unit"], rank, file.metadata.num_rows)
            units.append(SignedUnit(path, *described, 0, metadata["paragraphs"], 0, id_bytes))
    units.sort(key=lambda unit: (unit.source, unit.unit))
    for one, other in pairwise(units):
        if (one.source, one.unit) == (other.source, other.unit):
            raise InputError(f"{other.path} and {one.path} are the same unit: remove one of them")
    numbers = accumulate((unit.rows for unit in units), initial=first)
    units = [replace(unit, first=number) for unit, number in zip(units, numbers, strict=False)]
    units.sort(key=lambda unit: unit.rank)
    numbers = accumulate((unit.paragraphs for unit in units), initial=0)
    units = [replace(unit, first_paragraph=number) for unit, number in zip(units, numbers, strict=False)]
    return sorted(units, key=lambda unit: (unit.source, unit.unit))
