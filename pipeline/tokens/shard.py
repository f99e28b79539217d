"""Encodes one shard of a corpus as tokens: an Arrow stream for training and one for validation.

A document is begin-of-text, its tokens, end-of-text, as in Llama 3. A shard is a range of id_hash, so a new or removed
document changes one shard, and only row groups of that range are read. Documents are sorted by source, language, strata
and id_hash. A record batch has one source, language and stratum, so a reader can mix them, and find a document by
binary search. The format is the Arrow IPC stream, which is memory-mapped without a copy:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import InputError
from pipeline.corpus.document_streams import merge_documents, resolve_licenses
from pipeline.corpus.documents import is_validation_cluster, read_batches
from pipeline.tokenizer.batch_encoder import BatchEncoder, Ids
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokens.settings import GROUP, UNKNOWN, ShardSettings, Strata, bin_names

CHARACTERS_PER_ENCODING = 2**21
TOKENS_PER_BATCH = 2**20
Document = tuple[int, str, str, str | None, str]
"""The id_hash, id, text, own license (None: the license of its source) and cluster of a document."""


def run(
    settings: ShardSettings, *, tokenizer: Path, documents: list[Path], train: Path, validation: Path
) -> dict[str, Any]:
    """Encode the documents of the shard; return documents, tokens and bytes of each split.

    Memory: one batch of rows per open file, texts of twice CHARACTERS_PER_ENCODING and one record batch.
    """
    encoder = load_encoder(tokenizer)
    batch_encoder = BatchEncoder(encoder)
    hash_range = shard_id_hash_range(settings.shard, settings.shards)
    with (
        _ShardWriter(train, "train", encoder, settings) as train_writer,
        _ShardWriter(validation, "validation", encoder, settings) as validation_writer,
        ThreadPoolExecutor(batch_encoder.threads) as executor,
    ):

        def write(texts: list[Document], encoded: Future[list[Ids]]) -> None:
            for document, ids in zip(texts, encoded.result(), strict=True):
                held_out = is_validation_cluster(document[4], settings.validation_fraction)
                (validation_writer if held_out else train_writer).add(document, ids)

        for group, paths in _find_groups(documents, hash_range, settings):
            for writer in (train_writer, validation_writer):
                writer.start_document_group(group)
            waiting: deque[tuple[list[Document], Future[list[Ids]]]] = deque()
            where, filter_columns = (
                group_condition(group, settings.strata, settings.licenses),
                stratum_columns(settings.strata),
            )
            rows = merge_documents(paths, ["text", "license", "cluster"], hash_range, where, filter_columns)
            for texts in _batch_by_characters(rows, CHARACTERS_PER_ENCODING // batch_encoder.threads):
                # Both libraries release the GIL: while they encode, the previous texts are written.
                waiting.append((texts, executor.submit(batch_encoder.encode, [document[2] for document in texts])))
                if len(waiting) >= 2 * batch_encoder.threads:
                    write(*waiting.popleft())
            for texts_encoded in waiting:
                write(*texts_encoded)
    for writer in (train_writer, validation_writer):
        print(f"shard {settings.shard} {writer.split}: {writer.counts}", flush=True)
    counts = {writer.split: writer.counts for writer in (train_writer, validation_writer)}
    return {**counts, "encoding": batch_encoder.describe()}


def shard_id_hash_range(shard: int, shards: int) -> tuple[int, int]:
    """Return the first and last id_hash with `id_hash * shards >> 64 == shard`."""
    return -(-(shard << 64) // shards), -(-((shard + 1) << 64) // shards) - 1


def _find_groups(
    paths: list[Path], hash_range: tuple[int, int], settings: ShardSettings
) -> list[tuple[dict[str, str], list[Path]]]:
    """Return source, language and strata of the documents in a range, sorted, each with its files.

    Raises:
        InputError: an id occurs twice.
    """
    files_by_group: dict[tuple[str, ...], list[Path]] = {}
    names = [*GROUP, *settings.strata.list_stratification_keys()]
    hashes = []
    for path in sorted(paths):
        for batch in read_batches([path], hash_range, [*stratum_columns(settings.strata), "id_hash"]):
            hashes.append(batch.column("id_hash").to_numpy())
            groups = assign_strata(batch, settings.strata, settings.genres, settings.licenses).group_by(names)
            for row in groups.aggregate([]).to_pylist():
                files = files_by_group.setdefault(tuple(row[name] for name in names), [])
                if files[-1:] != [path]:
                    files.append(path)
    _check_unique_ids(paths, hash_range, hashes)
    return [(dict(zip(names, group, strict=True)), files) for group, files in sorted(files_by_group.items())]


def _check_unique_ids(paths: list[Path], hash_range: tuple[int, int], hashes: list[npt.NDArray[np.uint64]]) -> None:
    values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
    repeated_hashes = pa.array(values[counts > 1])
    seen: set[str] = set()
    for batch in read_batches(paths, hash_range, ["id", "id_hash"]) if len(repeated_hashes) else ():
        for name in batch.filter(pc.is_in(batch.column("id_hash"), repeated_hashes)).column("id").to_pylist():
            if name in seen:
                raise InputError(f"document id {name!r} occurs twice in the corpus: give each document its own id")
            seen.add(name)


def _batch_by_characters(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    """Yield batches of documents, each with at least `size` characters except the last one."""
    group: list[Document] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document[2])
        if characters >= size:
            yield group
            group, characters = [], 0
    if group:
        yield group


class _ShardWriter:
    """Collects encoded documents and writes them in record batches of a bounded number of tokens."""

    def __init__(self, path: Path, split: str, encoder: Encoder, settings: ShardSettings) -> None:
        self.split = split
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0}
        self._begin, self._end = (
            np.array([border], dtype=np.uint32) for border in (encoder.begin_of_text_id, encoder.end_of_text_id)
        )
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
            "grouped_by": ",".join([*GROUP, *settings.strata.list_stratification_keys()]),
        }
        names = dict.fromkeys(["source", "language", "license", *settings.strata.list_stratification_keys()])
        texts = [(name, pa.string()) for name in names]
        tokens = pa.large_list(pa.from_numpy_dtype(self._dtype))
        numbers = [("bytes", pa.int64()), ("id_hash", pa.uint64())]
        self._schema = pa.schema([("id", pa.string()), ("tokens", tokens), *texts, *numbers], metadata=metadata)
        self._group: dict[str, str] = {}
        self._rows: list[tuple[int, str, str | None, int]] = []
        self._tokens: list[Ids] = []
        self._tokens_waiting = 0
        self._stream = pa.ipc.new_stream(os.fspath(path), self._schema)

    def __enter__(self) -> _ShardWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self._flush()
        self._stream.close()

    def start_document_group(self, group: dict[str, str]) -> None:
        """Start a group: set source, language and strata of the next documents."""
        self._flush()
        self._group = group

    def add(self, document: Document, ids: Ids) -> None:
        """Add one document, with the ids of its text, between its begin and end tokens."""
        hash_value, name, text, license_name, _ = document
        size = len(text) if text.isascii() else len(text.encode())
        self._rows.append((hash_value, name, license_name, size))
        self._tokens += [self._begin, ids, self._end]
        self._tokens_waiting += len(ids) + 2
        self.counts["documents"] += 1
        self.counts["tokens"] += len(ids) + 2
        self.counts["bytes"] += size
        if self._tokens_waiting >= TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        offsets = np.cumsum([0, *(len(ids) + 2 for ids in self._tokens[1::3])], dtype=np.int64)
        tokens = np.concatenate(self._tokens, dtype=self._dtype)
        hashes, names, licenses, sizes = zip(*self._rows, strict=True)
        columns = {
            "id": names,
            "license": licenses,
            **{name: [value] * len(names) for name, value in self._group.items()},
            "bytes": sizes,
            "id_hash": hashes,
        }
        arrays = {
            field.name: pa.array(columns[field.name], field.type) for field in self._schema if field.name in columns
        }
        arrays["tokens"] = pa.LargeListArray.from_arrays(offsets, tokens)
        self._stream.write_batch(pa.record_batch([arrays[name] for name in self._schema.names], schema=self._schema))
        self._rows, self._tokens, self._tokens_waiting = [], [], 0


# Strata divide the documents of a source and language, so that a training can mix them.
#
# A numeric property, such as the number of copies, is divided into bins: `below` the first bound, or `from` the largest
# bound that it reaches. FineWeb-2 repeats documents by the size of their cluster: https://arxiv.org/abs/2506.20920.


def stratum_columns(strata: Strata) -> list[str]:
    """Return the columns of documents that determine their groups: source, language and columns of strata."""
    return [*GROUP, *(strata.column(name) for name in strata.list_stratification_keys() if name != "genre")]


def assign_strata(
    batch: pa.RecordBatch, strata: Strata, genres: Mapping[str, str], licenses: Mapping[str, str]
) -> pa.Table:
    """Return source, language and strata of each document of a batch with the columns of `stratum_columns`.

    Args:
        genres: genres of the sources.
        licenses: licenses of the sources, for documents without their own.
    """
    columns = {name: batch.column(name) for name in GROUP}
    for name in strata.list_stratification_keys():
        if name == "genre":
            columns[name] = pa.array(
                [genres.get(source, UNKNOWN) for source in columns["source"].to_pylist()], pa.string()
            )
        elif name == "license":
            columns[name] = resolve_licenses(batch, licenses)
        else:
            bounds = strata.bin_bounds(name)
            names = np.array([*bin_names(bounds), UNKNOWN])
            values = batch.column(strata.column(name)).cast(pa.float64()).to_numpy(zero_copy_only=False)  # null is NaN
            places = np.searchsorted(bounds, values, side="right")
            columns[name] = pa.array(names[np.where(np.isnan(values), len(names) - 1, places)], pa.string())
    return pa.table(columns)


def group_condition(group: Mapping[str, str], strata: Strata, licenses: Mapping[str, str]) -> pc.Expression:
    """Return a filter for the documents of a group, on the columns of `stratum_columns`."""
    condition = pc.scalar(True)
    for name, wanted in group.items():
        if name in GROUP:
            condition &= pc.field(name) == wanted
        elif name == "license":
            condition &= pc.coalesce(pc.field(name), pa.scalar(licenses.get(group["source"]), pa.string())) == wanted
        elif name != "genre":
            condition &= _bin_condition(strata.column(name), wanted, strata.bin_bounds(name))
    return condition


def _bin_condition(name: str, wanted: str, bounds: Sequence[float]) -> pc.Expression:
    value = pc.field(name)
    if wanted == UNKNOWN:
        return value.is_null()
    place = bin_names(bounds).index(wanted)
    condition = pc.scalar(True)
    if place:
        condition &= value >= bounds[place - 1]
    if place < len(bounds):
        condition &= value < bounds[place]
    return condition
