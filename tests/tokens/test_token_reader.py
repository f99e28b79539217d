"""The reader gives the tokens of all shards as one row, without copying them from the files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus.documents import id_hash
from pipeline.tokens.memory_mapped_shards import MappedShard, map_record_batches
from pipeline.tokens.token_reader import TokenReader, check_altered_shards


@pytest.fixture(scope="module")
def rows(built: Path) -> list[tuple[str, list[int]]]:
    """Id and tokens of the training documents, by plain reads."""
    return [
        (row["id"], row["tokens"])
        for number in range(3)
        for batch in map_record_batches(built.parent / "train" / f"{number}.arrow")[1]
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def reader(built: Path) -> TokenReader:
    return TokenReader(built, "train")


@given(data=st.data())
def test_any_span_equals_the_joined_documents(
    reader: TokenReader, rows: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    joined = [token for _, tokens in rows for token in tokens]
    assert reader.tokens == len(joined)
    start = data.draw(st.integers(0, reader.tokens))
    length = data.draw(st.integers(0, reader.tokens - start))
    read = reader.read(start, length)
    assert read.dtype == np.int64
    assert read.tolist() == joined[start : start + length]
    assert [token for view in reader.slices(start, length) for token in view.tolist()] == read.tolist()


def test_every_position_maps_to_its_document(reader: TokenReader, rows: list[tuple[str, list[int]]]) -> None:
    position = 0
    for name, tokens in rows:
        for at in {position, position + len(tokens) // 2, position + len(tokens) - 1}:
            assert reader.documents_in(at, 1)[0]["id"] == name
        position += len(tokens)


@given(data=st.data())
def test_spans_are_the_documents_that_overlap_a_range(
    reader: TokenReader, rows: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, reader.tokens - 1))
    length = data.draw(st.integers(1, min(1500, reader.tokens - start)))
    ends = np.cumsum([len(tokens) for _, tokens in rows]).tolist()
    spans = [(name, end - len(tokens), end) for (name, tokens), end in zip(rows, ends, strict=True)]
    touched = [span for span in spans if span[1] < start + length and span[2] > start]
    results = [(row["id"], row["start"], row["end"]) for row in reader.documents_in(start, length)]
    assert results == touched


def test_views_are_read_only_memory_maps(built: Path) -> None:
    before = pa.total_allocated_bytes()
    reader = TokenReader(built, "train")
    views = reader.slices(0, reader.tokens)
    assert pa.total_allocated_bytes() == before
    assert all(view.dtype == np.uint16 and not view.flags.writeable and not view.flags.owndata for view in views)


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (0, 10**9), (10**9, 1)])
def test_position_outside_the_split_is_an_error(reader: TokenReader, start: int, length: int) -> None:
    with pytest.raises(IndexError, match=f"tokens {start} to {start + length} reach outside the {reader.tokens} of"):
        reader.read(start, length)


def test_shard_that_differs_from_its_index_is_refused(built: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built.parent, tmp_path / "copied"))
    path = folder / "train" / "0.arrow"
    whole = path.read_bytes()
    described = json.loads(built.read_text(encoding="utf-8"))

    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message):
            TokenReader(folder / "index.json", "train")

    path.write_bytes(whole[:-1])
    refused(rf"train/0\.arrow has {len(whole) - 1} bytes where .*index\.json describes {len(whole)}: it was altered")
    path.write_bytes(whole.replace(described["tokenizer_sha256"].encode(), b"0" * 64))
    refused(r"train/0\.arrow has tokenizer_sha256 0000.* made with another tokenizer, build all shards")
    path.write_bytes(whole.replace(b"320", b"321"))
    refused(r"train/0\.arrow has vocabulary_size 321 where .* says 320: it was made with another tokenizer")
    path.write_bytes(bytes(len(whole)))
    refused(r"0\.arrow is no whole Arrow stream")
    path.unlink()
    refused(r"train/0\.arrow is missing, which .*index\.json names")


def test_shard_newer_than_its_index_is_refused_only_if_it_differs(built: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(built.parent, tmp_path / "main") / "index.json"
    path = copied.parent / "train/1.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole)
    check_altered_shards(copied)
    place = whole.index(b"nl/")  # the identifier of a document: of the same size, and no token
    path.write_bytes(whole[:place] + b"en" + whole[place + 2 :])
    TokenReader(copied, "train")
    with pytest.raises(InputError, match=r"train/1\.arrow has other bytes than .*index\.json says: it was altered"):
        check_altered_shards(copied)
    os.utime(path, ns=(0, 0))
    check_altered_shards(copied)


def test_group_rows_are_their_documents(reader: TokenReader, built: Path) -> None:
    rows = [
        row
        for number in range(3)
        for batch in map_record_batches(built.parent / "train" / f"{number}.arrow")[1]
        for row in batch.to_pylist()
    ]
    assert set(reader.groups) == {("nl_book", "nl"), ("en_book", "en")}
    for group, tokens in reader.groups.items():
        expected = [token for row in rows if (row["source"], row["language"]) == group for token in row["tokens"]]
        result = reader.select_tokens_of_groups({group}.__contains__)
        assert result.read(0, result.tokens).tolist() == expected
        assert tokens == result.tokens == len(expected)
    assert reader.select_tokens_of_groups(lambda group: True).tokens == reader.tokens


def test_documents_are_found_by_their_exact_id(reader: TokenReader, rows: list[tuple[str, list[int]]]) -> None:
    position = 0
    for name, tokens in rows:
        shard = id_hash(name) * 3 >> 64
        assert reader.find_document_span(name, id_hash(name), shard) == (position, position + len(tokens))
        assert reader.find_document_span(name, id_hash(name), (shard + 1) % 3) is None
        assert reader.find_document_span(f"{name}?", id_hash(name), shard) is None
        position += len(tokens)
    assert reader.find_document_span("nl/book.jsonl/none", id_hash("nl/book.jsonl/none"), 0) is None


def test_broken_index_is_refused(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    described = json.loads(built.read_text(encoding="utf-8"))
    without = [{key: described[key] for key in described if key != name} for name in ("train", "dtype")]
    for content in ("{", "[]", *map(json.dumps, without)):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"index\.json is no index of tokens with a train split"):
            TokenReader(path, "train")
    with pytest.raises(InputError, match="is no index"):
        TokenReader(tmp_path / "absent.json", "train")


def test_tokens_are_read_without_searching_record_batches(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TokenReader(built, "train")
    expected, borders = whole.read(0, whole.tokens), whole.document_starts

    def refuse(shard: MappedShard, *given: int) -> None:
        raise AssertionError(f"{shard.path} is read in full")

    for method in ("read_record_batch", "read_record_batches"):
        monkeypatch.setattr(MappedShard, method, refuse)
    reader = TokenReader(built, "train")
    assert np.array_equal(reader.read(0, reader.tokens), expected)
    assert len(reader.batch_views) > 3  # the span was joined from several
    assert sum(reader.select_tokens_of_groups({group}.__contains__).tokens for group in reader.groups) == reader.tokens
    with pytest.raises(AssertionError, match="is read in full"):
        reader.documents_in(int(borders[1]), 1)


@given(data=st.data())
def test_rows_across_two_record_batches_equal_plain_reads(reader: TokenReader, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 900))
    starts = data.draw(st.lists(st.integers(0, reader.tokens - length), min_size=1, max_size=9))
    tokens_BT = np.zeros((len(starts), length), dtype=reader.dtype)
    reader.read_rows(np.array(starts), tokens_BT, np.arange(len(starts)))
    assert tokens_BT.tolist() == [reader.read(start, length).tolist() for start in starts]
    with pytest.raises(IndexError, match="reach outside"):
        reader.read_rows(np.array([reader.tokens - length + 1]), tokens_BT, np.arange(1))
