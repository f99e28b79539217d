"""Sample the documents that a tokenizer is trained or measured on: those of least `id_hash`, up to a number of bytes.

They follow from the ids alone, so that neither the order of files nor their number nor that of the workers changes
them, and a document that comes or goes changes little else. Files are read one after another, in ranges of `id_hash`,
no further than the sample needs; of a document only its id, source, language and size are kept.
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

FIRST_DOCUMENTS = 4096  # are read at first; each further range holds as many as all before it
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
    """The rows of the chosen documents, columns as in ROW, in the order of `id_hash` and `id`; `languages` were met."""

    rows: pa.Table
    languages: frozenset[str]

    def describe(self) -> dict[str, Any]:
        """Return documents and bytes by source and language, and the sha256 of the ids, one a line, in their order."""
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
        """Yield `id`, `language` and `text` of the chosen documents, file by file; reads no further than the last."""
        hashes = self.rows["id_hash"].to_numpy()
        languages = pc.unique(self.rows["language"])
        if not len(hashes):
            return
        for batch in read_batches(sorted(documents), (0, int(hashes[-1])), ["id_hash", "id", "language", "text"]):
            values = batch["id_hash"].to_numpy()
            found = pa.array(hashes[np.searchsorted(hashes, values)] == values)
            yield from batch.filter(pc.and_(found, pc.is_in(batch["language"], languages))).to_pylist()


def draw_sample(
    documents: list[Path],
    is_wanted: Callable[[str, str], bool],
    sample_bytes: int,
    *,
    shares: Mapping[str, float] | None = None,
    each_language: bool = False,
    most_documents: float = np.inf,
) -> DocumentSample:
    """Return the wanted documents of least `id_hash` whose texts together take at most `sample_bytes`, or the first.

    Args:
        is_wanted: whether a document of this cluster and language may be chosen.
        shares: what of `sample_bytes` is of which language, of any sum; no other language may be wanted. Where a
            language has less text than its share, all are made smaller alike.
        each_language: `sample_bytes` are of each language.
        most_documents: about how many documents are looked at; further ones are not chosen.
    """
    whole = sum(pq.read_metadata(path).num_rows for path in documents)
    by_language = shares is not None or each_language
    total = sum(shares.values()) if shares is not None else 1.0
    limits = {language: sample_bytes * share / total for language, share in (shares or {}).items()}
    parts = [SAMPLE_SCHEMA.empty_table()]
    spent: Counter[str] = Counter()
    met: set[str] = set()
    seen, until = 0, min(FIRST_DOCUMENTS, whole)
    while seen < min(whole, most_documents):
        # A range of hashes holds about its share of the documents; the last range ends with the last hash.
        first, last = (LAST_HASH if number == whole else (number << 64) // whole for number in (seen, until))
        rows = _read_wanted(documents, (first + (seen > 0), last), is_wanted, met)
        full = {group for group, size in spent.items() if size > limits.get(group, sample_bytes)}
        if by_language:
            rows = rows.filter(pc.invert(pc.is_in(rows["language"], pa.array(sorted(full), pa.string()))))
        parts.append(rows)
        for group, inside in _limit_groups(rows, by_language):
            spent[group] += int(rows["bytes"].to_numpy()[inside].sum())
        groups = limits or (met if each_language else {""})
        if all(spent[group] > limits.get(group, sample_bytes) for group in groups):
            break
        seen, until = until, min(2 * until, whole)
    rows = pa.concat_tables(parts)
    if shares is not None:
        scale = min(1.0, *(spent[language] / limit for language, limit in limits.items() if limit))
        limits = {language: limit * scale for language, limit in limits.items()}
    keep = np.zeros(rows.num_rows, dtype=np.bool_)
    for group, inside in _limit_groups(rows, by_language):
        keep[inside] = np.cumsum(rows["bytes"].to_numpy()[inside]) <= limits.get(group, sample_bytes)
        keep[inside[:1]] = True
    return DocumentSample(rows.filter(pa.array(keep)), frozenset(met))


def _limit_groups(rows: pa.Table, by_language: bool) -> Iterator[tuple[str, Any]]:
    """Yield the name and the places of each group of rows that has a limit of its own: all, or those of a language."""
    if not by_language:
        yield "", np.arange(rows.num_rows)
        return
    for language in sorted(pc.unique(rows["language"]).to_pylist()):
        yield language, np.flatnonzero(pc.equal(rows["language"], language).to_numpy(zero_copy_only=False))


def _read_wanted(
    documents: list[Path], hash_range: tuple[int, int], is_wanted: Callable[[str, str], bool], met: set[str]
) -> pa.Table:
    """Return the rows of the wanted documents of a range, in order, and add the languages of all to `met`."""
    batches = []
    for batch in read_batches(documents, hash_range, ["id_hash", "id", "source", "language", "text", "cluster"]):
        met.update(pc.unique(batch["language"]).to_pylist())
        columns = [*batch.columns[:-2], pc.binary_length(batch["text"]).cast(pa.int64())]
        named = zip(batch["cluster"].to_pylist(), batch["language"].to_pylist(), strict=True)
        wanted = pa.array([is_wanted(cluster, language) for cluster, language in named], pa.bool_())
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SAMPLE_SCHEMA).filter(wanted))
    rows = pa.Table.from_batches(batches, SAMPLE_SCHEMA)
    return rows.sort_by([("id_hash", "ascending"), ("id", "ascending")])
