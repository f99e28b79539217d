"""The different n-grams of documents that may be copies, as sorted hashes: their texts are read again, unit by unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.copies.shingles import Hashes, Shingles
from pipeline.corpus.copies.signed import Numbers, SignedUnit

ROWS_AT_ONCE = 100


class NgramSets:
    """Reads the n-grams of documents by their numbers.

    Args:
        units: in the order of their numbers.
        documents: by the signatures of a unit the file of its documents.
        length: of an n-gram, in words.
    """

    def __init__(self, units: list[SignedUnit], documents: Mapping[Path, Path], length: int) -> None:
        self._units = units
        self._documents = documents
        self._shingles = Shingles(length)

    def fill(self, numbers_P: Numbers, ngrams_P: Numbers, hashes: Hashes, starts_P: Numbers) -> Numbers:
        """Write the sets of the documents of these numbers into an array, each from its place on; return their sizes.

        Raises:
            InputError: a text has not as many n-grams as its signature says.
        """
        sizes_P = np.zeros(len(numbers_P), dtype=np.int64)
        order = np.argsort(numbers_P)
        ordered = numbers_P[order]
        for unit in self._units:
            inside = slice(*np.searchsorted(ordered, [unit.numbers.start, unit.numbers.stop]))
            rows = ordered[inside] - unit.first
            for place, text in zip(order[inside].tolist(), self._texts(unit, rows), strict=True):
                found = self._shingles.of(text)
                if len(found) != ngrams_P[place]:
                    raise InputError(f"{unit.path} does not sign {self._documents[unit.path]}: rerun corpus.signatures")
                different = np.unique(found)
                sizes_P[place] = len(different)
                hashes[starts_P[place] : starts_P[place] + len(different)] = different
        return sizes_P

    def _texts(self, unit: SignedUnit, rows: Numbers) -> Iterator[str]:
        """Yield the texts of some rows of a unit, which ascend."""
        if len(rows) == 0:
            return
        with pq.ParquetFile(self._documents[unit.path]) as file:
            first = 0
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if not np.any((rows >= first) & (rows < first + size)):
                    first += size
                    continue
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=["text"]):
                    inside = slice(*np.searchsorted(rows, [first, first + len(batch)]))
                    yield from batch.column("text").take(pa.array(rows[inside] - first)).to_pylist()
                    first += len(batch)
