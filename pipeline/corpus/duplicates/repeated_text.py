"""Finds the lines and passages that kept documents have in common with an earlier one, in bounded memory.

Equal lines or passages stay in one document, as often as they occur there: the first by preferred source, then by the
hash of its id. So the result does not depend on units. Documents with an anchor that occurs twice in the corpus are
read again; the keys of their passages are in temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.documents import BOILERPLATE_LINES, REPEATED_PASSAGES
from pipeline.corpus.duplicates.key_groups import Bits, pair_equal_keys, read_list_column_keys
from pipeline.corpus.duplicates.minhash import read_texts
from pipeline.corpus.duplicates.passage_hashes import Passages, hash_all_word_passages
from pipeline.corpus.duplicates.signature_files import Keys, Numbers, SignedUnit, find_long_text_lines
from pipeline.corpus.settings import DuplicateSelection

SPANS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string()), ("kept", pa.string())])
)
"""Removed parts of a text: first byte and end in UTF-8, the reason, and the document that keeps their first words."""
ORDER_BYTES = 56  # memory for the order of a document, and its first line, anchor and passage
KEPT_BYTES = 8  # for the document that keeps a line or passage
_NONE = -1  # the number of that document if the line or passage stays
Read = Callable[[SignedUnit], tuple[Keys, Numbers]]


class RepeatedText:
    """The lines and passages to remove from the kept documents of a corpus.

    Args:
        units: sorted by document numbers.
        documents: the file of documents by the file of signatures of a unit.
        removed_documents: numbers of documents that lose nothing, and from which nothing is kept.

    Raises:
        InputError: memory_bytes is too small, or a signature does not match its text.
    """

    def __init__(
        self,
        units: list[SignedUnit],
        documents: Mapping[Path, Path],
        settings: DuplicateSelection,
        removed_documents: Numbers,
        memory_bytes: int,
    ) -> None:
        self._units, self._documents, self._settings = units, documents, settings
        self._left_bytes = memory_bytes
        number = sum(unit.rows for unit in units)
        self._reserve(ORDER_BYTES * number)
        self._removed_D = np.zeros(number, dtype=bool)
        self._removed_D[removed_documents] = True
        nothing = np.zeros(number + 1, dtype=np.int64), np.empty(0, dtype=np.int64)
        (self._lines_D, self._line_kept), (self._passages_D, self._passage_kept) = nothing, nothing
        self.counts: dict[str, int] = {}
        if settings.line_characters is None and settings.passage_words is None:
            return
        self._order_D = self._order_documents()
        if settings.line_characters is not None:
            self._lines_D = self._first_records("lines")
            read = self._reader("lines", self._lines_D)
            self._line_kept = self._find_kept(self._lines_D, read, settings.line_documents)
            self.counts["lines_cut"] = int((self._line_kept != _NONE).sum())
        if settings.passage_words is not None:
            self._find_repeated_passages(settings.passage_words)
            self.counts["passages_cut"] = 0
        keeping = (kept[kept != _NONE] for kept in (self._line_kept, self._passage_kept))
        self._numbers_K = np.unique(np.concatenate([*keeping]))
        ids = []
        for unit in units:
            inside = slice(*np.searchsorted(self._numbers_K, [unit.first, unit.first + unit.rows]))
            ids += unit.read(["id"])["id"].take(self._numbers_K[inside] - unit.first).chunks
        self._ids_K = pa.chunked_array(ids, pa.string()).combine_chunks()

    def _reserve(self, needed_bytes: int) -> None:
        if needed_bytes > self._left_bytes:
            raise InputError(
                f"deduplication.memory_bytes leaves {self._left_bytes} for lines and passages, and they need "
                f"{needed_bytes}: raise it by {2 * needed_bytes}"
            )
        self._left_bytes -= needed_bytes

    def _order_documents(self) -> Numbers:
        """Return the place of each document in the order that decides which one keeps a text."""
        tables = [pq.read_table(self._documents[unit.path], columns=["id_hash"]) for unit in self._units]
        hashes = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])["id_hash"].to_numpy()
        ranks = np.repeat([unit.rank for unit in self._units], [unit.rows for unit in self._units])
        order_D = np.empty(len(hashes), dtype=np.int64)
        order_D[np.lexsort((hashes, ranks))] = np.arange(len(hashes))
        return order_D

    def _first_records(self, column: str) -> Numbers:
        """Return the number of the first record of each document, and the number of all records."""
        lists = (unit.read([column])[column] for unit in self._units)
        return np.append(0, np.cumsum(np.concatenate([pc.list_value_length(rows).to_numpy() for rows in lists])))

    def _reader(self, column: str, first_D: Numbers) -> Read:
        def read(unit: SignedUnit) -> tuple[Keys, Numbers]:
            keys = read_list_column_keys(unit, column, self._removed_D)
            return keys, first_D[unit.first] + np.arange(keys.shape[1])

        return read

    def _pair(self, read: Read, records: int, bytes_each: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield records with equal keys, after the memory for their results is reserved."""
        self._reserve((bytes_each + 1) * records)  # the keys are read less than RECORD_BYTES times
        self._left_bytes += records
        return pair_equal_keys(self._units, read, records, self._left_bytes)

    def _find_kept(self, first_D: Numbers, read: Read, least_documents: int = 1) -> Numbers:
        """Return the document that keeps the text of each record, if it is another one and enough documents have it.

        Args:
            first_D: the number of the first record of each document.
        """
        kept = np.full(first_D[-1], _NONE)
        for ones, others in self._pair(read, len(kept), KEPT_BYTES):
            if len(ones) == 0:
                continue
            different = np.unique(ones)
            groups, records = np.append(different, ones), np.append(different, others)
            documents = np.searchsorted(first_D, records, side="right") - 1
            order = np.lexsort((self._order_D[documents], groups))
            groups, records, documents = groups[order], records[order], documents[order]
            begins = np.flatnonzero(np.diff(groups, prepend=_NONE))
            sizes = np.diff(begins, append=len(groups))
            is_new = np.diff(documents, prepend=_NONE) != 0
            is_new[begins] = True
            is_frequent = np.repeat(np.add.reduceat(is_new, begins, dtype=np.int64) >= least_documents, sizes)
            first = np.repeat(documents[begins], sizes)
            is_removed = is_frequent & (documents != first)
            kept[records[is_removed]] = first[is_removed]
        return kept

    def _find_repeated_passages(self, words: int) -> None:
        anchors_D = self._first_records("passages")
        repeated = np.zeros(anchors_D[-1], dtype=bool)
        for ones, others in self._pair(self._reader("passages", anchors_D), len(repeated), 1):
            repeated[ones] = repeated[others] = True
        self._anchors_D, self._repeated_anchors = anchors_D, repeated
        sizes_D = np.zeros(len(self._removed_D), dtype=np.int64)
        with tempfile.TemporaryDirectory() as folder:
            paths = {unit.path: Path(folder) / f"{place}.npy" for place, unit in enumerate(self._units)}
            for unit in self._units:
                keys = [np.empty((2, 0), dtype=np.uint64)]
                for row, text in self._read(unit, self._rows_with(unit, anchors_D, repeated, False)):
                    passages, places = self._candidates(unit, row, text)
                    keys.append(passages.keys_P[:, places])
                    sizes_D[unit.first + row] = len(places)
                np.save(paths[unit.path], np.concatenate(keys, axis=1))
            self._passages_D = np.append(0, np.cumsum(sizes_D))

            def read(unit: SignedUnit) -> tuple[Keys, Numbers]:
                keys = np.load(paths[unit.path])
                return keys, self._passages_D[unit.first] + np.arange(keys.shape[1])

            self._passage_kept = self._find_kept(self._passages_D, read)

    @staticmethod
    def _rows_with(unit: SignedUnit, first_D: Numbers, values: Numbers | Bits, nothing: int) -> Numbers:
        """Return the rows of a unit with a record that has another value than `nothing`."""
        first, end = first_D[unit.first], first_D[unit.first + unit.rows]
        records = first + np.flatnonzero(values[first:end] != nothing)
        return np.unique(np.searchsorted(first_D, records, side="right") - 1) - unit.first

    def _read(self, unit: SignedUnit, rows: Numbers) -> Iterator[tuple[int, str]]:
        return zip(rows.tolist(), read_texts(self._documents[unit.path], rows), strict=True)

    def _check(self, unit: SignedUnit, signed: int, read: int) -> None:
        if signed != read:
            raise InputError(f"{unit.path} does not match {self._documents[unit.path]}: rerun corpus.signatures")

    def _candidates(self, unit: SignedUnit, row: int, text: str) -> tuple[Passages, Numbers]:
        """Return the passages of a document, and the places of those whose anchor occurs twice."""
        passages = hash_all_word_passages(text, self._settings.passage_words or 0)
        anchors = self._repeated_anchors[slice(*self._anchors_D[unit.first + row : unit.first + row + 2])]
        self._check(unit, len(anchors), len(passages.anchors_A))
        return passages, np.flatnonzero(anchors[passages.anchor_P])

    def locate(self, unit: SignedUnit) -> tuple[Numbers, pa.Array]:
        """Return the rows of a unit that lose lines or passages, and what each loses, of the type SPANS."""
        rows = np.union1d(
            self._rows_with(unit, self._lines_D, self._line_kept, _NONE),
            self._rows_with(unit, self._passages_D, self._passage_kept, _NONE),
        )
        read = self._read(unit, rows)
        spans = [[*self._locate_lines(unit, *each), *self._locate_passages(unit, *each)] for each in read]
        return rows, pa.array(spans, SPANS)

    def _locate_lines(self, unit: SignedUnit, row: int, text: str) -> Iterator[dict[str, Any]]:
        if self._settings.line_characters is None:
            return
        kept = self._line_kept[slice(*self._lines_D[unit.first + row : unit.first + row + 2])]
        lines = [*find_long_text_lines(text, self._settings.line_characters)]
        self._check(unit, len(kept), len(lines))
        for place in np.flatnonzero(kept != _NONE).tolist():
            yield self._span(*lines[place][:2], BOILERPLATE_LINES, kept[place])

    def _locate_passages(self, unit: SignedUnit, row: int, text: str) -> Iterator[dict[str, Any]]:
        """Yield the longest parts of a text that consist of repeated passages."""
        kept_C = self._passage_kept[slice(*self._passages_D[unit.first + row : unit.first + row + 2])]
        if np.all(kept_C == _NONE):
            return
        passages, places_C = self._candidates(unit, row, text)
        first_P, kept_P = places_C[kept_C != _NONE], kept_C[kept_C != _NONE]
        words = self._settings.passage_words or 0
        begins = np.flatnonzero(np.diff(first_P, prepend=-1 - words) > words)
        last_P = np.append(begins[1:], len(first_P)) - 1
        for begin, last in zip(begins.tolist(), last_P.tolist(), strict=True):
            start, end = passages.starts_W[first_P[begin]], passages.ends_W[first_P[last] + words - 1]
            self.counts["passages_cut"] += 1
            yield self._span(int(start), int(end), REPEATED_PASSAGES, kept_P[begin])

    def _span(self, start: int, end: int, reason: str, kept: int) -> dict[str, Any]:
        document = self._ids_K[int(np.searchsorted(self._numbers_K, kept))].as_py()
        return {"start": start, "end": end, "reason": reason, "kept": document}
