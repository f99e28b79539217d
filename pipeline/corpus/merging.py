"""Reads the documents of many files as one, in the order of `id_hash` and `id`, with few files open at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.corpus.documents import LAST_HASH, ROWS_PER_GROUP, read_batches

FILES_OPEN = 100  # each holds a batch of rows in memory too
EVERY = pc.scalar(True)


def _rows(
    path: Path, names: list[str], told_by: list[str], hash_range: tuple[int, int], where: pc.Expression
) -> Iterator[Any]:
    for batch in read_batches([path], hash_range, [*dict.fromkeys([*names, *told_by])]):
        chosen = batch.filter(where)
        yield from zip(*(chosen.column(name).to_pylist() for name in names), strict=True)


def _write(path: Path, schema: pa.Schema, rows: Iterable[Any]) -> None:
    waiting = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while some := list(islice(waiting, ROWS_PER_GROUP)):
            hashes, *columns = zip(*some, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip([*columns, hashes], schema, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))


def merge_documents(
    paths: Iterable[Path],
    columns: Iterable[str],
    hash_range: tuple[int, int] = (0, LAST_HASH),
    where: pc.Expression = EVERY,
    told_by: Iterable[str] = (),
) -> Iterator[Any]:
    """Yield `id_hash`, `id` and some columns of the documents of files, each of which is in that order.

    Where there are more than FILES_OPEN files, so many at a time become a temporary one, and that is read as they were.

    Args:
        hash_range: the least and the greatest `id_hash` that is wanted.
        where: the condition that the documents meet that are wanted, and `told_by` the columns that it asks.
    """
    names = ["id_hash", "id", *columns]
    asked = [*told_by]
    read = [*dict.fromkeys([*names, *asked])]
    waiting = sorted(paths)
    with TemporaryDirectory() as folder:
        merged = 0
        while len(waiting) > FILES_OPEN:
            some, waiting = waiting[:FILES_OPEN], waiting[FILES_OPEN:]
            known = pq.read_schema(some[0])
            waiting.append(Path(folder) / f"{merged}.parquet")
            schema = pa.schema([known.field(name) for name in [*read[1:], read[0]]])  # `read_batches` asks the last
            _write(waiting[-1], schema, merge(*(_rows(path, read, asked, hash_range, where) for path in some)))
            for path in some:
                if path.parent == Path(folder):
                    path.unlink()
            merged += 1
        yield from merge(*(_rows(path, names, asked, hash_range, where) for path in waiting))
