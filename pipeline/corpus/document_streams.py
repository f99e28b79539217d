"""Streams of documents: what the deduplication keeps of a unit, many files in one order, and columns of scores.

No text is written for the documents that stay: each reader takes out the rest. The file
`deduplicated/SOURCE.UNIT.parquet` names them, in the order of the filtered ones, and which of their paragraphs are cut.
Its metadata counts them as they are then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.documents import (
    DEDUPLICATED_SCHEMA,
    FINAL_SCHEMA,
    LAST_HASH,
    ROWS_PER_GROUP,
    parquet_metadata,
    read_batches,
    read_metadata,
    read_row_groups,
    required_fields,
)

KEPT_SCHEMA = pa.schema(
    [
        *required_fields(id=pa.string()),
        pa.field("cluster", pa.string()),  # null: the document itself
        *required_fields(cluster_size=pa.int64()),
        pa.field("cut", pa.list_(pa.int64())),  # null: none
    ]
)

PARAGRAPH_BREAK = re.compile(r"(\n\s*\n)")


def remove_paragraphs(text: str, places: Collection[int]) -> str:
    """Return a text without the paragraphs at these places, each with the empty lines that follow it."""
    pieces = PARAGRAPH_BREAK.split(text)
    kept = [place for place in range(0, len(pieces), 2) if place // 2 not in places]
    return "".join("".join(pieces[place : place + 2]) for place in kept).strip()


def read_aligned(
    documents: Path, told: pa.Table, columns: list[str] | None = None
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield each row group of a file of documents, and of `told` the rows of the same ids: nulls where it has none.

    Args:
        told: rows of some of the documents, in the same order, with their `id`.
        columns: of the documents, `id` among them; all where it is None.

    Raises:
        InputError: it tells of other documents.
    """
    found = 0
    for table in read_row_groups(documents, columns):
        next_ones = told.slice(found, table.num_rows)
        places = pc.index_in(table["id"], next_ones["id"])
        found += len(places) - places.null_count
        yield table.replace_schema_metadata(None), next_ones.take(places)
    if found != len(told):
        raise InputError(f"what is told of the documents of {documents} is told of others: rerun corpus.signatures")


def remove_table_paragraphs(table: pa.Table, cut: pa.ChunkedArray) -> pa.Table:
    """Return documents, shape (rows,), without those of their paragraphs that are listed by their places in `cut`."""
    listed = {row: set(places) for row, places in enumerate(cut.to_pylist()) if places}
    if not listed:
        return table
    texts = table["text"].to_pylist()
    for row, places in listed.items():
        texts[row] = remove_paragraphs(texts[row], places)
    return table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))


def kept_documents_schema(documents: Path, columns: list[str] | None = None) -> pa.Schema:
    """Return the columns of the documents that stay: those of the filtered ones as they are read, and the added ones.

    Of what is read from Parquet the elements of a list have another name than in DEDUPLICATED_SCHEMA, and final files
    say so.
    """
    read = pq.read_schema(documents)
    named = [
        read.field(name) if name in read.names else DEDUPLICATED_SCHEMA.field(name)
        for name in DEDUPLICATED_SCHEMA.names
    ]
    return pa.schema([field for field in named if columns is None or field.name in columns])


def read_kept_documents(documents: Path, deduplicated: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the documents of a unit that stay, a row group at a time, as they are then.

    Args:
        columns: those of DEDUPLICATED_SCHEMA that are wanted; all where it is None.

    Raises:
        InputError: the two files are not of the same documents.
    """
    schema = kept_documents_schema(documents, columns)
    known, kept = read_metadata(documents), read_metadata(deduplicated)
    if [kept[key] for key in ("source", "unit", "documents_in")] != [known["source"], known["unit"], known["rows"]]:
        raise InputError(f"{deduplicated} is not made from {documents}: rerun corpus.deduplicate for that unit")
    read = dict.fromkeys(["id", *(name for name in schema.names if name not in ("cluster", "cluster_size"))])
    for table, told in read_aligned(documents, pq.read_table(deduplicated), list(read)):
        whole = remove_table_paragraphs(table, told["cut"])
        whole = whole.append_column("cluster", pc.coalesce(told["cluster"], table["id"]))
        whole = whole.append_column("cluster_size", told["cluster_size"])
        yield whole.filter(told["id"].is_valid()).select(schema.names).cast(schema)


MAXIMUM_OPEN_FILES = 100  # each holds a batch of rows in memory too


def _read_rows(
    path: Path, names: list[str], told_by: list[str], hash_range: tuple[int, int], where: pc.Expression | None
) -> Iterator[Any]:
    for batch in read_batches([path], hash_range, [*dict.fromkeys([*names, *told_by])]):
        chosen = batch if where is None else batch.filter(where)
        yield from zip(*(chosen.column(name).to_pylist() for name in names), strict=True)


def _write_merged(path: Path, schema: pa.Schema, rows: Iterable[Any]) -> None:
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
    where: pc.Expression | None = None,
    told_by: Iterable[str] = (),
) -> Iterator[Any]:
    """Yield `id_hash`, `id` and some columns of the documents of files, each of which is in that order.

    Where there are more than FILES_OPEN files, so many at a time become a temporary one, and that is read as they were.

    Args:
        hash_range: the least and the greatest `id_hash` that is wanted.
        where: the condition that the wanted documents meet, None for all; `told_by` are the columns that it asks.
    """
    names = ["id_hash", "id", *columns]
    asked = [*told_by]
    read = [*dict.fromkeys([*names, *asked])]
    waiting = sorted(paths)
    with TemporaryDirectory() as folder:
        merged = 0
        while len(waiting) > MAXIMUM_OPEN_FILES:
            some, waiting = waiting[:MAXIMUM_OPEN_FILES], waiting[MAXIMUM_OPEN_FILES:]
            known = pq.read_schema(some[0])
            waiting.append(Path(folder) / f"{merged}.parquet")
            schema = pa.schema([known.field(name) for name in [*read[1:], read[0]]])  # `read_batches` asks the last
            _write_merged(
                waiting[-1], schema, merge(*(_read_rows(path, read, asked, hash_range, where) for path in some))
            )
            for path in some:
                if path.parent == Path(folder):
                    path.unlink()
            merged += 1
        yield from merge(*(_read_rows(path, names, asked, hash_range, where) for path in waiting))


SCORES = ("quality", "perplexity")


def write_scores(
    documents: Path, path: Path, score: str, columns: list[str], compute: Callable[[pa.Table], npt.NDArray[np.float64]]
) -> dict[str, Any]:
    """Write the id and a score of each document of a unit, in their order; return which unit it is, and its documents.

    Args:
        columns: those of the documents that `compute` reads; it returns the scores of a row group, nan for none.
    """
    schema, known = pa.schema([FINAL_SCHEMA.field("id"), FINAL_SCHEMA.field(score)]), read_metadata(documents)
    unit = {key: known[key] for key in ("source", "unit", "documents")}
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in read_row_groups(documents, ["id", *columns]):
            scores = pa.array(compute(table), from_pandas=True)
            writer.write_table(pa.table({"id": table["id"], score: scores}).cast(schema))
        writer.add_key_value_metadata(parquet_metadata(unit))
    return unit


def read_scores(paths: Sequence[Path]) -> list[pa.Table]:
    """Return the scores of the documents of a unit, a table for each file; none where the corpus asks for none."""
    return [pq.read_table(path).replace_schema_metadata(None) for path in paths]


def add_scores(documents: pa.Table, scores: Sequence[pa.Table]) -> pa.Table:
    """Return documents in the columns of FINAL_SCHEMA, each with its scores; null where the corpus asks for none.

    Args:
        documents: some of the unit, with the columns of FINAL_SCHEMA but the scores.
        scores: of all documents of the unit.

    Raises:
        InputError: the scores are of other documents.
    """
    columns = {name: pa.nulls(documents.num_rows, pa.float64()) for name in SCORES}
    for table in scores:
        places = pc.index_in(documents["id"], value_set=table["id"])
        if places.null_count:
            raise InputError("the scores are of other documents: delete them, so that they are computed again")
        columns |= {name: table[name].take(places) for name in table.column_names if name != "id"}
    for name, values in columns.items():
        documents = documents.append_column(FINAL_SCHEMA.field(name), values)
    return documents.select(FINAL_SCHEMA.names)


def format_licenses(declared: str, documents: Mapping[str, int], own: object) -> str:
    """Return the licence that a source declares, or the licences of its documents, the most frequent first.

    Args:
        documents: how many are used, by licence.
        own: whether documents of the source have their own licence: the field that it stands in.
    """
    ranked = sorted(documents.items(), key=lambda item: (-item[1], item[0])) if own else []
    return "; ".join(f"{license} × {number:,}" for license, number in ranked) or declared


def resolve_licenses(batch: pa.RecordBatch, licenses: Mapping[str, str]) -> pa.Array:
    """Return the licence of each document, shape (rows,): its own, or that of its source where it states none.

    Args:
        batch: documents with their `source` and their own `license`, null where they state none.
        licenses: of the sources.
    """
    of_source = [licenses.get(source) for source in batch.column("source").to_pylist()]
    return pc.coalesce(batch.column("license"), pa.array(of_source, pa.string()))
