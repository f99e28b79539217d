"""Reads the shards of a token set from mapped memory, as one long row of tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InputError


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


class TokenReader:
    """The tokens of one split (`train` or `validation`), all shards joined in the order of their numbers.

    Raises InputError when index.json or a shard is missing or broken, or when a shard is not the one that was indexed.
    """

    def __init__(self, index_path: Path, split: str) -> None:
        try:
            index: dict[str, Any] = json.loads(index_path.read_text(encoding="utf-8"))
            described = index[split]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{index_path} is no index of tokens with a {split} split ({error!r})") from error
        self.split = split
        self.tokenizer_sha256: str = index["tokenizer_sha256"]
        self.vocabulary_size: int = index["vocabulary_size"]
        self.begin_of_text_id: int = index["begin_of_text_id"]
        self.end_of_text_id: int = index["end_of_text_id"]
        self.documents: int = described["documents"]
        self.bytes: int = described["bytes"]
        self.tokens: int = described["tokens"]
        self._batches: list[pa.RecordBatch] = []
        for entry in described["shards"]:
            metadata, batches = open_shard(index_path.parent / entry["path"])
            found = sum(len(batch.column("tokens").flatten()) for batch in batches)
            if metadata["tokenizer_sha256"] != self.tokenizer_sha256 or found != entry["tokens"]:
                raise InputError(f"{entry['path']} is not the shard that {index_path} describes: build the index again")
            self._batches += [batch for batch in batches if batch.num_rows]
        self._values: list[npt.NDArray[np.unsignedinteger[Any]]] = [
            batch.column("tokens").flatten().to_numpy(zero_copy_only=True) for batch in self._batches
        ]
        self._starts = np.cumsum([0, *map(len, self._values)], dtype=np.int64)

    def slices(self, start: int, length: int) -> list[npt.NDArray[np.unsignedinteger[Any]]]:
        """The tokens start … start+length-1 as read-only views of the files, one per record batch that they touch.

        Raises IndexError when they reach outside the split.
        """
        if start < 0 or length < 0 or start + length > self.tokens:
            raise IndexError(f"tokens {start} to {start + length} reach outside the {self.tokens} of {self.split}")
        views = []
        batch = int(np.searchsorted(self._starts, start, side="right")) - 1
        while length > 0:
            offset = start - int(self._starts[batch])
            view = self._values[batch][offset : offset + length]
            views.append(view)
            start, length, batch = start + len(view), length - len(view), batch + 1
        return views

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """The tokens start … start+length-1, (length,).

        Raises IndexError when they reach outside the split.
        """
        views = self.slices(start, length)
        return np.concatenate([np.empty(0, dtype=np.int64), *views], dtype=np.int64)

    def read_rows(self, starts_B: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """The `length` tokens from each start on, (B, length)."""
        tokens_BT = np.empty((len(starts_B), length), dtype=np.int64)
        for row, start in zip(tokens_BT, starts_B.tolist(), strict=True):
            filled = 0
            for view in self.slices(start, length):
                row[filled : filled + len(view)] = view
                filled += len(view)
        return tokens_BT

    def document_spans(self, start: int, length: int) -> list[tuple[str, int, int]]:
        """Identifier, first position and one past the last of each document that start … start+length-1 touch.

        Raises IndexError when they reach outside the split.
        """
        spans = []
        end = start + sum(map(len, self.slices(start, length)))
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for batch, origin in zip(self._batches[first:], self._starts[first:-1].tolist(), strict=True):
            if origin >= end:
                break
            borders = batch.column("tokens").offsets.to_numpy() + origin
            from_row = max(int(np.searchsorted(borders, start, side="right")) - 1, 0)
            to_row = int(np.searchsorted(borders[:-1], end, side="left"))
            names = batch.column("id")[from_row:to_row].to_pylist()
            spans += [
                (name, int(borders[row]), int(borders[row + 1])) for row, name in enumerate(names, start=from_row)
            ]
        return spans

    def document_at(self, position: int) -> str:
        """The identifier of the document that holds the token at `position`."""
        return self.document_spans(position, 1)[0][0]
