"""Streams of documents: the deduplicated documents of a unit, a merge of many files, and columns of scores.

Deduplication writes no texts. The file `deduplicated/SOURCE.UNIT.parquet` lists the ids of the kept documents in the
order of the filtered ones, and the paragraphs, lines and passages to remove. Readers apply this list to the filtered
documents. The metadata of the file counts the documents after deduplication.
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
    BOILERPLATE_LINES,
    DEDUPLICATED_SCHEMA,
    DUPLICATE_PARAGRAPHS,
    FINAL_SCHEMA,
    LAST_HASH,
    REPEATED_PASSAGES,
    ROWS_PER_GROUP,
    encode_parquet_metadata,
    make_non_nullable_fields,
    read_batches,
    read_file_metadata,
    read_row_groups,
)

KEPT_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(id=pa.string()),
        pa.field("cluster", pa.string()),  # null: the id of the document itself
        *make_non_nullable_fields(cluster_size=pa.int64()),
        pa.field("cut", pa.list_(pa.int64())),  # null: none
    ]
)

_SPAN_FIELDS = make_non_nullable_fields(start=pa.int64(), end=pa.int64(), reason=pa.string())
SPANS = pa.list_(pa.struct(_SPAN_FIELDS))
"""Lines and passages to remove from a text, the column `spans`: first byte and end in UTF-8, and the reason."""
PARAGRAPH_BREAK = re.compile(r"(\n\s*\n)")
_REASONS = (REPEATED_PASSAGES, BOILERPLATE_LINES, DUPLICATE_PARAGRAPHS)  # a later one has precedence
_WHITE_SPACE = re.compile(rb"\s+")


def remove_paragraphs_from_text(text: str, places: Collection[int]) -> str:
    """Return a text without the paragraphs at these indices and the empty lines after each."""
    pieces = PARAGRAPH_BREAK.split(text)
    kept = [place for place in range(0, len(pieces), 2) if place // 2 not in places]
    return "".join("".join(pieces[place : place + 2]) for place in kept).strip()


def remove_parts(
    text: str, paragraphs: Collection[int], spans: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, int]]:
    """Return a text without the paragraphs at these indices and the words in these spans, and the removed bytes.

    Of the white space around and in removed words, the one with the most line breaks stays, so that other words are not
    joined. A word in several parts counts as paragraph, else as line, else as passage. White space counts with the
    reason of most words.

    Returns:
        The text, and the number of removed bytes by reason; they add up to the difference of the sizes.
    """
    if not spans:
        shorter = remove_paragraphs_from_text(text, paragraphs) if paragraphs else text
        return shorter, {DUPLICATE_PARAGRAPHS: len(text.encode()) - len(shorter.encode())} if paragraphs else {}
    content = text.encode()
    parts = [(_REASONS.index(span["reason"]), span["start"], span["end"]) for span in spans]
    place = 0
    for number, piece in enumerate(PARAGRAPH_BREAK.split(text)):
        start, place = place, place + len(piece.encode())
        if number % 2 == 0 and number // 2 in paragraphs:
            parts.append((_REASONS.index(DUPLICATE_PARAGRAPHS), start, place))
    letters = np.frombuffer(content, dtype=np.uint8)
    reason_at = np.full(len(content), len(_REASONS))
    for reason, start, end in sorted(parts):
        reason_at[start:end] = reason
    reason_at[(letters == 0x20) | ((letters >= 0x09) & (letters <= 0x0D))] = len(_REASONS)
    left, at = [], 0
    for start, end in _join_spans(content, sorted((start, end) for _, start, end in parts)):
        before = at + len(content[at:start].rstrip())
        gaps = _WHITE_SPACE.findall(content, before, end)
        left.append(content[at:before])
        left.append(max(gaps, key=lambda gap: gap.count(b"\n")) if before and end < len(content) else b"")
        at = end
    left.append(content[at:])
    rest = b"".join(left)
    sizes = np.bincount(reason_at, minlength=len(_REASONS))[: len(_REASONS)]
    sizes[np.argmax(sizes)] += len(content) - len(rest) - sizes.sum()  # white space
    return rest.decode(), {reason: int(size) for reason, size in zip(_REASONS, sizes, strict=True) if size}


def _join_spans(content: bytes, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans, each with the white space after it; those without a word between them as one."""
    first, last = 0, -1
    for start, end in spans:
        if start > last >= 0:
            yield first, last
        first, last = start if start > last else first, max(last, end)
        while content[last : last + 1].isspace():
            last += 1
    yield first, last


def read_aligned(
    documents: Path, rows: pa.Table, columns: list[str] | None = None
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield each row group of a file of documents, and the rows of another table with the same ids.

    Args:
        rows: rows about some of the documents, in the same order, with their `id`; other documents get nulls.
        columns: columns of the documents to read, including `id`; None reads all.

    Raises:
        InputError: the rows belong to other documents.
    """
    position = 0
    for table in read_row_groups(documents, columns):
        next_ones = rows.slice(position, table.num_rows)
        places = pc.index_in(table["id"], next_ones["id"])
        position += len(places) - places.null_count
        yield table.replace_schema_metadata(None), next_ones.take(places)
    if position != len(rows):
        raise InputError(f"{documents} and the rows about its documents do not match: rerun corpus.signatures")


def remove_listed_parts(table: pa.Table, listed: pa.Table) -> tuple[pa.Table, dict[int, dict[str, int]]]:
    """Return documents without the parts that rows about them list, and their removed bytes by row and reason.

    Args:
        table: documents, shape (rows,).
        listed: a table of as many rows with the column `cut`, indices of paragraphs, and perhaps `spans`.
    """
    columns = [listed[name].to_pylist() for name in ("cut", "spans") if name in listed.column_names]
    parts = {row: lists for row, lists in enumerate(zip(*columns, strict=True)) if any(lists)}
    if not parts:
        return table, {}
    texts, sizes = table["text"].to_pylist(), {}
    for row, (cut, *spans) in parts.items():
        texts[row], sizes[row] = remove_parts(texts[row], set(cut or ()), (spans and spans[0]) or ())
    return table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string())), sizes


def kept_documents_schema(documents: Path, columns: list[str] | None = None) -> pa.Schema:
    """Return the schema of deduplicated documents: the columns of a file of filtered documents, and the added ones.

    Parquet readers name list elements differently from DEDUPLICATED_SCHEMA; final files keep the name that was read.
    """
    file_schema = pq.read_schema(documents)
    named = [
        file_schema.field(name) if name in file_schema.names else DEDUPLICATED_SCHEMA.field(name)
        for name in DEDUPLICATED_SCHEMA.names
    ]
    return pa.schema([field for field in named if columns is None or field.name in columns])


def read_deduplicated_documents(
    documents: Path, deduplicated: Path, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the deduplicated documents of a unit, a row group at a time.

    Args:
        columns: columns of DEDUPLICATED_SCHEMA to return; None returns all.

    Raises:
        InputError: the two files describe different documents.
    """
    schema = kept_documents_schema(documents, columns)
    metadata, kept_metadata = read_file_metadata(documents), read_file_metadata(deduplicated)
    if [kept_metadata[key] for key in ("source", "unit", "documents_in")] != [
        metadata["source"],
        metadata["unit"],
        metadata["rows"],
    ]:
        raise InputError(f"{deduplicated} is not made from {documents}: rerun corpus.deduplicate for that unit")
    needed_columns = dict.fromkeys(["id", *(name for name in schema.names if name not in ("cluster", "cluster_size"))])
    for table, kept_rows in read_aligned(documents, pq.read_table(deduplicated), list(needed_columns)):
        documents_table, _ = remove_listed_parts(table, kept_rows)
        documents_table = documents_table.append_column("cluster", pc.coalesce(kept_rows["cluster"], table["id"]))
        documents_table = documents_table.append_column("cluster_size", kept_rows["cluster_size"])
        yield documents_table.filter(kept_rows["id"].is_valid()).select(schema.names).cast(schema)


MAXIMUM_OPEN_FILES = 100  # each holds a batch of rows in memory too


def _read_filtered_rows(
    path: Path, names: list[str], filter_columns: list[str], hash_range: tuple[int, int], where: pc.Expression | None
) -> Iterator[Any]:
    for batch in read_batches([path], hash_range, [*dict.fromkeys([*names, *filter_columns])]):
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
    filter_columns: Iterable[str] = (),
) -> Iterator[Any]:
    """Yield `id_hash`, `id` and other columns of documents, merged in the order of `id_hash` and `id`.

    More than MAXIMUM_OPEN_FILES files are first merged in groups into temporary files.

    Args:
        paths: files of documents, each sorted by `id_hash` and `id`.
        hash_range: the smallest and the largest `id_hash` to include.
        where: a filter on the documents; None includes all.
        filter_columns: the columns that `where` reads.
    """
    names = ["id_hash", "id", *columns]
    condition_columns = [*filter_columns]
    all_columns = [*dict.fromkeys([*names, *condition_columns])]
    waiting = sorted(paths)
    with TemporaryDirectory() as folder:
        merged = 0
        while len(waiting) > MAXIMUM_OPEN_FILES:
            some, waiting = waiting[:MAXIMUM_OPEN_FILES], waiting[MAXIMUM_OPEN_FILES:]
            first_schema = pq.read_schema(some[0])
            waiting.append(Path(folder) / f"{merged}.parquet")
            schema = pa.schema(
                [first_schema.field(name) for name in [*all_columns[1:], all_columns[0]]]
            )  # `read_batches` asks the last
            _write_merged(
                waiting[-1],
                schema,
                merge(*(_read_filtered_rows(path, all_columns, condition_columns, hash_range, where) for path in some)),
            )
            for path in some:
                if path.parent == Path(folder):
                    path.unlink()
            merged += 1
        yield from merge(*(_read_filtered_rows(path, names, condition_columns, hash_range, where) for path in waiting))


SCORES = ("quality", "perplexity")


def write_scores(
    documents: Path, path: Path, score: str, columns: list[str], compute: Callable[[pa.Table], npt.NDArray[np.float64]]
) -> dict[str, Any]:
    """Write the id and score of each document of a unit, in order; return the source, unit and number of documents.

    Args:
        columns: the columns of the documents that `compute` reads.
        compute: returns the scores of a row group; NaN is no score.
    """
    schema, metadata = pa.schema([FINAL_SCHEMA.field("id"), FINAL_SCHEMA.field(score)]), read_file_metadata(documents)
    unit = {key: metadata[key] for key in ("source", "unit", "documents")}
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in read_row_groups(documents, ["id", *columns]):
            scores = pa.array(compute(table), from_pandas=True)
            writer.write_table(pa.table({"id": table["id"], score: scores}).cast(schema))
        writer.add_key_value_metadata(encode_parquet_metadata(unit))
    return unit


def read_scores(paths: Sequence[Path], classifiers: Sequence[str] = ()) -> list[pa.Table]:
    """Return the scores of the documents of a unit, one table per file.

    Args:
        classifiers: names of the columns of the last files, which corpus.classify writes for any name.
    """
    names = [None] * (len(paths) - len(classifiers)) + [*classifiers]
    tables = [pq.read_table(path).replace_schema_metadata(None) for path in paths]
    return [table.rename_columns(["id", name]) if name else table for name, table in zip(names, tables, strict=True)]


def add_scores(documents: pa.Table, scores: Sequence[pa.Table]) -> pa.Table:
    """Return documents in the columns of FINAL_SCHEMA with their scores; a missing score is null.

    Scores of other names follow `perplexity`.

    Args:
        documents: documents of the unit, with the columns of FINAL_SCHEMA except the scores.
        scores: scores of all documents of the unit.

    Raises:
        InputError: the scores belong to other documents.
    """
    columns = {name: pa.nulls(documents.num_rows, pa.float64()) for name in SCORES}
    for table in scores:
        places = pc.index_in(documents["id"], value_set=table["id"])
        if places.null_count:
            raise InputError("the scores belong to other documents: delete them to compute them again")
        columns |= {name: table[name].take(places) for name in table.column_names if name != "id"}
    for name, values in columns.items():
        documents = documents.append_column(pa.field(name, pa.float64()), values)
    *names, last = FINAL_SCHEMA.names
    return documents.select([*names, *(name for name in columns if name not in SCORES), last])


def format_source_licenses(declared: str, documents: Mapping[str, int], own: object) -> str:
    """Return the license that a source declares, or the licenses of its documents, the most frequent first.

    Args:
        documents: number of used documents by license.
        own: the field with the documents' own licenses; falsy if they have none.
    """
    ranked = sorted(documents.items(), key=lambda item: (-item[1], item[0])) if own else []
    return "; ".join(f"{license} × {number:,}" for license, number in ranked) or declared


def resolve_licenses(batch: pa.RecordBatch, licenses: Mapping[str, str]) -> pa.Array:
    """Return the license of each document, shape (rows,): its own, or the license of its source.

    Args:
        batch: documents with `source` and their own `license`, which may be null.
        licenses: the license of each source.
    """
    of_source = [licenses.get(source) for source in batch.column("source").to_pylist()]
    return pc.coalesce(batch.column("license"), pa.array(of_source, pa.string()))
