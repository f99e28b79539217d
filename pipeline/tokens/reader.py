"""Reads the shards of a token set from mapped memory, as long rows of tokens: of a whole split or of groups of it."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.ground.errors import InputError
from pipeline.ground.hashing import sha256_of_each

Group = tuple[str, ...]
"""A source, a language and the strata, which all documents of a record batch share."""


def open_shard(path: Path) -> tuple[dict[str, str], list[pa.RecordBatch]]:
    """Maps an Arrow stream of tokens.shard: its metadata and its record batches, which are the file's own pages.

    Raises InputError when the file is missing, cut off or of another kind.
    """
    try:
        reader = pa.ipc.open_stream(pa.memory_map(os.fspath(path)))
        batches = list(reader)
        metadata = {name.decode(): value.decode() for name, value in (reader.schema.metadata or {}).items()}
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} is no whole Arrow stream: build it again with tokens.shard ({error})") from error
    if "tokenizer_sha256" not in metadata:
        raise InputError(f"{path} was not written by tokens.shard: its schema names no tokenizer")
    return metadata, batches


def group_of(batch: pa.RecordBatch) -> Group:
    """The source, language and strata of a record batch, which must not be empty."""
    return tuple(batch.column(name)[0].as_py() for name in batch.schema.metadata[b"grouped_by"].decode().split(","))


class TokenRow:
    """Record batches of shards, joined to one row of tokens; each comes with the number of its shard."""

    def __init__(self, name: str, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        self.name = name
        self._batches = batches
        self._values: list[npt.NDArray[np.unsignedinteger[Any]]] = [
            batch.column("tokens").flatten().to_numpy(zero_copy_only=True) for _, batch in batches
        ]
        self._starts: list[int] = np.cumsum([0, *map(len, self._values)], dtype=np.int64).tolist()
        self.tokens = self._starts[-1]

    @property
    def views(self) -> list[tuple[int, npt.NDArray[np.unsignedinteger[Any]]]]:
        """The position of the first token of each record batch, and its tokens as a read-only view of the file."""
        return list(zip(self._starts[:-1], self._values, strict=True))

    @cached_property
    def borders(self) -> npt.NDArray[np.int64]:
        """The position of the first token of each document, in order."""
        starts = zip(self._batches, self._starts[:-1], strict=True)
        found = [batch.column("tokens").offsets.to_numpy()[:-1] + start for (_, batch), start in starts]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def per_document(self, values: Callable[[pa.RecordBatch, Group], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What a function of a record batch and its group tells of each of its documents, of all documents in order.

        Raises ValueError when there is no document.
        """
        return np.concatenate([values(batch, group_of(batch)) for _, batch in self._batches])

    def slices(self, start: int, length: int) -> list[npt.NDArray[np.unsignedinteger[Any]]]:
        """The tokens start … start+length-1 as read-only views of the files, one per record batch that they touch.

        Raises IndexError when they reach outside the row.
        """
        if start < 0 or length < 0 or start + length > self.tokens:
            raise IndexError(f"tokens {start} to {start + length} reach outside the {self.tokens} of {self.name}")
        views = []
        batch = bisect_right(self._starts, start) - 1
        while length > 0:
            offset = start - self._starts[batch]
            view = self._values[batch][offset : offset + length]
            views.append(view)
            start, length, batch = start + len(view), length - len(view), batch + 1
        return views

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """The tokens start … start+length-1, (length,).

        Raises IndexError when they reach outside the row.
        """
        views = self.slices(start, length)
        return np.concatenate([np.empty(0, dtype=np.int64), *views], dtype=np.int64)

    def read_rows(
        self, starts_B: npt.NDArray[np.int64], tokens_BT: npt.NDArray[Any], rows_B: npt.NDArray[np.int64]
    ) -> None:
        """Fills the rows `rows_B` of an array, (…, T), each with the T tokens from its start on, in the files' type.

        Raises IndexError when they reach outside the row.
        """
        length = tokens_BT.shape[1]
        batches_B = np.searchsorted(self._starts, starts_B, side="right") - 1
        offsets_B = starts_B - np.take(self._starts, batches_B)
        read = zip(rows_B.tolist(), batches_B.tolist(), offsets_B.tolist(), starts_B.tolist(), strict=True)
        for row, batch, offset, start in read:
            view = self._values[batch][offset : offset + length] if batch < len(self._values) else ()
            tokens_BT[row] = view if len(view) == length else np.concatenate(self.slices(start, length))

    def document_rows(self, start: int, length: int) -> list[dict[str, Any]]:
        """The documents that start … start+length-1 touch: id, source, language, license, and the positions of their
        first token as `start` and of one past their last as `end`.

        Raises IndexError when they reach outside the row.
        """
        found: list[dict[str, Any]] = []
        end = start + sum(map(len, self.slices(start, length)))
        first = bisect_right(self._starts, start) - 1
        for (_, batch), origin in zip(self._batches[first:], self._starts[first:-1], strict=True):
            if origin >= end:
                break
            borders = batch.column("tokens").offsets.to_numpy() + origin
            from_row = max(int(np.searchsorted(borders, start, side="right")) - 1, 0)
            to_row = int(np.searchsorted(borders[:-1], end, side="left"))
            rows = batch.select(["id", "source", "language", "license"]).slice(from_row, to_row - from_row).to_pylist()
            for row, (begin, past) in zip(rows, pairwise(borders[from_row : to_row + 1].tolist()), strict=True):
                found.append({**row, "start": begin, "end": past})
        return found

    def document_spans(self, start: int, length: int) -> list[tuple[str, int, int]]:
        """Identifier, first position and one past the last of each document that start … start+length-1 touch.

        Raises IndexError when they reach outside the row.
        """
        return [(row["id"], row["start"], row["end"]) for row in self.document_rows(start, length)]

    def document_at(self, position: int) -> str:
        """The identifier of the document that holds the token at `position`."""
        return self.document_spans(position, 1)[0][0]

    def find(self, document_id: str, id_hash: int, shard: int) -> tuple[int, int] | None:
        """The first position of a document and one past the last, or None when its shard holds none of that id.

        The documents of a record batch lie in the order of id_hash: each batch of the shard is a binary search.
        """
        for (number, batch), origin in zip(self._batches, self._starts[:-1], strict=True):
            if number != shard:
                continue
            hashes = batch.column("id_hash").to_numpy()
            rows = range(*(int(np.searchsorted(hashes, np.uint64(id_hash), side=side)) for side in ("left", "right")))
            for row in rows:
                if batch.column("id")[row].as_py() == document_id:
                    offsets = batch.column("tokens").offsets
                    return origin + offsets[row].as_py(), origin + offsets[row + 1].as_py()
        return None


class TokenReader(TokenRow):
    """The tokens of one split (`train` or `validation`), all shards joined in the order of their numbers.

    Raises InputError when index.json or a shard is missing or broken, or when a shard is not the one that was indexed:
    in size, tokenizer, vocabulary or number of tokens. Its bytes are not read: see `refuse_altered`.
    """

    def __init__(self, index_path: Path, split: str) -> None:
        self.split = split
        self.index_path = index_path
        try:
            index: dict[str, Any] = json.loads(index_path.read_text(encoding="utf-8"))
            described = index[split]
            self.tokenizer_sha256: str = index["tokenizer_sha256"]
            self.vocabulary_size: int = index["vocabulary_size"]
            self.dtype = np.dtype(index["dtype"])
            self.begin_of_text_id: int = index["begin_of_text_id"]
            self.end_of_text_id: int = index["end_of_text_id"]
            self.shards: int = index["shards"]
            self.grouped_by: list[str] = index["grouped_by"]
            self.documents: int = described["documents"]
            self.bytes: int = described["bytes"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{index_path} is no index of tokens with a {split} split ({error!r})") from error
        batches = []
        for number, entry in enumerate(described["shards"]):
            found = _open_indexed(index_path, index, entry)
            batches += [(number, batch) for batch in found if batch.num_rows]
        super().__init__(f"the {split} split", batches)
        self.groups: dict[Group, int] = {}
        for (_, batch), values in zip(batches, self._values, strict=True):
            group = group_of(batch)
            self.groups[group] = self.groups.get(group, 0) + len(values)

    def known(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same tokens.

        Raises InputError when one is outside the vocabulary, as where a shard was altered and kept its size.
        """
        if tokens.size and (largest := int(tokens.max())) >= self.vocabulary_size:
            raise InputError(
                f"a shard of {self.index_path} holds the token {largest} of a vocabulary of {self.vocabulary_size}: it "
                "was altered, build it again (`python -m pipeline verify` names it)"
            )
        return tokens

    def shard_row(self, shard: int) -> TokenRow:
        """The tokens of one shard."""
        return TokenRow(f"shard {shard}", [(number, batch) for number, batch in self._batches if number == shard])

    def row(self, wanted: Callable[[Group], bool]) -> TokenRow:
        """One row of the tokens of some groups, over all shards in their order."""
        return TokenRow(self.name, [(number, batch) for number, batch in self._batches if wanted(group_of(batch))])


def refuse_altered(index_path: Path) -> None:
    """Raises InputError when a shard has other bytes than the index says.

    A shard that is older than the index is as the index found it, and is not read.
    """
    index, since = json.loads(index_path.read_text(encoding="utf-8")), index_path.stat().st_mtime
    entries = [entry for split in ("train", "validation") for entry in index[split]["shards"]]
    expected = {index_path.parent / entry["path"]: entry["sha256"] for entry in entries}
    younger = [path for path in expected if path.stat().st_mtime > since]
    for path, found in zip(younger, sha256_of_each(younger), strict=True):
        if found != expected[path]:
            raise InputError(
                f"{path} has other bytes than {index_path} says: it was altered, build it again with tokens.shard"
            )


def _open_indexed(index_path: Path, index: dict[str, Any], entry: dict[str, Any]) -> list[pa.RecordBatch]:
    """The record batches of a shard; raises InputError when it is not the one that the index describes."""
    path = index_path.parent / entry["path"]
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        raise InputError(f"{path} is missing, which {index_path} names: build it again with tokens.shard")
    if size != entry["bytes_on_disk"]:
        raise InputError(
            f"{path} has {size} bytes where {index_path} describes {entry['bytes_on_disk']}: it was altered, "
            "build it again with tokens.shard"
        )
    metadata, batches = open_shard(path)
    for name in ("tokenizer_sha256", "vocabulary_size", "dtype"):
        if metadata[name] != str(index[name]):
            raise InputError(
                f"{path} has {name} {metadata[name]} where {index_path} says {index[name]}: it was made with another "
                "tokenizer, build all shards and the index again"
            )
    found = sum(len(batch.column("tokens").flatten()) for batch in batches)
    if found != entry["tokens"]:
        raise InputError(f"{path} is not the shard that {index_path} describes: build the index again")
    return batches
