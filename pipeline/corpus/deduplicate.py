"""Finds the documents of a corpus that are copies of a better one: the longest, not counting
repeated white space, and of equally long ones the first id.

Documents are joined where their texts have the same hash, or where all hashes of one MinHash bucket agree, and what is
joined to the same document is one group.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets

from pipeline.corpus.documents import read_metadata
from pipeline.corpus.execute import execute
from pipeline.corpus.minhash import configuration
from pipeline.corpus.settings import DeduplicateSettings, Deduplication
from pipeline.corpus.signatures import INDEX
from pipeline.errors import InputError

DUPLICATE_SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "reason", "value")])
_PAIR = struct.Struct("<4I")


class Groups:
    """Disjoint sets of the numbers 0 … size - 1."""

    def __init__(self, size: int) -> None:
        self._parents = list(range(size))

    def find(self, member: int) -> int:
        """Return the number that stands for the member's group."""
        parents = self._parents
        while parents[member] != member:
            parents[member] = parents[parents[member]]
            member = parents[member]
        return member

    def join(self, one: int, other: int) -> None:
        """Make one group of the groups of two members."""
        self._parents[self.find(one)] = self.find(other)


def _near_pairs(directories: list[Path], settings: Deduplication) -> Iterator[tuple[int, int, int, int]]:
    """Yield (unit, row, unit, row) of documents that agree in a bucket."""
    with tempfile.TemporaryDirectory() as folder:
        signatures, pairs = Path(folder, "signatures"), Path(folder, "pairs")
        for bucket in (f"bucket_{number:03d}" for number in range(settings.buckets)):
            (signatures / bucket).mkdir(parents=True)
            for unit, directory in enumerate(directories):
                file = directory.absolute() / bucket / "00000.minhash.sig"
                if not file.is_file():
                    raise InputError(f"{directory} has no {bucket}: rerun corpus.signatures with these settings")
                (signatures / bucket / f"{unit:05d}.minhash.sig").symlink_to(file)
        buckets = MinhashDedupBuckets(str(signatures), str(pairs), config=configuration(settings))
        execute([buckets], tasks=settings.buckets)
        for file in sorted(pairs.glob("*.dups")):
            yield from _PAIR.iter_unpack(file.read_bytes())


def run(
    settings: DeduplicateSettings, *, documents: list[Path], signatures: list[Path], duplicates: Path
) -> dict[str, Any]:
    """Write id, reason and the id of the kept document of every copy, sorted by id.

    Raises:
        InputError: the signatures are not those of the documents.
    """
    described = [(read_metadata(path), path, directory) for path, directory in zip(documents, signatures, strict=True)]
    described.sort(key=lambda entry: (entry[0]["source"], entry[0]["unit"]))
    ids: list[str] = []
    lengths: list[int] = []
    hashes: list[bytes] = []
    starts = []
    for metadata, path, directory in described:
        index = pq.read_table(directory / INDEX)
        if index.num_rows != metadata["rows"]:
            raise InputError(f"{directory} is not made from {path}: rerun corpus.signatures for that unit")
        starts.append(len(ids))
        ids += index["id"].to_pylist()
        lengths += index["characters"].to_pylist()
        hashes += index["sha256"].to_pylist()
    groups = Groups(len(ids))
    if settings.deduplication.exact:
        first: dict[bytes, int] = {}
        for number, content in enumerate(hashes):
            groups.join(number, first.setdefault(content, number))
    if settings.deduplication.minhash:
        for unit, row, other_unit, other_row in _near_pairs([entry[2] for entry in described], settings.deduplication):
            groups.join(starts[unit] + row, starts[other_unit] + other_row)
    best: dict[int, int] = {}
    for number in sorted(range(len(ids)), key=lambda number: (-lengths[number], ids[number])):
        best.setdefault(groups.find(number), number)
    rows = []
    for number in sorted(range(len(ids)), key=ids.__getitem__):
        kept = best[groups.find(number)]
        if kept != number:
            reason = "exact_duplicate" if hashes[number] == hashes[kept] else "near_duplicate"
            rows.append({"id": ids[number], "reason": reason, "value": ids[kept]})
    pq.write_table(pa.Table.from_pylist(rows, schema=DUPLICATE_SCHEMA), duplicates, compression="zstd")
    exact = sum(row["reason"] == "exact_duplicate" for row in rows)
    print(f"{len(ids)} documents: {exact} exact and {len(rows) - exact} near duplicates", flush=True)
    return {"documents": len(ids), "exact_duplicate": exact, "near_duplicate": len(rows) - exact}
