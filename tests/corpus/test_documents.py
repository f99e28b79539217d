"""The order, the hashes and the ranges of document files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import documents
from pipeline.corpus.documents import (
    DOCUMENT_SCHEMA,
    DocumentCollector,
    id_hash,
    is_validation_cluster,
    read_documents,
    write_removed,
)


def collected(ids: list[str], path: Path) -> Path:
    collector = DocumentCollector()
    for document_id in ids:
        row = {"id": document_id, "text": document_id, "language": "nl", "language_score": 1.0, "source": "s"}
        collector.add({**row, "license": "CC0-1.0", "url": None, "title": None})
    collector.write(path, {})
    return path


def test_id_hash_is_the_first_64_bits_of_the_sha256() -> None:
    assert id_hash("s/f/1") == int(hashlib.sha256(b"s/f/1").hexdigest()[:16], 16)


@given(st.text(st.characters(codec="utf-8")))
def test_validation_set_grows_with_its_fraction(document_id: str) -> None:
    assert not is_validation_cluster(document_id, 0.0)
    assert is_validation_cluster(document_id, 1.0)
    if is_validation_cluster(document_id, 0.1):
        assert is_validation_cluster(document_id, 0.2)


def test_validation_set_has_about_its_fraction() -> None:
    assert 80 <= sum(is_validation_cluster(str(number), 0.1) for number in range(1000)) <= 120


def test_rows_are_sorted_independently_of_input_order(tmp_path: Path) -> None:
    ids = [f"s/f/{number}" for number in range(2500)]
    one = collected(ids, tmp_path / "one")
    assert one.read_bytes() == collected(ids[::-1], tmp_path / "other").read_bytes()
    rows = list(read_documents([one]))
    assert [(row["id_hash"], row["id"]) for row in rows] == sorted((id_hash(i), i) for i in ids)
    assert pq.read_schema(one).equals(DOCUMENT_SCHEMA)


def test_unit_larger_than_memory_gives_the_same_file(tmp_path: Path) -> None:
    ids = [f"s/f/{number}" for number in range(2500)]
    one = collected(ids, tmp_path / "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "MAXIMUM_BUFFERED_CHARACTERS", 3000)
        assert collected(ids[::-1], tmp_path / "other").read_bytes() == one.read_bytes()


def test_ranges_partition_the_documents_and_skip_row_groups(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = collected([f"s/f/{number}" for number in range(5000)], tmp_path / "documents")
    bounds = [shard * 2**64 // 4 for shard in range(5)]
    parts = [list(read_documents([path], (bounds[i], bounds[i + 1] - 1), columns=["id"])) for i in range(4)]
    assert sorted(row["id"] for part in parts for row in part) == sorted(f"s/f/{number}" for number in range(5000))
    assert all(list(row) == ["id"] for part in parts for row in part)
    assert all(id_hash(row["id"]) * 4 >> 64 == shard for shard, part in enumerate(parts) for row in part)
    read: list[list[int]] = []

    class Watched(pq.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
            read.append(keywords["row_groups"])
            return super().iter_batches(*arguments, **keywords)

    monkeypatch.setattr(documents.pq, "ParquetFile", Watched)
    list(read_documents([path], (0, bounds[1] - 1)))
    assert read == [[0], [1]]


def test_empty_document_list_makes_a_valid_file(tmp_path: Path) -> None:
    path = collected([], tmp_path / "empty")
    assert list(read_documents([path])) == []
    assert pq.read_table(path).schema.equals(DOCUMENT_SCHEMA)


def test_removed_documents_file_does_not_depend_on_row_or_metadata_order(tmp_path: Path) -> None:
    rows = [
        {"id": name, "source": "s", "stage": "filter", "reason": "language", "bytes": 3} for name in ("b", "é", "a")
    ]
    metadata = {"unit": 0, "source": "s"}
    write_removed(tmp_path / "one", rows, metadata)
    write_removed(tmp_path / "other", rows[::-1], dict(reversed(metadata.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert pq.read_table(tmp_path / "one")["id"].to_pylist() == ["a", "b", "é"]


def test_only_optional_columns_are_nullable() -> None:
    lacking = {field.name for field in documents.FINAL_SCHEMA if field.nullable}
    assert lacking == {"license", "url", "title", "date", "quality", "perplexity"}
    assert {field.name for field in documents.REMOVED_SCHEMA if field.nullable} == {"value", "language"}
