"""Clusters duplicate documents of a corpus and chooses which ones to keep.

Two documents are joined if their texts have the same hash, or if all hashes of one MinHash band agree. Connected
documents form a cluster. Its documents are ranked by preferred source, then length without repeated white space, then
id. The best one is kept. Each next document is removed if it is similar to a kept one, and kept otherwise: the ends
of a chain of revisions can differ. The result has, for each document of a cluster, the kept document that represents
it, their similarity, and the number of documents represented. On request it also lists repeated paragraphs, in the
order of preferred sources, source, unit and row, and repeated lines and passages. A cluster with a reserved document is
removed completely.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.documents import EXACT_DUPLICATE, NEAR_DUPLICATE, OPT_OUT, make_non_nullable_fields, write_table
from pipeline.corpus.duplicates.key_groups import (
    Bits,
    SignedCorpus,
    find_repeated_paragraphs,
    locate_repeated_paragraphs,
    memory_left_for_keys,
)
from pipeline.corpus.duplicates.signature_files import CONTENT, DOCUMENT_BYTES, Keys, Numbers, SignedUnit
from pipeline.corpus.settings import DuplicateSelection, FindDuplicatesSettings

DUPLICATE_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(id=pa.string()),
        pa.field("reason", pa.string()),
        *make_non_nullable_fields(value=pa.string(), cluster=pa.string(), cluster_size=pa.int64()),
        pa.field("jaccard", pa.float64()),
        *make_non_nullable_fields(cut=pa.list_(pa.int64())),
    ]
)
MEMBER_BYTES = 260  # memory for a document that has duplicates, besides its id


class DuplicateClusters:
    """The M documents that have duplicates, in the order of their numbers, and the kept document of each."""

    def __init__(self, units: list[SignedUnit], roots: Numbers, minhash: bool) -> None:
        self._units = units
        sizes = np.bincount(roots, minlength=len(roots))
        self.numbers_M = np.flatnonzero(sizes[roots] > 1)
        del sizes
        roots_M = roots[self.numbers_M]
        tables, ranks = [], []
        for unit in units:
            columns = ["id", "characters", *CONTENT, *["ngrams"] * minhash]
            tables.append(unit.read(columns).take(self.clustered_document_numbers(unit) - unit.first))
            ranks.append(np.full(len(tables[-1]), unit.rank))
        table = pa.concat_tables(tables)
        del tables
        self.ids_M = table["id"].cast(pa.large_string()).combine_chunks()
        place_M = np.empty(len(table), dtype=np.int64)
        place_M[pc.array_sort_indices(self.ids_M)] = np.arange(len(table))
        self._order = np.lexsort((place_M, -table["characters"].to_numpy(), np.concatenate(ranks), roots_M))
        starts = np.flatnonzero(np.diff(roots_M[self._order], prepend=-1))
        repeated = np.diff(starts, append=len(self._order))
        self._cluster_O = np.repeat(np.arange(len(starts)), repeated)
        self.first_M = self._in_document_order(self._order[np.repeat(starts, repeated)])
        self.kept_M = self.first_M
        self.jaccard_M = np.full(len(table), np.nan)
        self._contents = [table[name].to_numpy() for name in CONTENT]
        self._table = table.drop_columns(["id"])

    def _in_document_order(self, values_O: Any) -> Any:
        """Return values in the order of the documents; the given order is by cluster and rank in the cluster."""
        values_M = np.empty_like(values_O)
        values_M[self._order] = values_O
        return values_M

    def keep_dissimilar(self, documents: dict[Path, Path], settings: DuplicateSelection, memory_bytes: int) -> None:
        """Also keep documents that are not similar to a kept document of their cluster; compare equal texts once.

        Args:
            documents: the file of documents by the file of signatures of a unit.
        """
        contents_O = [column[self._order] for column in self._contents]
        by_text = np.lexsort((*contents_O, self._cluster_O))
        equal = np.logical_and.reduce([np.diff(key[by_text]) == 0 for key in (*contents_O, self._cluster_O)])
        begins = np.maximum.accumulate(np.where(np.append(False, equal), 0, np.arange(len(by_text))))
        same_text_O = np.empty_like(by_text)
        same_text_O[by_text] = by_text[begins]
        differs_O = same_text_O == np.arange(len(by_text))
        texts = np.bincount(self._cluster_O[differs_O])
        compared_D = np.flatnonzero(differs_O & (texts[self._cluster_O] > 1))
        if len(compared_D) == 0:
            return
        from pipeline.corpus.duplicates.minhash import NgramSetReader, find_similar_kept_texts  # they load a compiler

        sets = NgramSetReader(self._units, documents, settings.ngram)
        numbers_D = self.numbers_M[self._order[compared_D]]
        ngrams_D = self._table["ngrams"].to_numpy()[self._order[compared_D]]

        def read_ngram_sets(places_P: Numbers, hashes: Keys, starts_P: Numbers) -> Numbers:
            return sets.read_sets(numbers_D[places_P], ngrams_D[places_P], hashes, starts_P)

        least = settings.minimum_similarity
        kept_D, jaccard_D = find_similar_kept_texts(
            self._cluster_O[compared_D], ngrams_D, read_ngram_sets, least, memory_bytes
        )
        kept_O, jaccard_O = same_text_O.copy(), np.ones(len(by_text))
        kept_O[compared_D], jaccard_O[compared_D] = compared_D[kept_D], jaccard_D
        self.kept_M = self._in_document_order(self._order[kept_O[same_text_O]])
        self.jaccard_M = self._in_document_order(jaccard_O[same_text_O])

    @cached_property
    def same_text_M(self) -> Bits:
        """Whether each document has the same text as its kept document."""
        return np.asarray(np.logical_and.reduce([column == column[self.kept_M] for column in self._contents]))

    @cached_property
    def removed_M(self) -> Bits:
        return np.asarray(self.kept_M != np.arange(len(self.kept_M)))

    @cached_property
    def cluster_sizes_M(self) -> Numbers:
        """The number of documents that the kept document of each represents, itself included."""
        return np.asarray(np.bincount(self.kept_M, minlength=len(self.kept_M))[self.kept_M])

    def clustered_document_numbers(self, unit: SignedUnit) -> Numbers:
        """Return the numbers of the documents with duplicates in a unit."""
        return self.numbers_M[
            slice(*np.searchsorted(self.numbers_M, [unit.corpus_document_range.start, unit.corpus_document_range.stop]))
        ]


class OptedOutClusters:
    """The documents that are removed because their cluster contains a reserved one, with its smallest id.

    Args:
        roots: the number of the cluster of each document, the reserved ones last.
    """

    def __init__(self, signed: SignedCorpus, roots: Numbers) -> None:
        documents = signed.documents
        read = [unit.read(["id"])["id"].cast(pa.large_string()).combine_chunks() for unit in signed.reserved]
        ids_R = pa.concat_arrays([*read, pa.array([], pa.large_string())])
        order_R = pc.array_sort_indices(ids_R).to_numpy()
        clusters, first = np.unique(roots[documents:][order_R], return_index=True)
        holds = np.zeros(len(roots), dtype=bool)
        holds[clusters] = True
        self.numbers_T = np.flatnonzero(holds[roots[:documents]])
        self._ids_T = ids_R.take(order_R[first[np.searchsorted(clusters, roots[self.numbers_T])]])

    def removed_rows_in_unit(self, unit: SignedUnit) -> tuple[Numbers, pa.Array]:
        """Return the rows of the removed documents in a unit, and the ids of the reserved ones."""
        inside = slice(
            *np.searchsorted(self.numbers_T, [unit.corpus_document_range.start, unit.corpus_document_range.stop])
        )
        return self.numbers_T[inside] - unit.first, self._ids_T[inside]


def _duplicate_rows(
    unit: SignedUnit,
    clusters: DuplicateClusters,
    repeated: Bits,
    taken: OptedOutClusters,
    spans: tuple[Numbers, pa.Array] | None,
) -> pa.Table:
    """Return the documents of a unit that have duplicates, lose parts or copy a reserved one, in order."""
    members = clusters.clustered_document_numbers(unit)
    indices = np.searchsorted(clusters.numbers_M, members)
    cut_rows, cut_places = locate_repeated_paragraphs(unit, repeated)
    taken_rows, taken_ids = taken.removed_rows_in_unit(unit)
    span_rows, span_lists = spans or (np.empty(0, dtype=np.int64), None)
    rows = np.unique(np.concatenate([members - unit.first, cut_rows, taken_rows, span_rows]))
    at, taken_at = (np.searchsorted(rows, some) for some in (members - unit.first, taken_rows))
    own_ids = unit.read(["id"])["id"].take(rows).cast(pa.large_string()).combine_chunks()
    source, reasons, sizes = np.arange(len(rows)), np.full(len(rows), None), np.ones(len(rows), dtype=np.int64)
    jaccard = np.full(len(rows), np.nan)
    source[at] = np.arange(len(at)) + len(rows)
    cluster = pa.concat_arrays([own_ids, clusters.ids_M.take(clusters.first_M[indices])]).take(source)
    source[taken_at] = np.arange(len(taken_at)) + len(rows) + len(at)
    reasons[taken_at] = OPT_OUT
    names = np.where(clusters.same_text_M[indices], EXACT_DUPLICATE, NEAR_DUPLICATE)
    removed = clusters.removed_M[indices]
    reasons[at[removed]] = names[removed]
    sizes[at] = clusters.cluster_sizes_M[indices]
    jaccard[at[removed]] = np.where(clusters.same_text_M[indices], np.nan, clusters.jaccard_M[indices])[removed]
    kept = pa.concat_arrays([own_ids, clusters.ids_M.take(clusters.kept_M[indices]), taken_ids]).take(source)
    cut = pa.ListArray.from_arrays(np.searchsorted(cut_rows, np.append(rows, unit.rows)), cut_places)
    columns = [own_ids, pa.array(reasons, pa.string()), kept, cluster, sizes, pa.array(jaccard, from_pandas=True), cut]
    table = pa.table(columns, names=DUPLICATE_SCHEMA.names).cast(DUPLICATE_SCHEMA)
    if span_lists is None:
        return table
    return table.append_column("spans", span_lists.take(pc.index_in(pa.array(rows), pa.array(span_rows))))


def run(
    settings: FindDuplicatesSettings,
    *,
    signatures: list[Path],
    documents: list[Path],
    reserved: list[Path],
    pairs: list[Path],
    duplicates: Path,
) -> dict[str, Any]:
    """Write, for each document with duplicates, the removal reason, the kept document, their similarity, and cuts.

    The reason of a kept document is null. A document in a cluster with a reserved one gets the reason `opt_out` and the
    id of the reserved one. With `line_characters` or `passage_words`, the column `spans` lists what they remove.
    Reserved documents do not change other clusters. Each unit has a file, even without rows.
    Its bytes depend only on the clusters of its own documents, so later steps see which units changed.

    Args:
        documents: the files of the signed documents, in the order of `signatures`; candidates are read again.
        reserved: signatures of documents on opt-out lists, which are not part of the corpus.
        pairs: results of `corpus.equal_keys` for all shares; if empty, the keys are compared here.

    Raises:
        InputError: the signatures were made with other settings or of other documents, the pairs belong to other
            signatures, or memory_bytes is too small.
    """
    section = settings.deduplication
    signed = SignedCorpus(signatures, reserved, section, section.prefer)
    units = signed.units
    left_bytes = memory_left_for_keys(section, signed.total, signed.total * DOCUMENT_BYTES)
    roots = (signed.read_document_sets(pairs) if pairs else signed.group_equal_keys(left_bytes)).roots()
    reserved_clusters = OptedOutClusters(signed, roots)
    roots = roots[: signed.documents]
    roots[reserved_clusters.numbers_T] = reserved_clusters.numbers_T
    sizes = np.bincount(roots)
    id_bytes = sum(unit.id_bytes for unit in [*units, *signed.reserved])
    members = int(sizes[sizes > 1].sum()) + len(reserved_clusters.numbers_T)
    member_bytes = members * MEMBER_BYTES + 2 * id_bytes * members // max(signed.total, 1)
    left_bytes = memory_left_for_keys(section, signed.total, signed.total * DOCUMENT_BYTES + member_bytes)
    clusters = DuplicateClusters(units, roots, section.minhash)
    del roots
    if section.minhash and section.minimum_similarity:
        clusters.keep_dissimilar(dict(zip(signatures, documents, strict=True)), section, left_bytes)
    removed = np.concatenate([clusters.numbers_M[clusters.removed_M], reserved_clusters.numbers_T])
    repeated = find_repeated_paragraphs(units, removed, left_bytes)
    repeated_text = None
    if section.line_characters is not None or section.passage_words is not None:
        from pipeline.corpus.duplicates.repeated_text import RepeatedText  # loads a compiler

        files = dict(zip(signatures, documents, strict=True))
        repeated_text = RepeatedText(units, files, section, removed, left_bytes - len(repeated))
    duplicates.mkdir()
    for unit in units:
        metadata = {"source": unit.source, "unit": unit.unit, "documents": unit.rows}
        path = duplicates / f"{unit.source}.{unit.unit}.parquet"
        spans = repeated_text.locate(unit) if repeated_text else None
        write_table(path, _duplicate_rows(unit, clusters, repeated, reserved_clusters, spans), metadata)
    exact = int((clusters.removed_M & clusters.same_text_M).sum())
    counts = {
        "documents": signed.documents,
        "exact_duplicate": exact,
        "near_duplicate": int(clusters.removed_M.sum()) - exact,
        "opt_out": len(reserved_clusters.numbers_T),
        "paragraphs_cut": int(repeated.sum()),
        **(repeated_text.counts if repeated_text else {}),
    }
    print(", ".join(f"{key}: {number}" for key, number in counts.items()), flush=True)
    return counts
