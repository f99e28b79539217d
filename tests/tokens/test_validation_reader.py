"""A validation reads complete documents of every source, the same ones for any file order and world size."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.tokens.memory_mapped_shards import map_record_batches
from pipeline.tokens.sampler import IGNORE_INDEX
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet
from tests.tokens.conftest import make_rows

T = 16


def by_hand(index: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of the validation split by id, read from the shards as tables."""
    entries = json.loads(index.read_text(encoding="utf-8"))["validation"]["shards"]
    batches = [batch for entry in entries for batch in map_record_batches(index.parent / entry["path"])[1]]
    return {row["id"]: row for batch in batches for row in batch.to_pylist()}


def seen(held_out: ValidationSet, world_size: int = 1, batch: int = 4) -> tuple[list[list[int]], list[int]]:
    """Return the predicted tokens of each document, and all inputs, over all ranks in order."""
    ranks = [list(held_out.batches(T, batch, rank, world_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1, "every rank takes equally many steps"
    assert {rows.input_BT.shape for batches in ranks for rows in batches} <= {(batch // world_size, T)}
    documents: list[list[int]] = [[] for _ in held_out.tokens_D]
    inputs: list[int] = []
    for rows in (rows for step in zip(*ranks, strict=True) for rows in step):
        inputs += rows.input_BT.ravel().tolist()
        for target, document in zip(rows.target_BT.ravel().tolist(), rows.document_BT.ravel().tolist(), strict=True):
            if target != IGNORE_INDEX:
                documents[document].append(target)
    return documents, inputs


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_token_is_predicted_once_in_its_document_except_begin_of_text(built: Path, world_size: int) -> None:
    held_out, expected = ValidationSet(built), by_hand(built)
    documents, _ = seen(held_out, world_size)
    ordered = sorted(expected.values(), key=lambda row: (row["source"], row["language"], row["id_hash"]))
    assert documents == [row["tokens"][1:] for row in ordered]
    assert held_out.tokens_D.tolist() == [len(row["tokens"]) - 1 for row in ordered]
    assert held_out.bytes_D.tolist() == [row["bytes"] for row in ordered]
    assert [held_out.groups[code] for code in held_out.group_D] == [(row["source"], row["language"]) for row in ordered]
    for column in ("source", "language"):
        for name in {row[column] for row in ordered}:
            numbers = [number for number, row in enumerate(ordered) if row[column] == name]
            assert held_out.document_subsets[f"{column}/{name}"].tolist() == numbers
    assert list(held_out.document_subsets) == sorted(held_out.document_subsets)
    reader = TokenReader(built, "validation")
    described = held_out.summarize_counts()
    assert described["documents"] == described["of_documents"] == reader.documents
    assert described["tokens"] == described["of_tokens"] == reader.tokens - reader.documents
    assert described["bytes"] == reader.bytes


def test_inputs_are_the_concatenated_documents_padded_with_begin_of_text(built: Path) -> None:
    held_out = ValidationSet(built)
    _, inputs = seen(held_out)
    ordered = sorted(by_hand(built).values(), key=lambda row: (row["source"], row["language"], row["id_hash"]))
    whole = [token for row in ordered for token in row["tokens"]]
    rest = inputs[len(whole) - 1 :]
    assert inputs[: len(whole) - 1] == whole[:-1] and set(rest) == {TokenReader(built, "validation").begin_of_text_id}


@pytest.mark.parametrize("tokens", [1, 200, 700])
def test_sample_is_proportional_by_source_and_part_of_a_larger_one(built: Path, tokens: int) -> None:
    whole, part, larger = ValidationSet(built), ValidationSet(built, tokens), ValidationSet(built, tokens + 400)
    sizes = Counter(whole.groups[code] for code in whole.group_D.tolist())
    counts = Counter(part.groups[code] for code in part.group_D.tolist())
    share = tokens / whole.split_tokens
    assert set(counts) == set(sizes) and len(sizes) == 2
    assert all(size * share <= counts[group] < size * share + 1 for group, size in sizes.items())
    texts, among = seen(part)[0], seen(larger)[0]
    assert all(text in among for text in texts) and part.summarize_counts()["of_documents"] == len(whole.tokens_D)


def test_sampled_documents_have_the_least_hashes_of_their_source(built: Path) -> None:
    part, by_source = ValidationSet(built, 300), defaultdict(list)
    for row in by_hand(built).values():
        by_source[row["source"]].append((row["id_hash"], row["tokens"][1:]))
    expected = []
    for source in sorted(by_source):
        number = sum(part.groups[code][0] == source for code in part.group_D.tolist())
        expected += [tokens for _, tokens in sorted(by_source[source])[:number]]
    assert seen(part)[0] == expected


def test_file_and_shard_order_do_not_change_the_text(
    tmp_path: Path, tokenizer: Path, write: Callable[..., Path], build_tokens: Callable[..., Path]
) -> None:
    files = [write(tmp_path / f"{name}.parquet", make_rows(120, name)) for name in ("nl", "en")]
    one = build_tokens(tmp_path / "one", files, tokenizer, 1)
    other = build_tokens(tmp_path / "other", files[::-1], tokenizer, 4)
    for tokens in (None, 300):
        assert seen(ValidationSet(one, tokens)) == seen(ValidationSet(other, tokens))


def test_split_without_documents_is_one_sentence(
    tmp_path: Path, tokenizer: Path, write: Callable[..., Path], build_tokens: Callable[..., Path]
) -> None:
    empty = build_tokens(tmp_path / "tokens", [write(tmp_path / "empty.parquet", [])], tokenizer, 1)
    with pytest.raises(InputError, match="the validation split holds no document: raise"):
        ValidationSet(empty)


def test_world_size_that_does_not_divide_the_batch_is_refused(built: Path) -> None:
    with pytest.raises(InputError, match="global_batch_size 4 cannot be shared by 3 ranks"):
        next(ValidationSet(built).batches(T, 4, 0, 3))


def test_ignored_targets_are_begin_of_text_and_padding(built: Path) -> None:
    held_out = ValidationSet(built)
    ignored = sum(int((rows.target_BT == IGNORE_INDEX).sum()) for rows in held_out.batches(T, 4))
    rows_seen = -(-(int((held_out.tokens_D + 1).sum()) - 1) // T)
    assert ignored == -(-rows_seen // 4) * 4 * T - int(held_out.tokens_D.sum())


@pytest.mark.parametrize("tokens", [None, 300])
@pytest.mark.parametrize("at_once", [1, 100])
def test_pairs_are_each_predicted_token_with_its_predecessor(
    built: Path, tokens: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tokens.validation_reader.TOKENS_PER_READ", at_once)
    held_out = ValidationSet(built, tokens)
    begin = TokenReader(built, "validation").begin_of_text_id
    expected = [pair for document in seen(held_out)[0] for pair in pairwise([begin, *document])]
    stretches = [
        zip(before.tolist(), after.tolist(), strict=True) for before, after in held_out.iterate_predicted_pairs()
    ]
    assert [pair for stretch in stretches for pair in stretch] == expected
