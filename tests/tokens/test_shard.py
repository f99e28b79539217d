"""A shard contains exactly its documents, with reproducible bytes, and changes only with its documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.corpus.documents import id_hash, is_validation_cluster
from pipeline.tokenizer import train
from pipeline.tokenizer.batch_encoder import BatchEncoder, Ids
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens import shard as shard_step
from pipeline.tokens.memory_mapped_shards import map_record_batches
from pipeline.tokens.settings import ShardSettings
from pipeline.tokens.shard import _ShardWriter, shard_id_hash_range


def bytes_of(index: Path) -> dict[str, bytes]:
    return {path.relative_to(index.parent).as_posix(): path.read_bytes() for path in index.parent.rglob("*.*")}


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**20))
def test_shard_range_follows_the_document_hash(value: int, shards: int) -> None:
    shard = value * shards >> 64
    first, last = shard_id_hash_range(shard, shards)
    assert first <= value <= last
    assert first * shards >> 64 == shard == last * shards >> 64
    assert shard == 0 or shard_id_hash_range(shard - 1, shards)[1] == first - 1
    assert shard < shards - 1 or last == 2**64 - 1


def test_every_document_is_once_in_its_split_and_shard_with_its_tokens(
    built: Path, documents: list[Path], tokenizer: Path
) -> None:
    encoder = load_encoder(tokenizer)
    expected = {row["id"]: row for path in documents for row in pq.read_table(path).to_pylist()}
    seen = []
    for split in ("train", "validation"):
        for number in range(3):
            metadata, batches = map_record_batches(built.parent / split / f"{number}.arrow")
            assert (metadata["split"], metadata["shard"], metadata["shards"]) == (split, str(number), "3")
            assert (metadata["dtype"], metadata["end_of_text_id"]) == ("uint16", "1")
            results = [row for batch in batches for row in batch.to_pylist()]
            ordered = sorted(results, key=lambda row: (row["source"], row["language"], id_hash(row["id"])))
            assert [row["id"] for row in results] == [row["id"] for row in ordered]
            assert all(row["id_hash"] == id_hash(row["id"]) for row in results)
            for row in results:
                source = expected[row["id"]]
                assert row["tokens"] == [0, *encoder.encode([source["text"]])[0], 1]
                assert row["bytes"] == len(source["text"].encode())
                assert [row[name] for name in ("source", "language", "license")] == [
                    source[name] for name in ("source", "language", "license")
                ]
                assert is_validation_cluster(row["id"], 0.2) == (split == "validation")
                assert id_hash(row["id"]) * 3 >> 64 == number
                seen.append(row["id"])
    assert sorted(seen) == sorted(expected)


def test_end_of_text_string_in_a_document_does_not_end_it(built: Path) -> None:
    for path in sorted((built.parent / "train").iterdir()):
        for batch in map_record_batches(path)[1]:
            assert all(row.count(1) == 1 and row[-1] == 1 for row in batch.column("tokens").to_pylist())


def test_record_batches_are_small(built: Path) -> None:
    batches = [batch for path in (built.parent / "train").iterdir() for batch in map_record_batches(path)[1]]
    assert len(batches) > 10
    assert all(len(batch.column("tokens")[:-1].flatten()) < 300 for batch in batches)


def test_bytes_do_not_depend_on_file_order_or_division(
    built: Path, documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    files = [write(tmp_path / f"{n}.parquet", rows[n::5], row_group_size=7) for n in (3, 0, 4, 1, 2)]
    again = build_tokens(tmp_path / "again", files, tokenizer)
    assert bytes_of(again) == bytes_of(built)


def test_more_files_are_read_than_may_be_open(
    documents: list[Path],
    tokenizer: Path,
    tmp_path: Path,
    write: Callable[..., Path],
    build_tokens,
    few_files: Callable[[int], AbstractContextManager[None]],
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    files = [write(tmp_path / f"{n}.parquet", rows[n::250]) for n in range(250)]
    with few_files(130):
        many = build_tokens(tmp_path / "many", files, tokenizer, shards=1)
    assert bytes_of(many) == bytes_of(build_tokens(tmp_path / "few", documents, tokenizer, shards=1))


def test_removing_a_document_changes_only_one_shard(
    built: Path, documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    rows = pq.read_table(documents[0]).to_pylist()
    removed = next(row["id"] for row in rows if not is_validation_cluster(row["id"], 0.2))
    changed = write(tmp_path / "nl.parquet", [row for row in rows if row["id"] != removed])
    before = bytes_of(built)
    after = bytes_of(build_tokens(tmp_path / "tokens", [changed, documents[1]], tokenizer))
    assert {name for name in before if before[name] != after[name]} == {
        "index.json",
        f"train/{id_hash(removed) * 3 >> 64}.arrow",
    }


def test_near_duplicates_are_in_the_same_split(
    documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    for number, row in enumerate(rows):
        row["cluster"] = rows[number - number % 3]["id"]  # threes that are near each other
    index = build_tokens(tmp_path / "tokens", [write(tmp_path / "near.parquet", rows)], tokenizer)
    paths = {split: [*(index.parent / split).iterdir()] for split in ("train", "validation")}
    ids = {
        split: {name for path in result for batch in map_record_batches(path)[1] for name in batch["id"].to_pylist()}
        for split, result in paths.items()
    }
    clusters = {split: {row["cluster"] for row in rows if row["id"] in result} for split, result in ids.items()}
    assert not clusters["train"] & clusters["validation"]
    assert ids["validation"] == {row["id"] for row in rows if is_validation_cluster(row["cluster"], 0.2)}
    assert 30 < len(ids["validation"]) < 90


def test_duplicate_document_is_refused(
    documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    first = pq.read_table(documents[0]).to_pylist()[0]
    duplicate = write(tmp_path / "duplicate.parquet", [first])
    with pytest.raises(InputError, match=f"document id '{first['id']}' occurs twice"):
        build_tokens(tmp_path / "tokens", [documents[0], duplicate], tokenizer, shards=1)


def test_two_documents_with_equal_id_hashes_are_both_kept(
    documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    first = pq.read_table(documents[0]).to_pylist()[0]
    other = write(tmp_path / "other.parquet", [{**first, "id": "another", "cluster": "another"}])
    index = build_tokens(tmp_path / "tokens", [documents[0], other], tokenizer, shards=1)
    described = json.loads(index.read_text())
    assert sum(described[split]["documents"] for split in ("train", "validation")) == 151


def test_shard_metadata_equals_its_content(documents: list[Path], tokenizer: Path, tmp_path: Path) -> None:
    splits = {split: tmp_path / f"{split}.arrow" for split in ("train", "validation")}
    shard_settings = ShardSettings(shard=0, shards=2, validation_fraction=0.2)
    counts = shard_step.run(shard_settings, tokenizer=tokenizer, documents=documents, **splits)
    for split, path in splits.items():
        rows = [row for batch in map_record_batches(path)[1] for row in batch.to_pylist()]
        message = (len(rows), sum(len(row["tokens"]) for row in rows), sum(row["bytes"] for row in rows))
        assert counts[split] == dict(zip(("documents", "tokens", "bytes"), message, strict=True)) and rows


@pytest.mark.parametrize(("algorithm", "library"), [("bpe", "tiktoken"), ("unigram", "tokenizers")])
def test_threads_and_libraries_give_the_same_bytes(
    documents: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, library: str
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    chosen = TrainSettings(vocabulary_size=320, validation_fraction=0.2, algorithm=algorithm, markers=["<EMAIL>"])
    train.run(chosen, documents=documents, tokenizer=tokenizer, configuration=tmp_path / "tokenizer_config.json")
    monkeypatch.setattr(shard_step, "CHARACTERS_PER_ENCODING", 3000)
    written = []
    for threads in ("1", "3", "alone"):
        if threads == "alone":
            monkeypatch.setattr("pipeline.tokenizer.batch_encoder.explain_tiktoken_mismatch", lambda *_: "it is a test")
        else:
            monkeypatch.setenv("RAYON_NUM_THREADS", threads)
        splits = {split: tmp_path / f"{split}.{threads}.arrow" for split in ("train", "validation")}
        settings = ShardSettings(shard=0, shards=1, validation_fraction=0.2)
        counts = shard_step.run(settings, tokenizer=tokenizer, documents=documents, **splits)
        assert counts["encoding"]["library"] == (library if threads != "alone" else "tokenizers")
        if algorithm == "unigram" and threads != "alone":
            assert counts["encoding"]["reason"] == "the model is Unigram, not byte-pair encoding"
        written.append([path.read_bytes() for path in splits.values()])
    assert written[0] == written[1] == written[2]


def test_each_thread_encodes_its_share_of_the_text_in_memory(
    documents: list[Path], tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    encode = BatchEncoder.encode

    def measure(self: BatchEncoder, texts: list[str]) -> list[Ids]:
        sizes.append(sum(map(len, texts[:-1])))
        return encode(self, texts)

    monkeypatch.setattr(BatchEncoder, "encode", measure)
    monkeypatch.setattr(shard_step, "CHARACTERS_PER_ENCODING", 3000)
    for threads in (1, 3):
        sizes.clear()
        monkeypatch.setenv("RAYON_NUM_THREADS", str(threads))
        splits = {split: tmp_path / f"{split}.{threads}.arrow" for split in ("train", "validation")}
        settings = ShardSettings(shard=0, shards=1, validation_fraction=0.2)
        shard_step.run(settings, tokenizer=tokenizer, documents=documents, **splits)
        assert 1000 // threads < max(sizes) < 3000 // threads


def test_vocabulary_over_65536_is_stored_in_four_bytes(tokenizer: Path, tmp_path: Path) -> None:
    class Large(Encoder):
        vocabulary_size = 2**16 + 1

    small = load_encoder(tokenizer)
    large = Large(small.tokenizer, small.sha256, 0, 1, 2)
    chosen = ShardSettings(shard=0, shards=1, validation_fraction=0.0)
    with _ShardWriter(tmp_path / "0.arrow", "train", large, chosen) as writer:
        writer.start_document_group({"source": "s", "language": "nl"})
        writer.add((1, "a", "x", "CC0-1.0", "a"), np.array([2**16], dtype=np.uint32))
    metadata, [batch] = map_record_batches(tmp_path / "0.arrow")
    assert metadata["dtype"] == "uint32"
    assert batch.column("tokens").to_pylist() == [[0, 2**16, 1]]


def test_datasets_library_opens_a_shard(built: Path) -> None:
    loaded = datasets.Dataset.from_file(str(built.parent / "train" / "0.arrow"))
    [*batches] = map_record_batches(built.parent / "train" / "0.arrow")[1]
    assert loaded["id"][:] == [name for batch in batches for name in batch.column("id").to_pylist()]
    assert loaded[0]["tokens"] == batches[0].column("tokens")[0].as_py()


def test_shard_beyond_the_number_of_shards_is_refused() -> None:
    with pytest.raises(ValidationError, match="shard 4 does not exist"):
        ShardSettings(shard=4, shards=4, validation_fraction=0.1)
