"""Every format gives the same documents; what cannot be read is counted, named and bounded."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.reader import Reader, RemovedDocuments
from pipeline.errors import InputError
from pipeline.sources import streams
from pipeline.sources.formats import Keys, read_records


def read(folder: Path, contents: dict[str, bytes], **keywords: Any) -> tuple[list[Any], list[dict[str, Any]], Reader]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    removed = RemovedDocuments("s", "filter")
    reader = Reader("s", "CC0-1.0", list(contents), [folder / name for name in contents], removed, **keywords)
    return list(reader.run()), removed.rows, reader


def parquet(rows: dict[str, pa.Array]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(rows), stream)
    return stream.getvalue()


LINES = (
    b'{"id": "a", "text": "een", "url": "u", "title": 3}\n\n{"text": "twee \xe2\x82\xac"}\n{"id": 7, "text": "drie"}'
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", LINES),
        ("x.jsonl.gz", gzip.compress(LINES[:30]) + gzip.compress(LINES[30:])),
        ("x.ndjson.zst", zstandard.compress(LINES[:30]) + zstandard.compress(LINES[30:])),
    ],
)
def test_json_lines(tmp_path: Path, name: str, content: bytes) -> None:
    documents, removed, reader = read(tmp_path, {name: content})
    assert [(d.id, d.text) for d in documents] == [
        (f"s/{name}/a", "een"),
        (f"s/{name}/2", "twee €"),
        (f"s/{name}/7", "drie"),
    ]
    shown = {"source": "s", "license": "CC0-1.0", "url": "u", "title": "3", "bytes": 3, "original_id": "a"}
    assert {key: value for key, value in documents[0].metadata.items() if value is not None} == shown
    assert removed == [] and (reader.records_in, reader.bytes_in) == (3, 15)


def test_parquet_and_plain_text(tmp_path: Path) -> None:
    rows = {"key": pa.array([1, 2]), "body": pa.array(["een", None]), "other": pa.array([0, 0])}
    contents = {"x.parquet": parquet(rows)}
    documents, removed, _ = read(tmp_path, contents, text_key="body", id_key="key", broken_share=0.5)
    assert [(d.id, d.text) for d in documents] == [("s/x.parquet/1", "een")]
    assert [(row["id"], row["reason"]) for row in removed] == [("s/x.parquet/2", "missing_text")]
    documents, _, _ = read(tmp_path, {"a.txt": b"regel\nregel", "b.md.gz": gzip.compress(b"# kop"), "c.txt": b""})
    assert [(d.id, d.text) for d in documents] == [("s/a.txt/0", "regel\nregel"), ("s/b.md.gz/0", "# kop")]


def test_a_string_column_that_is_not_utf8_is_counted(tmp_path: Path) -> None:
    column = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\4\0\0\0\5\0\0\0"), pa.py_buffer(b"goed\xff"))
    documents, removed, _ = read(tmp_path, {"x.parquet": parquet({"text": column})}, broken_share=0.5)
    assert [d.text for d in documents] == ["goed"]
    assert [row["reason"] for row in removed] == ["invalid_utf8"]


BROKEN = [
    (b'{"text": "\xff"}', "invalid_utf8"),
    (b'{"text": "\\ud800"}', "invalid_utf8"),
    (b'{"text": ', "broken_json"),
    (b"[" * 100_000, "broken_json"),
    (b"[1]", "not_an_object"),
    (b"{}", "missing_text"),
    (b'{"text": "  "}', "missing_text"),
    (b'{"text": 3}', "missing_text"),
    (b'{"text": null}', "missing_text"),
]


def test_broken_lines_are_removed_with_their_reason_and_line(tmp_path: Path) -> None:
    content = b'{"text": "goed"}\n' + b"\n".join(line for line, _ in BROKEN)
    documents, removed, reader = read(tmp_path, {"x.jsonl": content}, broken_share=0.9)
    assert [d.text for d in documents] == ["goed"]
    expected = [(f"s/x.jsonl/{number}", reason) for number, (_, reason) in enumerate(BROKEN, 2)]
    assert [(row["id"], row["reason"]) for row in removed] == expected
    assert reader.records_in == 10 and reader.bytes_in == 4 + sum(row["bytes"] for row in removed)


def test_too_many_broken_lines_stop_with_share_and_first_line(tmp_path: Path) -> None:
    content = b'{"text": "goed"}\n' * 8 + b"{\n" * 2
    with pytest.raises(
        InputError, match=r"source s: 20\.0% of 10 lines are broken, first x\.jsonl line 9 \(broken_json"
    ):
        read(tmp_path, {"x.jsonl": content}, broken_share=0.19)
    documents, _, _ = read(tmp_path, {"x.jsonl": content}, broken_share=0.2)
    assert len(documents) == 8


def test_ids_are_unique_also_beside_broken_lines(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "text": "1"},
        {"id": "a", "text": "2"},
        {"id": "a#2", "text": "3"},
        {"id": "5", "text": "4"},
        {},
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    documents, removed, _ = read(tmp_path, {"x.jsonl": content}, broken_share=1.0)
    ids = [d.id for d in documents] + [row["id"] for row in removed]
    assert ids == [f"s/x.jsonl/{i}" for i in ("a", "a#2", "a#2#2", "5", "5#2")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.gz", gzip.compress(LINES)[:-9]),
        ("x.jsonl.gz", LINES),
        ("x.jsonl.zst", zstandard.compress(LINES * 100)[:-3]),
        ("x.jsonl.zst", LINES),
        ("x.parquet", parquet({"text": pa.array(["a"])})[:-3]),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"{name} is truncated or"):
        read(tmp_path, {name: content})


def test_an_unknown_format_and_a_missing_column_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.csv: the format is not known by its name"):
        read(tmp_path, {"x.csv": b"a,b"})
    with pytest.raises(InputError, match=r"no column 'text': set text_key of the source to one of \['body'\]"):
        read(tmp_path, {"x.parquet": parquet({"body": pa.array(["a"])})})


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=20), st.integers(1, 9))
def test_lines_do_not_depend_on_the_size_of_pieces(texts: list[str], size: int) -> None:
    content = "\n".join(texts).encode()
    pieces = [(content[start : start + size], start) for start in range(0, len(content), size)]
    assert [line for line, *_ in streams.lines(iter(pieces), 10**6)] == content.split(b"\n")
    limited = [(line if len(line) <= 5 else None, len(line)) for line in content.split(b"\n")]
    assert [(line, length) for line, length, _ in streams.lines(iter(pieces), 5)] == limited


def test_records_carry_line_numbers(tmp_path: Path, gzipped: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(gzipped(LINES))
    assert [record.number for record in read_records(tmp_path / "x", "x.jsonl.gz", Keys(), 99)] == [1, 3, 4]
