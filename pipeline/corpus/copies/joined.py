"""Which documents are joined because they have an equal key, of all their keys or of a share of these, and its file."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.copies.groups import ALL_KEYS, Groups, equal_pairs
from pipeline.corpus.copies.signed import CONTENT, Keys, Numbers, SignedUnit, band_columns
from pipeline.corpus.settings import Comparison

DOCUMENT_BYTES = 32  # the parent and root of a document, its number and the size of its cluster
KEY_BYTES = 16  # the least that is left for a document's key, so that the keys are compared in a few parts at most


def afford(settings: Comparison, documents: int, needed_bytes: int) -> int:
    """Return the bytes of memory that are left to compare keys.

    Raises:
        InputError: the documents need more than the configuration allows.
    """
    least_bytes = needed_bytes + documents * KEY_BYTES
    if least_bytes > settings.memory_bytes:
        raise InputError(
            f"deduplication.memory_bytes is {settings.memory_bytes}, and {documents} documents need {least_bytes}: "
            f"raise it to {2 * least_bytes}"
        )
    return settings.memory_bytes - needed_bytes


def _document_keys(unit: SignedUnit, columns: list[str]) -> tuple[Keys, Numbers]:
    return unit.keys(columns), np.arange(unit.numbers.start, unit.numbers.stop)


class Signed:
    """The signatures of the documents of a corpus, and of reserved ones, whose numbers follow."""

    def __init__(self, units: list[SignedUnit], reserved: list[SignedUnit], settings: Comparison) -> None:
        self.units, self.reserved = units, reserved
        self.documents = sum(unit.rows for unit in units)
        self.total = self.documents + sum(unit.rows for unit in reserved)
        self._exact = settings.exact
        with_content = settings.exact or bool(reserved)
        self._kinds = [CONTENT] * with_content + [[name] for name in band_columns(settings)]

    def joined(self, memory_bytes: int, share: int = 0, shares: int = 1) -> Groups:
        """Return which documents have an equal key, of one of so many equal shares of all keys.

        The shares are cut from a line on which each kind of key, the content and the bands, follows the one before it.
        What has the text of a reserved document is joined to it, also where the corpus keeps exact copies.
        """
        groups = Groups(self.total)
        first, end = (place * len(self._kinds) * ALL_KEYS // shares for place in (share, share + 1))
        for place, columns in enumerate(self._kinds):
            span = (max(first - place * ALL_KEYS, 0), min(end - place * ALL_KEYS, ALL_KEYS))
            keys = partial(_document_keys, columns=columns)
            # Of equal keys the first is paired with each of the others, so the reserved ones come first.
            for ones, others in equal_pairs([*self.reserved, *self.units], keys, self.total, memory_bytes, span):
                wanted = slice(None) if self._exact or columns != CONTENT else ones >= self.documents
                groups.join(ones[wanted], others[wanted])
        return groups

    def _sha256(self) -> str:
        """Return a hash of what the numbers of the documents and the shares of the keys depend on."""
        units = [[(unit.source, unit.unit, unit.rows) for unit in some] for some in (self.units, self.reserved)]
        return hashlib.sha256(json.dumps([units, self._kinds, self._exact]).encode()).hexdigest()

    def write(self, path: Path, groups: Groups, share: int, shares: int) -> int:
        """Write each document that is joined to one with a smaller number, and that; return how many there are."""
        roots = groups.roots()
        documents = np.flatnonzero(roots != np.arange(len(roots)))
        known = {"share": share, "shares": shares, "of": self._sha256()}
        pairs = pa.table({"document": documents, "first": roots[documents]})
        pairs = pairs.replace_schema_metadata({"polder": json.dumps(known, sort_keys=True)})
        encodings = dict.fromkeys(pairs.column_names, "DELTA_BINARY_PACKED")
        pq.write_table(pairs, path, compression="zstd", use_dictionary=False, column_encoding=encodings)
        return len(pairs)

    def read(self, paths: list[Path]) -> Groups:
        """Return which documents are joined by all shares, each of which was written to one of the files.

        Raises:
            InputError: a file is of other documents or of another division, or one is missing.
        """
        groups = Groups(self.total)
        sha256 = self._sha256()
        for share, path in enumerate(paths):
            with pq.ParquetFile(path) as file:
                known = json.loads(file.metadata.metadata[b"polder"])
                if known != {"share": share, "shares": len(paths), "of": sha256}:
                    raise InputError(
                        f"{path} is not share {share} of {len(paths)} of these keys: rerun corpus.equal_keys"
                    )
                for rows in file.iter_batches():
                    groups.join(rows["first"].to_numpy(), rows["document"].to_numpy())
        return groups
