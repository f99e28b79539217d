"""Reads the memory-mapped shards of a token set as long rows of tokens: of a complete split or of groups of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_each_file
from pipeline.tokens.memory_mapped_shards import Group, Integers, MappedShard, decode_batch_places, read_group_key


class TokenRow:
    """Record batches of shards, concatenated to one row of tokens and read lazily.

    Args:
        table: for each batch the ascending number of its shard, the number of its group, and its `BatchPlace`, (N, 5).
    """

    def __init__(self, name: str, shards: list[MappedShard], dtype: np.dtype[Any], table: Integers) -> None:
        self.name, self.dtype = name, dtype
        self._shards, self._table = shards, table
        self._starts: Integers = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(table[:, 4])])
        self.tokens = int(self._starts[-1])

    def _batch_at(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def _values(self, number: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        shard, _, _, position, length = map(int, self._table[number])
        return self._shards[shard].view_tokens(position, length, self.dtype)

    def _batch(self, number: int) -> pa.RecordBatch:
        return self._shards[self._table[number, 0]].read_record_batch(int(self._table[number, 2]))

    @property
    def batch_views(self) -> list[tuple[int, npt.NDArray[np.unsignedinteger[Any]]]]:
        """The position of the first token of each record batch, and its tokens as a read-only view."""
        return [(start, self._values(number)) for number, start in enumerate(self._starts[:-1].tolist())]

    @cached_property
    def document_starts(self) -> Integers:
        """The position of the first token of each document."""
        starts = enumerate(self._starts[:-1].tolist())
        offsets = [self._batch(number).column("tokens").offsets.to_numpy()[:-1] + start for number, start in starts]
        return np.concatenate([np.empty(0, dtype=np.int64), *offsets])

    def compute_per_document(self, values: Callable[[pa.RecordBatch, Group], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the concatenated results of a function of each record batch and its group, one value per document."""
        batches = map(self._batch, range(len(self._table)))
        return np.concatenate([values(batch, read_group_key(batch)) for batch in batches])

    def slices(self, start: int, length: int) -> list[npt.NDArray[np.unsignedinteger[Any]]]:
        """Return the tokens start … start+length-1 as read-only views, one per record batch.

        Raises:
            IndexError: they are outside the row.
        """
        if start < 0 or length < 0 or start + length > self.tokens:
            raise IndexError(f"tokens {start} to {start + length} reach outside the {self.tokens} of {self.name}")
        views = []
        batch = self._batch_at(start)
        while length > 0:
            offset = start - int(self._starts[batch])
            view = self._values(batch)[offset : offset + length]
            views.append(view)
            start, length, batch = start + len(view), length - len(view), batch + 1
        return views

    def read(self, start: int, length: int) -> Integers:
        """Return the tokens start … start+length-1, (length,).

        Raises:
            IndexError: they are outside the row.
        """
        return np.concatenate([np.empty(0, dtype=np.int64), *self.slices(start, length)], dtype=np.int64)

    def read_rows(self, starts_B: Integers, tokens_BT: npt.NDArray[Any], rows_B: Integers) -> None:
        """Fill the rows `rows_B` of an array, (…, T), each with the T tokens from its start, in the files' dtype."""
        length, size = tokens_BT.shape[1], self.dtype.itemsize
        batches_B = np.searchsorted(self._starts, starts_B, side="right") - 1
        is_whole_B = starts_B + length <= self._starts[np.minimum(batches_B + 1, len(self._table))]
        batch_rows = self._table[np.minimum(batches_B, len(self._table) - 1)]
        places_B = batch_rows[:, 3] + (starts_B - self._starts[batches_B]) * size
        row_arrays = (rows_B, is_whole_B, batch_rows[:, 0], places_B, starts_B)
        for row, is_whole, shard, place, start in zip(*(part.tolist() for part in row_arrays), strict=True):
            if is_whole:
                tokens_BT[row] = self._shards[shard].view_tokens(place, length, self.dtype)
            else:
                tokens_BT[row] = np.concatenate(self.slices(start, length))

    def documents_in(self, start: int, length: int) -> list[dict[str, Any]]:
        """Return the documents with tokens in start … start+length-1.

        Returns:
            For each document id, source, language, own license (None: the license of its source), the position of its
            first token as `start`, and the position after its last token as `end`.
        """
        documents: list[dict[str, Any]] = []
        end = start + sum(map(len, self.slices(start, length)))
        number = self._batch_at(start)
        while number < len(self._table) and (origin := int(self._starts[number])) < end:
            batch = self._batch(number)
            borders = batch.column("tokens").offsets.to_numpy() + origin
            from_row = max(int(np.searchsorted(borders, start, side="right")) - 1, 0)
            to_row = int(np.searchsorted(borders[:-1], end, side="left"))
            rows = batch.select(["id", "source", "language", "license"]).slice(from_row, to_row - from_row).to_pylist()
            for row, (begin, past) in zip(rows, pairwise(borders[from_row : to_row + 1].tolist()), strict=True):
                documents.append({**row, "start": begin, "end": past})
            number += 1
        return documents

    def find_document_span(self, document_id: str, id_hash: int, shard: int) -> tuple[int, int] | None:
        """Return the first position of a document and the one after its last, or None, by binary search of id_hash."""
        for number in np.flatnonzero(self._table[:, 0] == shard).tolist():
            batch, origin = self._batch(number), int(self._starts[number])
            hashes = batch.column("id_hash").to_numpy()
            rows = range(*(int(np.searchsorted(hashes, np.uint64(id_hash), side=side)) for side in ("left", "right")))
            for row in rows:
                if batch.column("id")[row].as_py() == document_id:
                    offsets = batch.column("tokens").offsets
                    return origin + offsets[row].as_py(), origin + offsets[row + 1].as_py()
        return None


class TokenReader(TokenRow):
    """The tokens of one split (`train` or `validation`), all shards concatenated.

    The bytes of shards are not verified here; see `check_altered_shards`.

    Raises:
        InputError: the index is invalid, or size or metadata of a shard differ from it.
    """

    def __init__(self, index_path: Path, split: str) -> None:
        self.split = split
        self.index_path = index_path
        try:
            index: dict[str, Any] = json.loads(index_path.read_text(encoding="utf-8"))
            described = index[split]
            self.tokenizer_sha256: str = index["tokenizer_sha256"]
            self.vocabulary_size: int = index["vocabulary_size"]
            dtype = np.dtype(index["dtype"])
            self.begin_of_text_id: int = index["begin_of_text_id"]
            self.end_of_text_id: int = index["end_of_text_id"]
            self.shards: int = index["shards"]
            self.grouped_by: list[str] = index["grouped_by"]
            self.documents: int = described["documents"]
            self.bytes: int = described["bytes"]
            numbers: dict[Group, int] = {}
            tables = [
                _batch_table(number, entry, self.grouped_by, numbers)
                for number, entry in enumerate(described["shards"])
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{index_path} is no index of tokens with a {split} split ({error!r}): make it again"
            raise InputError(message) from error
        shards = [_open_indexed_shard(index_path, index, entry) for entry in described["shards"]]
        table = np.concatenate([np.empty((0, 5), dtype=np.int64), *tables])
        super().__init__(f"the {split} split", shards, dtype, table)
        of_groups = np.bincount(table[:, 1], weights=table[:, 4], minlength=len(numbers))
        self.groups: dict[Group, int] = {group: int(of_groups[number]) for group, number in numbers.items()}

    def check_vocabulary(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the tokens unchanged.

        Raises:
            InputError: a token is outside the vocabulary, because a shard was altered without changing its size.
        """
        if tokens.size and (largest := int(tokens.max())) >= self.vocabulary_size:
            raise InputError(
                f"a shard of {self.index_path} holds the token {largest} of a vocabulary of {self.vocabulary_size}: it "
                "was altered, build it again (`polder verify` names it)"
            )
        return tokens

    def select_shard_tokens(self, shard: int) -> TokenRow:
        return self._select_batches(f"shard {shard}", self._table[:, 0] == shard)

    def select_tokens_of_groups(self, wanted: Callable[[Group], bool]) -> TokenRow:
        """Return the tokens of some groups as one row, over all shards in order."""
        is_wanted = np.array([wanted(group) for group in self.groups], dtype=bool)  # in the order of their numbers
        return self._select_batches(self.name, is_wanted[self._table[:, 1]])

    def _select_batches(self, name: str, chosen: npt.NDArray[np.bool_]) -> TokenRow:
        return TokenRow(name, self._shards, self.dtype, self._table[chosen])


def check_altered_shards(index_path: Path) -> None:
    """Raise InputError if a shard newer than the index has another sha256 than in the index."""
    index, since = json.loads(index_path.read_text(encoding="utf-8")), index_path.stat().st_mtime
    entries = [entry for split in ("train", "validation") for entry in index[split]["shards"]]
    expected = {index_path.parent / entry["path"]: entry["sha256"] for entry in entries}
    younger = [path for path in expected if path.stat().st_mtime > since]
    for path, sha256 in zip(younger, hash_each_file(younger), strict=True):
        if sha256 != expected[path]:
            raise InputError(
                f"{path} has other bytes than {index_path} says: it was altered, build it again with tokens.shard"
            )


def _batch_table(number: int, entry: dict[str, Any], grouped_by: list[str], numbers: dict[Group, int]) -> Integers:
    """Return the table of a shard's record batches for `TokenRow`; add new groups to `numbers`."""
    places = decode_batch_places(entry["batches"])
    groups = [tuple(group[name] for name in grouped_by) for group in entry["groups"]]
    ends = np.cumsum([group["tokens"] for group in entry["groups"]])
    of_shard = np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)
    starts = np.cumsum(places[:, 2]) - places[:, 2]
    return np.column_stack(
        [np.full(len(places), number), of_shard[np.searchsorted(ends, starts, side="right")], places]
    )


def _open_indexed_shard(index_path: Path, index: dict[str, Any], entry: dict[str, Any]) -> MappedShard:
    """Return a shard.

    Raises:
        InputError: it is missing, or its size or metadata differ from the index.
    """
    path = index_path.parent / entry["path"]
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        raise InputError(f"{path} is missing, which {index_path} names: build it again with tokens.shard")
    if size != entry["bytes_on_disk"]:
        raise InputError(
            f"{path} has {size} bytes where {index_path} describes {entry['bytes_on_disk']}: it was altered, "
            "build it again with tokens.shard"
        )
    shard = MappedShard(path)
    for name in ("tokenizer_sha256", "vocabulary_size", "dtype"):
        if shard.metadata[name] != str(index[name]):
            raise InputError(
                f"{path} has {name} {shard.metadata[name]} where {index_path} says {index[name]}: it was made with "
                "another tokenizer, build all shards and the index again"
            )
    return shard
