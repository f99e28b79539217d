"""The index lists the content of the shards, and refuses inconsistent shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.documents import SOURCE_LICENSE
from pipeline.tokens import index
from pipeline.tokens.memory_mapped_shards import MappedShard, decode_batch_places, map_record_batches
from pipeline.tokens.settings import IndexSettings, Sampling, TokenUse
from tests.tokens.conftest import build, make_rows, write_documents


def index_again(folder: Path, shards: int = 3) -> None:
    index.run(
        IndexSettings(shards=shards),
        train=sorted((folder / "train").iterdir()),
        validation=sorted((folder / "validation").iterdir()),
        index=folder / "index.json",
    )


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.parent, tmp_path / "copied"))


def test_index_counts_the_content_of_the_shards(built: Path, documents: list[Path], tokenizer: Path) -> None:
    described = json.loads(built.read_text(encoding="utf-8"))
    assert described["tokenizer_sha256"] == sha256(tokenizer.read_bytes()).hexdigest()
    assert (described["vocabulary_size"], described["dtype"], described["shards"]) == (320, "uint16", 3)
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    assert described["train"]["documents"] + described["validation"]["documents"] == len(rows)
    assert described["train"]["bytes"] + described["validation"]["bytes"] == sum(
        len(row["text"].encode()) for row in rows
    )
    for split in ("train", "validation"):
        for number, entry in enumerate(described[split]["shards"]):
            path = built.parent / entry["path"]
            assert entry["path"] == f"{split}/{number}.arrow"
            assert entry["sha256"] == sha256(path.read_bytes()).hexdigest()
            assert entry["bytes_on_disk"] == path.stat().st_size
            lengths = [len(row) for batch in map_record_batches(path)[1] for row in batch.column("tokens").to_pylist()]
            assert (entry["documents"], entry["tokens"]) == (len(lengths), sum(lengths))
            sources = [row for batch in map_record_batches(path)[1] for row in batch.column("source").to_pylist()]
            places, batches = decode_batch_places(entry["batches"]).tolist(), map_record_batches(path)[1]
            for (position, values_position, tokens), batch in zip(places, batches, strict=True):
                flat = batch.column("tokens").flatten().to_numpy()
                assert path.read_bytes()[values_position : values_position + 2 * tokens] == flat.tobytes()
                assert MappedShard(path).read_record_batch(position).equals(batch)
            ordered = [group["source"] for group in entry["groups"] for _ in range(group["documents"])]
            assert sources == ordered == sorted(sources)
        for name in ("documents", "tokens", "bytes"):
            assert described[split][name] == sum(entry[name] for entry in described[split]["shards"])
            assert described[split][name] == sum(group[name] for group in described[split]["groups"])
        assert [group["source"] for group in described[split]["groups"]] == ["en_book", "nl_book"]
    for groups in ("languages", "licenses", "sources"):
        assert sum(group["documents"] for group in described[groups].values()) == len(rows)
        assert sum(group["tokens"] for group in described[groups].values()) == (
            described["train"]["tokens"] + described["validation"]["tokens"]
        )
    assert set(described["licenses"]) == {"CC0-1.0", SOURCE_LICENSE}


def test_index_does_not_depend_on_the_run_folder(built: Path, copied: Path) -> None:
    (copied / "index.json").unlink()
    index_again(copied)
    assert (copied / "index.json").read_bytes() == built.read_bytes()


def test_shard_of_another_tokenizer_is_refused(copied: Path) -> None:
    path = copied / "train" / "1.arrow"
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    foreign = table.schema.metadata | {b"tokenizer_sha256": b"0" * 64}
    with pa.ipc.new_stream(path, table.schema.with_metadata(foreign)) as writer:
        writer.write_table(table.replace_schema_metadata(foreign))
    with pytest.raises(InputError, match=r"1\.arrow has tokenizer_sha256 0000"):
        index_again(copied)


def test_missing_duplicate_or_misplaced_shard_is_refused(copied: Path) -> None:
    train = copied / "train"
    (train / "2.arrow").rename(copied / "2.arrow")
    with pytest.raises(InputError, match=r"train split lacks the shards \[2\]"):
        index_again(copied)
    shutil.copy(train / "1.arrow", train / "2.arrow")
    with pytest.raises(InputError, match=r"2\.arrow is shard 1 of train, which another file is too"):
        index_again(copied)
    shutil.copy(copied / "validation" / "2.arrow", train / "2.arrow")
    with pytest.raises(InputError, match=r"2\.arrow has split validation where train is expected"):
        index_again(copied)


def test_shards_of_another_division_are_refused(copied: Path) -> None:
    with pytest.raises(InputError, match="has shards 3 where 4 is expected"):
        index_again(copied, shards=4)


def test_truncated_or_foreign_file_is_refused(copied: Path, documents: list[Path]) -> None:
    path = copied / "train" / "0.arrow"
    whole = path.read_bytes()
    places = [place.position for place, _ in MappedShard(path).read_record_batches()]
    assert len(places) > 1
    between = [whole[: places[-1]], whole[: places[-1] + 8], whole[:-8], whole[: places[-1]].ljust(len(whole), b"\0")]
    for content in (whole[: len(whole) // 2], b"", documents[0].read_bytes(), *between):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"0\.arrow"):
            index_again(copied)


def test_empty_validation_split_is_indexed(
    documents: list[Path], tokenizer: Path, tmp_path: Path, write: Callable[..., Path], build_tokens
) -> None:
    described = json.loads(build_tokens(tmp_path / "t", [write(tmp_path / "e.parquet", [])], tokenizer, 2).read_text())
    assert described["validation"]["tokens"] == described["train"]["tokens"] == 0


@pytest.mark.parametrize(
    ("texts", "fraction", "asked", "message"),
    [
        (
            1,
            0.0,
            {"validates": True},
            "(documents to train on: 1, held out: 0): the validation split holds no document",
        ),
        (1, 0.999, {}, "(documents to train on: 0, held out: 1): sequence_length 16 needs at least 17 tokens"),
        (3, 0.0, {"sequence_length": 4096}, "sequence_length 4096 needs at least 4097 tokens, the training split has"),
        (40, 0.1, {"sampling": Sampling(weights={"en_book": 1.0})}, "en_book"),
    ],
)
def test_too_few_tokens_for_a_model_are_refused_before_training(
    texts: int, fraction: float, asked: dict[str, Any], message: str, tokenizer: Path, tmp_path: Path
) -> None:
    documents = [write_documents(tmp_path / "nl_book.parquet", make_rows(texts, "nl_book"))]
    need = {"model": "base", "sequence_length": 16, "steps": 10, "sampling": Sampling(), "validates": False}
    with pytest.raises(InputError, match="model base cannot be trained on these tokens") as caught:
        build(tmp_path / "tokens", documents, tokenizer, 1, fraction, uses=[TokenUse.model_validate({**need, **asked})])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_sufficient_tokens_are_indexed_independently_of_models(built: Path, copied: Path) -> None:
    use = TokenUse(model="base", sequence_length=16, steps=10, sampling=Sampling(), validates=True)
    settings = IndexSettings(shards=3, uses=[use])
    places = {split: sorted((copied / split).iterdir()) for split in ("train", "validation")}
    counts = index.run(settings, **places, index=copied / "index.json")
    assert (copied / "index.json").read_bytes() == built.read_bytes()
    described = json.loads(built.read_text())
    for split in ("train", "validation"):
        assert counts[split] == {name: described[split][name] for name in ("documents", "tokens", "bytes")}
    assert settings.result_settings() == IndexSettings(shards=3).result_settings() and settings.non_result_settings()
