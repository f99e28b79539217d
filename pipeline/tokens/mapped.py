"""A shard of a token set in mapped memory: its schema, and its record batches where they are asked for."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import InputError

Integers = npt.NDArray[np.int64]
END = b"\xff\xff\xff\xff\0\0\0\0"
"""Of a stream: the mark after the last record batch."""

Group = tuple[str, ...]
"""A source, a language and the strata, which all documents of a record batch share."""


class Place(NamedTuple):
    """Where a record batch lies in the file of its shard: the bytes before it and before its tokens; their number."""

    position: int
    values_position: int
    tokens: int


class Shard:
    """An Arrow stream of tokens.shard in mapped memory; `metadata` is that of its schema.

    Raises InputError when the file is missing, cut off in its schema or of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pa.memory_map(os.fspath(path)) as file:
                self._schema = pa.ipc.read_schema(file)
                self._first = file.tell()
        except (OSError, EOFError, pa.ArrowInvalid) as error:
            raise self._broken(error) from error
        self.metadata = {name.decode(): value.decode() for name, value in (self._schema.metadata or {}).items()}
        if "tokenizer_sha256" not in self.metadata:
            raise InputError(f"{path} was not written by tokens.shard: its schema names no tokenizer")

    def _broken(self, error: Exception) -> InputError:
        return InputError(f"{self.path} is no whole Arrow stream: build it again with tokens.shard ({error})")

    @cached_property
    def _buffer(self) -> pa.Buffer:
        return pa.memory_map(os.fspath(self.path)).read_buffer()

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._buffer, dtype=np.uint8)

    def batch(self, position: int) -> pa.RecordBatch:
        """The record batch that begins there, as the file's own pages; the file is mapped when one is asked for."""
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._buffer.slice(position)), self._schema)

    def values(self, position: int, length: int, dtype: np.dtype[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
        """So many tokens from a byte of the file on, as a read-only view of it."""
        found: npt.NDArray[np.unsignedinteger[Any]] = self._bytes[position : position + length * dtype.itemsize].view(
            dtype
        )
        return found

    def batches(self) -> list[tuple[Place, pa.RecordBatch]]:
        """All record batches with their places; reads a page of each.

        Raises InputError when the stream is cut off.
        """
        stream = pa.BufferReader(self._buffer)
        stream.seek(self._first)
        found = []
        try:
            while (position := stream.tell()) < self._buffer.size - len(END):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(stream), self._schema)
                tokens = batch.column("tokens").flatten()
                at = tokens.buffers()[1].address - self._buffer.address if len(tokens) else position
                found.append((Place(position, at, len(tokens)), batch))
            if self._buffer.slice(position).to_pybytes() != END:  # cut off between two record batches
                raise EOFError("it has no end")
        except (OSError, EOFError, pa.ArrowInvalid) as error:
            raise self._broken(error) from error
        return found


def open_shard(path: Path) -> tuple[dict[str, str], list[pa.RecordBatch]]:
    """Maps an Arrow stream of tokens.shard: its metadata and its record batches, which are the file's own pages.

    Raises InputError when the file is missing, cut off or of another kind.
    """
    shard = Shard(path)
    return shard.metadata, [batch for _, batch in shard.batches()]


def group_of(batch: pa.RecordBatch) -> Group:
    """The source, language and strata of a record batch, which must not be empty."""
    return tuple(batch.column(name)[0].as_py() for name in batch.schema.metadata[b"grouped_by"].decode().split(","))


def encoded(places: Sequence[Place]) -> str:
    """The places of record batches as an index holds them: three 64-bit numbers of each, in base64."""
    return base64.b64encode(np.array(places, dtype="<i8").tobytes()).decode()


def decoded(batches: str) -> Integers:
    """The places that an index holds, (N, 3)."""
    found: Integers = np.frombuffer(base64.b64decode(batches), dtype="<i8").reshape(-1, len(Place._fields))
    return found
