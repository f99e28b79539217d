"""Writes one shard of a corpus as tokens: an Arrow stream for training and one for validation.

A document becomes begin-of-text, its tokens, end-of-text, as in Llama 3. A shard is a range of id_hash, so a document
that goes or comes changes one shard, and only the row groups of that range are read. Documents lie in the order of
id_hash, which mixes the sources. The format is the Arrow IPC stream, which is memory-mapped without a copy:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.corpus.documents import is_validation, read_documents
from pipeline.errors import InputError
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokens.settings import ShardSettings

COLUMNS = ["id_hash", "id", "text", "source", "language", "license"]
CHARACTERS_PER_ENCODING = 2**21
TOKENS_PER_BATCH = 2**20


def run(
    settings: ShardSettings, *, tokenizer: Path, documents: list[Path], train: Path, validation: Path
) -> dict[str, Any]:
    """Encodes the documents of the shard; returns documents, tokens and bytes of each split.

    Raises InputError when a document occurs twice. Memory holds one batch of rows of each file, one
    group of texts and one record batch, whatever the size of the corpus.
    """
    encoder = load_encoder(tokenizer)
    with (
        _ShardWriter(train, "train", encoder, settings) as train_writer,
        _ShardWriter(validation, "validation", encoder, settings) as validation_writer,
    ):
        for group in _grouped(_documents_of_shard(documents, settings.shard, settings.shards)):
            for document, ids in zip(group, encoder.encode([document["text"] for document in group]), strict=True):
                held_out = is_validation(document["id"], settings.validation_fraction)
                (validation_writer if held_out else train_writer).add(document, ids)
    for writer in (train_writer, validation_writer):
        print(f"shard {settings.shard} {writer.split}: {writer.counts}", flush=True)
    return {writer.split: writer.counts for writer in (train_writer, validation_writer)}


def shard_range(shard: int, shards: int) -> tuple[int, int]:
    """The first and last id_hash whose `id_hash * shards >> 64` is `shard`."""
    return -(-(shard << 64) // shards), -(-((shard + 1) << 64) // shards) - 1


def _documents_of_shard(paths: list[Path], shard: int, shards: int) -> Iterator[dict[str, Any]]:
    """The documents of a shard from all files, in the order of id_hash and id whatever the order of the files."""
    first, last = shard_range(shard, shards)
    previous = None
    files = [read_documents([path], (first, last), COLUMNS) for path in sorted(paths)]
    for document in merge(*files, key=lambda row: (row["id_hash"], row["id"])):
        if document["id"] == previous:
            raise InputError(f"document id {previous!r} occurs twice in the corpus: give each document its own id")
        previous = document["id"]
        yield document


def _grouped(documents: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Groups documents so that one call encodes enough text for all threads and not too much for memory."""
    group: list[dict[str, Any]] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document["text"])
        if characters >= CHARACTERS_PER_ENCODING:
            yield group
            group, characters = [], 0
    if group:
        yield group


class _ShardWriter:
    """Collects encoded documents and writes them in record batches of a bounded number of tokens."""

    def __init__(self, path: Path, split: str, encoder: Encoder, settings: ShardSettings) -> None:
        self.split = split
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0}
        self._encoder = encoder
        self._dtype = np.dtype(np.uint16 if encoder.vocabulary_size <= 2**16 else np.uint32)
        metadata = {
            "tokenizer_sha256": encoder.sha256,
            "vocabulary_size": str(encoder.vocabulary_size),
            "dtype": self._dtype.name,
            "begin_of_text_id": str(encoder.begin_of_text_id),
            "end_of_text_id": str(encoder.end_of_text_id),
            "split": split,
            "shard": str(settings.shard),
            "shards": str(settings.shards),
        }
        texts = [(name, pa.string()) for name in ("source", "language", "license")]
        tokens = pa.large_list(pa.from_numpy_dtype(self._dtype))
        self._schema = pa.schema(
            [("id", pa.string()), ("tokens", tokens), *texts, ("bytes", pa.int64())], metadata=metadata
        )
        self._rows: list[dict[str, Any]] = []
        self._tokens: list[np.ndarray] = []
        self._tokens_waiting = 0
        self._stream = pa.ipc.new_stream(os.fspath(path), self._schema)

    def __enter__(self) -> _ShardWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self._flush()
        self._stream.close()

    def add(self, document: dict[str, Any], ids: list[int]) -> None:
        """Adds one document with the begin and end tokens around its own."""
        tokens = np.array([self._encoder.begin_of_text_id, *ids, self._encoder.end_of_text_id], dtype=self._dtype)
        size = len(document["text"].encode())
        self._rows.append({**document, "bytes": size})
        del self._rows[-1]["text"]
        self._tokens.append(tokens)
        self._tokens_waiting += len(tokens)
        for name, number in (("documents", 1), ("tokens", len(tokens)), ("bytes", size)):
            self.counts[name] += number
        if self._tokens_waiting >= TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        offsets = np.cumsum([0, *map(len, self._tokens)], dtype=np.int64)
        columns = {
            field.name: pa.array([row[field.name] for row in self._rows], field.type)
            for field in self._schema
            if field.name != "tokens"
        }
        columns["tokens"] = pa.LargeListArray.from_arrays(offsets, np.concatenate(self._tokens))
        self._stream.write_batch(pa.record_batch([columns[name] for name in self._schema.names], schema=self._schema))
        self._rows, self._tokens, self._tokens_waiting = [], [], 0
