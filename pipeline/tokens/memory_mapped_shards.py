"""Memory-maps the shards of a token set, and copies them to a local disk of the node."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import InputError

Integers = npt.NDArray[np.int64]
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end-of-stream marker of an Arrow stream."""

Group = tuple[str, ...]
"""The source, language and strata of all documents of a record batch."""


class BatchPlace(NamedTuple):
    """The byte positions of a record batch and of its tokens in the file of its shard, and the number of tokens."""

    position: int
    values_position: int
    tokens: int


class MappedShard:
    """A memory-mapped Arrow stream of tokens.shard.

    Raises:
        InputError: the file is missing, truncated or of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pa.memory_map(os.fspath(path)) as file:
                self._schema = pa.ipc.read_schema(file)
                self._first = file.tell()
        except (OSError, EOFError, pa.ArrowInvalid) as error:
            raise self._broken_stream_error(error) from error
        self.metadata = {name.decode(): value.decode() for name, value in (self._schema.metadata or {}).items()}
        if "tokenizer_sha256" not in self.metadata:
            raise InputError(f"{path} was not written by tokens.shard: its schema names no tokenizer")

    def _broken_stream_error(self, error: Exception) -> InputError:
        return InputError(f"{self.path} is no whole Arrow stream: build it again with tokens.shard ({error})")

    @cached_property
    def _buffer(self) -> pa.Buffer:
        return pa.memory_map(os.fspath(self.path)).read_buffer()

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._buffer, dtype=np.uint8)

    def read_record_batch(self, position: int) -> pa.RecordBatch:
        """Return the record batch at a byte position, without a copy; the file is mapped on first use."""
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._buffer.slice(position)), self._schema)

    def view_tokens(self, position: int, length: int, dtype: np.dtype[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return `length` tokens from a byte position as a read-only view of the file."""
        data = self._bytes[position : position + length * dtype.itemsize]
        return data.view(dtype)

    def read_record_batches(self) -> list[tuple[BatchPlace, pa.RecordBatch]]:
        """Return all record batches with their places; reads one page of each.

        Raises:
            InputError: the stream is truncated.
        """
        stream = pa.BufferReader(self._buffer)
        stream.seek(self._first)
        placed_batches = []
        try:
            while (position := stream.tell()) < self._buffer.size - len(STREAM_END):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(stream), self._schema)
                tokens = batch.column("tokens").flatten()
                at = tokens.buffers()[1].address - self._buffer.address if len(tokens) else position
                placed_batches.append((BatchPlace(position, at, len(tokens)), batch))
            if self._buffer.slice(position).to_pybytes() != STREAM_END:  # truncated between two record batches
                raise EOFError("it has no end")
        except (OSError, EOFError, pa.ArrowInvalid) as error:
            raise self._broken_stream_error(error) from error
        return placed_batches


def map_record_batches(path: Path) -> tuple[dict[str, str], list[pa.RecordBatch]]:
    """Memory-map an Arrow stream of tokens.shard, and return its metadata and record batches without a copy."""
    shard = MappedShard(path)
    return shard.metadata, [batch for _, batch in shard.read_record_batches()]


def read_group_key(batch: pa.RecordBatch) -> Group:
    """Return the source, language and strata of a nonempty record batch."""
    return tuple(batch.column(name)[0].as_py() for name in batch.schema.metadata[b"grouped_by"].decode().split(","))


def encode_batch_places(places: Sequence[BatchPlace]) -> str:
    """Return the places of record batches in the format of the index: three 64-bit numbers each, in base64."""
    return base64.b64encode(np.array(places, dtype="<i8").tobytes()).decode()


def decode_batch_places(batches: str) -> Integers:
    """Return the places of record batches from the format of the index, (N, 3)."""
    places: Integers = np.frombuffer(base64.b64decode(batches), dtype="<i8").reshape(-1, len(BatchPlace._fields))
    return places


SPARE_BYTES = 2**24
BLOCK_BYTES = 2**24


def copy_to_node(index: Path, folder: Path) -> Path:
    """Copy a token set to a subfolder of `folder` named by the index's hash, and return the path of the copied index.

    One process per node copies while the others wait; complete files are reused. A shard is hashed while it is copied,
    and renamed at the end; the index comes last.

    Raises:
        InputError: there is too little disk space, a shard is missing or altered, or the folder is not writable.
    """
    try:
        content = index.read_bytes()
        described: dict[str, Any] = json.loads(content)
        entries = [(split, n, e) for split in ("train", "validation") for n, e in enumerate(described[split]["shards"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{index} is no index of tokens ({error!r}): build it with tokens.index") from error
    target = folder / hashlib.sha256(content).hexdigest()[:16]
    try:
        target.mkdir(parents=True, exist_ok=True)
        with (target / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when the process ends
            missing = []
            for split, number, entry in entries:
                path = target / split / f"{number}.arrow"
                if not path.is_file() or path.stat().st_size != entry["bytes_on_disk"]:
                    missing.append((index.parent / entry["path"], path, entry))
                entry["path"] = f"{split}/{number}.arrow"
            _check_free_space(target, sum(entry["bytes_on_disk"] for _, _, entry in missing))
            for source, path, entry in missing:
                _copy_shard(source, path, entry["sha256"])
            staged = target / "index.json"
            partial = target / ".partial-index.json"
            partial.write_text(json.dumps(described), encoding="utf-8")
            partial.replace(staged)
    except OSError as error:
        raise InputError(f"staging: {error}: name a folder on a disk of the node that can be written") from error
    return staged


def _check_free_space(target: Path, needed: int) -> None:
    for left in target.glob("*/.partial-*"):
        left.unlink()
    free = shutil.disk_usage(target).free
    if needed and free < needed + SPARE_BYTES:
        raise InputError(
            f"staging: {target} has {free} bytes free, the shards to copy take {needed}: name a folder on a larger "
            "disk or remove staging"
        )


def _copy_shard(source: Path, path: Path, sha256: str) -> None:
    """Copy a shard to a temporary name and rename it.

    Raises:
        InputError: it is missing, or its bytes differ from the index.
    """
    if not source.is_file():
        raise InputError(f"{source} is missing, which the index names: build it again with tokens.shard")
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    digest = hashlib.sha256()
    with source.open("rb") as reading, partial.open("wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            digest.update(block)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
    if digest.hexdigest() != sha256:
        partial.unlink()
        raise InputError(f"{source} has other bytes than the index says: it was altered, build it with tokens.shard")
    partial.replace(path)
