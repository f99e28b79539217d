"""Differences of two files are reported by rows, columns, keys, tensors or the first byte."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from pipeline.provenance.content_differences import compare_file_contents


def pair(tmp_path: Path, name: str) -> tuple[Path, Path]:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    return tmp_path / "a" / name, tmp_path / "b" / name


def test_table_differences_in_rows_columns_and_metadata(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.parquet")
    pq.write_table(pa.table({"id": ["p", "q", "r"], "n": [1, 2, 3]}), a)
    pq.write_table(pa.table({"id": ["p", "q", "r"], "n": [1, 2, 3]}), b, compression="zstd")
    assert a.read_bytes() != b.read_bytes() and compare_file_contents(a, b) == []
    pq.write_table(pa.table({"id": ["p", "q", "r"], "n": [1, 7, 8], "m": ["", "", ""]}), b)
    assert compare_file_contents(a, b) == [
        "column m: nothing → string",
        "column n: 2 of 3 rows differ, from 0: 1, 2",
    ]
    pq.write_table(pa.table({"id": ["p", "s"], "n": [1, 2]}, metadata={"k": "v"}), b)
    assert compare_file_contents(a, b) == [
        "metadata k: nothing → v",
        "rows: 3 → 2",
        "row q is gone",
        "row r is gone",
        "row s is new",
    ]


def test_arrow_stream_row_differences(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.arrow")
    for path, tokens in ((a, [[1, 2], [3]]), (b, [[1, 2], [4]])):
        table = pa.table({"tokens": tokens})
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    assert compare_file_contents(a, b) == ["column tokens: 1 of 2 rows differ, from 0: 1"]


def test_tensor_differences_have_their_size(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.safetensors")
    save_file({"w": torch.zeros(2, 3), "v": torch.zeros(4)}, a)
    save_file({"w": torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, -0.25]]), "v": torch.zeros(5)}, b)
    assert compare_file_contents(a, b) == [
        "tensor v: F32 [4] → F32 [5]",
        "tensor w: 2 of 6 values differ, by 0.5 at most",
    ]


def test_json_key_and_metric_line_differences_ignore_speeds(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.json")
    a.write_text(json.dumps({"k": [1, {"l": "x" * 200 + "1"}]}))
    b.write_text(json.dumps({"k": [1, {"l": "x" * 200 + "2"}]}))
    (line,) = compare_file_contents(a, b)
    assert line.startswith("key k.1.l: …x") and 'x1"' in line and 'x2"' in line
    a, b = (path.with_name("metrics.jsonl") for path in (a, b))
    a.write_text('{"step": 1, "loss": 2.0, "seconds": 1.0, "device_utilization": 0.5}\n')
    b.write_text('{"step": 1, "loss": 2.5, "seconds": 3.0, "device_utilization": 0.1}\n')
    assert compare_file_contents(a, b) == ["line 1, loss: 2.0 → 2.5"]


def test_line_of_a_text_is_shown_as_it_was_and_as_it_is(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "README.md")
    a.write_text("same\nold\n")
    b.write_text("same\nnew\nmore\n")
    assert compare_file_contents(a, b) == ["line 2: old → new", "line 3: nothing → more"]


def test_json_lines_end_only_at_line_feeds(tmp_path: Path) -> None:
    before, now = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    before.write_text('{"a": "x\u2028y\x85"}\n{"a": 1}\n', encoding="utf-8")
    now.write_text('{"a": "x\u2028y\x85"}\n{"a": 2}\n', encoding="utf-8")
    assert compare_file_contents(before, now) == ["line 2, a: 1 → 2"]


def test_other_and_invalid_files_are_compared_by_bytes(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.bin")
    a.write_bytes(b"abcd")
    b.write_bytes(b"abXde")
    assert compare_file_contents(a, b) == ["byte 2 is the first that differs, of 4 and 5 bytes"]
    a, b = (path.rename(path.with_name("x.parquet")) for path in (a, b))
    lines = compare_file_contents(a, b)
    assert "not readable as parquet" in lines[0] and lines[1].startswith("byte 2")
