"""Describes the shards of a token set in one small file, the index, which the training and later steps read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.corpus.documents import SOURCE_LICENSE
from pipeline.tokens.memory_mapped_shards import Group, MappedShard, encode_batch_places, read_group_key
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import IndexSettings, TokenUse
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet

# These modules check whether the tokens suffice for training, and do not affect the index.
WATCHING = ("pipeline.tokens.validation_reader", "pipeline.tokens.token_reader", "pipeline.tokens.sampler")
SHARED_METADATA = (
    *("tokenizer_sha256", "vocabulary_size", "dtype", "begin_of_text_id", "end_of_text_id", "shards", "grouped_by"),
)
COUNTS = ("documents", "tokens", "bytes")
GROUPS = {"languages": "language", "licenses": "license", "sources": "source"}


def run(settings: IndexSettings, *, train: list[Path], validation: list[Path], index: Path) -> dict[str, Any]:
    """Check that the shards belong together, and write index.json; return documents, tokens and bytes per split.

    Paths are relative to the folder of the index. Languages, licenses and sources count both splits. Documents with the
    license of their source count under SOURCE_LICENSE, so that editing that license does not change the token set.
    `groups` of a shard are in the order of its tokens.

    Raises:
        InputError: shards differ in tokenizer or type, one is missing or duplicated, or there are too few tokens for a
            model.
    """
    groups: dict[str, dict[str, dict[str, int]]] = {name: {} for name in GROUPS}
    shared: dict[str, str] = {}
    splits: dict[str, dict[str, Any]] = {}
    for split, paths in (("train", train), ("validation", validation)):
        numbered: dict[int, dict[str, Any]] = {}
        for path in sorted(paths):
            metadata, entry = _describe_shard(path, index.parent, groups)
            _check_shard(path, split, settings.shards, metadata, shared)
            if int(metadata["shard"]) in numbered:
                raise InputError(f"{path} is shard {metadata['shard']} of {split}, which another file is too")
            numbered[int(metadata["shard"])] = entry
        missing = sorted(set(range(settings.shards)) - set(numbered))
        if missing:
            raise InputError(f"the {split} split lacks the shards {missing}: build them with tokens.shard")
        shards = [numbered[number] for number in sorted(numbered)]
        totals = {name: sum(entry[name] for entry in shards) for name in COUNTS}
        splits[split] = {**totals, "groups": _sum_groups(shards), "shards": shards}
        print(f"tokens: {split} {totals}", flush=True)
    result = {
        "tokenizer_sha256": shared["tokenizer_sha256"],
        "vocabulary_size": int(shared["vocabulary_size"]),
        "dtype": shared["dtype"],
        "begin_of_text_id": int(shared["begin_of_text_id"]),
        "end_of_text_id": int(shared["end_of_text_id"]),
        "shards": settings.shards,
        "grouped_by": shared["grouped_by"].split(","),
        **splits,
        **{name: dict(sorted(counted.items())) for name, counted in groups.items()},
    }
    index.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for use in settings.uses:
        _check_model_requirements(use, index, {split: described["documents"] for split, described in splits.items()})
    return {split: {name: described[name] for name in COUNTS} for split, described in splits.items()}


def _check_model_requirements(use: TokenUse, index: Path, documents: dict[str, int]) -> None:
    try:
        Sampler(TokenReader(index, "train"), use.sequence_length, 1, 0, use.sampling, use.steps)
        if use.validates:
            ValidationSet(index)
    except InputError as error:
        counts = f"documents to train on: {documents['train']}, held out: {documents['validation']}"
        raise InputError(f"model {use.model} cannot be trained on these tokens ({counts}): {error}") from None


def _describe_shard(
    path: Path, folder: Path, groups: dict[str, dict[str, dict[str, int]]]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata of a shard and its entry in the index; add its documents and tokens to `groups`."""
    shard = MappedShard(path)
    metadata, batches = shard.metadata, shard.read_record_batches()
    ranges: dict[Group, dict[str, Any]] = {}
    grouped_by = metadata["grouped_by"].split(",")
    for _, batch in batches:
        lengths = pc.list_value_length(batch.column("tokens")).to_pylist()
        group = read_group_key(batch)
        named = dict(zip(grouped_by, group, strict=True))
        counts = ranges.setdefault(group, {**named, **dict.fromkeys(COUNTS, 0)})
        for name, number in zip(COUNTS, (batch.num_rows, sum(lengths), pc.sum(batch["bytes"]).as_py()), strict=True):
            counts[name] += number
        for name, column in GROUPS.items():
            for value, length in zip(batch.column(column).to_pylist(), lengths, strict=True):
                counted = groups[name].setdefault(value or SOURCE_LICENSE, {"documents": 0, "tokens": 0})
                counted["documents"] += 1
                counted["tokens"] += length
    return metadata, {
        "path": Path(os.path.relpath(path, folder)).as_posix(),
        "sha256": hash_file(path),
        "bytes_on_disk": path.stat().st_size,
        **{name: sum(counts[name] for counts in ranges.values()) for name in COUNTS},
        "groups": list(ranges.values()),
        "batches": encode_batch_places([place for place, _ in batches]),
    }


def _sum_groups(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[Group, dict[str, Any]] = {}
    for described in (described for entry in shards for described in entry["groups"]):
        group = tuple(value for name, value in described.items() if name not in COUNTS)
        total = groups.setdefault(group, {**described, **dict.fromkeys(COUNTS, 0)})
        for name in COUNTS:
            total[name] += described[name]
    return [groups[key] for key in sorted(groups)]


def _check_shard(path: Path, split: str, shards: int, metadata: dict[str, str], shared: dict[str, str]) -> None:
    """Raise InputError if split, number of shards, tokenizer or type of a shard differ from the previous ones."""
    expected = {"split": split, "shards": str(shards), **shared}
    for name, value in expected.items():
        if metadata[name] != value:
            raise InputError(f"{path} has {name} {metadata[name]} where {value} is expected: build all shards again")
    shared.update({name: metadata[name] for name in SHARED_METADATA})
