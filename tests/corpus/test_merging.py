"""Documents of any number of files come in one order, and few of the files are open at a time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import document_streams
from pipeline.corpus.document_streams import merge_documents
from pipeline.corpus.documents import FINAL_SCHEMA, LAST_HASH, id_hash


def written(folder: Path, files: int) -> tuple[list[Path], list[dict[str, Any]]]:
    """Write files of 0 to 4 documents; return their paths and all documents."""
    draw, paths, rows = random.Random(files), [], []
    for number in range(files):
        some = []
        for row in range(draw.randrange(5)):
            name = f"s/{number}/{row}"
            known = {"id": name, "text": f"tekst {number} {row}", "language": draw.choice(["nl", "en"])}
            fixed = {"language_score": 1.0, "source": "s", "license": "CC0-1.0", "flags": []}
            some.append({**known, **fixed, "cluster": name, "cluster_size": 1, "id_hash": id_hash(name)})
        rows += some
        some.sort(key=lambda row: (row["id_hash"], row["id"]))
        paths.append(folder / f"{number}.parquet")
        pq.write_table(pa.Table.from_pylist(some, FINAL_SCHEMA), paths[-1], row_group_size=2)
    return paths, rows


def test_the_order_is_that_of_the_hash_for_any_number_of_files_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, rows = written(tmp_path, 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    half = LAST_HASH // 2
    for files_open in (2, 7, 39, 40):
        monkeypatch.setattr(document_streams, "FILES_OPEN", files_open)
        found = list(merge_documents(reversed(paths), ["text", "language"]))
        expected = [(row["id_hash"], row["id"], row["text"], row["language"]) for row in rows]
        assert found == sorted(expected)
        some = list(merge_documents(paths, ["text"], (half, LAST_HASH), pc.field("language") == "nl", ["language"]))
        assert some == [row[:3] for row in found if row[0] >= half and row[3] == "nl"]
        assert not list((tmp_path / "temporary").iterdir())
    assert list(merge_documents([], ["text"])) == []


def test_more_files_are_read_than_may_be_open(
    tmp_path: Path, few_files: Callable[[int], AbstractContextManager[None]]
) -> None:
    paths, rows = written(tmp_path, 300)
    with few_files(120):
        assert len(list(merge_documents(paths, ["text"]))) == len(rows)


def test_temporary_files_hold_what_is_wanted_and_go_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, rows = written(tmp_path, 200)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(document_streams, "FILES_OPEN", 2)
    wanted = sorted(row["id_hash"] for row in rows)[:10]
    for _ in merge_documents(paths, ["text"], (0, wanted[-1])):
        held = [pq.read_metadata(path).num_rows for path in (tmp_path / "temporary").rglob("*.parquet")]
        assert sum(held) == 10
