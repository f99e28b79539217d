"""Samples documents for training or measuring a tokenizer: those with the smallest `id_hash`, up to a number of bytes.

The sample depends on the ids only, not on the order and number of files or workers. A new or removed document changes
little else. Files are read in ranges of `id_hash`, only as far as needed. Only id, source, language and size of a
document are kept in memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.corpus.documents import LAST_HASH, read_batches

FIRST_DOCUMENTS = 4096  # in the first range; each further range doubles the documents read
SAMPLE_SCHEMA = pa.schema(
    [
        ("id_hash", pa.uint64()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("language", pa.string()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class DocumentSample:
    """The chosen documents with the columns of SAMPLE_SCHEMA, sorted by `id_hash` and `id`, and all languages seen."""

    rows: pa.Table
    languages: frozenset[str]

    def describe(self) -> dict[str, Any]:
        """Return documents and bytes by source and language, and the sha256 of the ids, one per line, in order."""
        grouped = self.rows.group_by(["source", "language"]).aggregate([("bytes", "count"), ("bytes", "sum")])
        sources: dict[str, dict[str, dict[str, int]]] = {}
        for row in grouped.sort_by([("source", "ascending"), ("language", "ascending")]).to_pylist():
            counted = {"documents": row["bytes_count"], "bytes": row["bytes_sum"]}
            sources.setdefault(row["source"], {})[row["language"]] = counted
        ids = hashlib.sha256()
        for name in self.rows["id"]:
            ids.update(f"{name.as_py()}\n".encode())
        return {"ids_sha256": ids.hexdigest(), "sources": sources}

    def texts(self, documents: list[Path]) -> Iterator[dict[str, Any]]:
        """Yield `id`, `language` and `text` of the chosen documents, file by file, up to the last hash."""
        hashes = self.rows["id_hash"].to_numpy()
        languages = pc.unique(self.rows["language"])
        if not len(hashes):
            return
        for batch in read_batches(sorted(documents), (0, int(hashes[-1])), ["id_hash", "id", "language", "text"]):
            values = batch["id_hash"].to_numpy()
            is_chosen = pa.array(hashes[np.searchsorted(hashes, values)] == values)
            yield from batch.filter(pc.and_(is_chosen, pc.is_in(batch["language"], languages))).to_pylist()


def draw_sample(
    documents: list[Path],
    is_wanted: Callable[[str, str], bool],
    sample_bytes: int,
    *,
    shares: Mapping[str, float] | None = None,
    each_language: bool = False,
    most_documents: float = np.inf,
) -> DocumentSample:
    """Return the eligible documents with the smallest `id_hash`, up to `sample_bytes` of text, and at least one.

    Args:
        is_wanted: returns whether a document of a cluster and language is eligible.
        shares: shares of `sample_bytes` by language, of any sum; other languages must not be eligible. If a language
            has less text than its share, all languages are reduced proportionally.
        each_language: whether `sample_bytes` applies to each language.
        most_documents: about the number of documents to search.
    """
    available = sum(pq.read_metadata(path).num_rows for path in documents)
    by_language = shares is not None or each_language
    total = sum(shares.values()) if shares is not None else 1.0
    limits = {language: sample_bytes * share / total for language, share in (shares or {}).items()}
    parts = [SAMPLE_SCHEMA.empty_table()]
    spent: Counter[str] = Counter()
    met: set[str] = set()
    seen, until = 0, min(FIRST_DOCUMENTS, available)
    while seen < min(available, most_documents):
        # A range of hashes contains about its share of the documents; the last range ends at the last hash.
        first, last = (LAST_HASH if number == available else (number << 64) // available for number in (seen, until))
        rows = _read_wanted_rows(documents, (first + (seen > 0), last), is_wanted, met)
        full = {group for group, size in spent.items() if size > limits.get(group, sample_bytes)}
        if by_language:
            rows = rows.filter(pc.invert(pc.is_in(rows["language"], pa.array(sorted(full), pa.string()))))
        parts.append(rows)
        for group, inside in _group_by_limit(rows, by_language):
            spent[group] += int(rows["bytes"].to_numpy()[inside].sum())
        groups = limits or (met if each_language else {""})
        if all(spent[group] > limits.get(group, sample_bytes) for group in groups):
            break
        seen, until = until, min(2 * until, available)
    rows = pa.concat_tables(parts)
    if shares is not None:
        scale = min(1.0, *(spent[language] / limit for language, limit in limits.items() if limit))
        limits = {language: limit * scale for language, limit in limits.items()}
    keep = np.zeros(rows.num_rows, dtype=np.bool_)
    for group, inside in _group_by_limit(rows, by_language):
        keep[inside] = np.cumsum(rows["bytes"].to_numpy()[inside]) <= limits.get(group, sample_bytes)
        keep[inside[:1]] = True
    return DocumentSample(rows.filter(pa.array(keep)), frozenset(met))


def _group_by_limit(rows: pa.Table, by_language: bool) -> Iterator[tuple[str, Any]]:
    """Yield name and indices of each group of rows with its own limit: all rows, or the rows of each language."""
    if not by_language:
        yield "", np.arange(rows.num_rows)
        return
    for language in sorted(pc.unique(rows["language"]).to_pylist()):
        yield language, np.flatnonzero(pc.equal(rows["language"], language).to_numpy(zero_copy_only=False))


def _read_wanted_rows(
    documents: list[Path], hash_range: tuple[int, int], is_wanted: Callable[[str, str], bool], met: set[str]
) -> pa.Table:
    batches = []
    for batch in read_batches(documents, hash_range, ["id_hash", "id", "source", "language", "text", "cluster"]):
        met.update(pc.unique(batch["language"]).to_pylist())
        columns = [*batch.columns[:-2], pc.binary_length(batch["text"]).cast(pa.int64())]
        named = zip(batch["cluster"].to_pylist(), batch["language"].to_pylist(), strict=True)
        wanted = pa.array([is_wanted(cluster, language) for cluster, language in named], pa.bool_())
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SAMPLE_SCHEMA).filter(wanted))
    rows = pa.Table.from_batches(batches, SAMPLE_SCHEMA)
    return rows.sort_by([("id_hash", "ascending"), ("id", "ascending")])
