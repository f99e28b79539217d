"""Differences of two files are reported by rows, columns, keys, tensors or the first byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from pipeline import layout
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Record
from pipeline.provenance.content_differences import BLOCK_BYTES, compare_file_contents, compare_rerun, limit_lines
from tests.provenance.conftest import RunBuilder


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


def test_first_difference_is_found_in_any_block(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.bin")
    a.write_bytes(bytes(BLOCK_BYTES + 3))
    b.write_bytes(bytes(BLOCK_BYTES + 3))
    assert compare_file_contents(a, b) == []
    b.write_bytes(bytes(BLOCK_BYTES + 2))
    size = BLOCK_BYTES + 3
    assert compare_file_contents(a, b) == [
        f"byte {size - 1} is the first that differs, of {size} and {size - 1} bytes",
    ]


def test_long_values_and_many_lines_are_cut(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.txt")
    a.write_text("a" * 50 + "b" * 100 + "\n")
    b.write_text("a" * 50 + "c" * 20 + "\n")
    excerpt = f"…{'a' * 25}{'b' * 75}…"
    assert compare_file_contents(a, b) == [f"line 1: {excerpt} → {'a' * 50}{'c' * 20}"]
    b.write_text("a" * 20)
    assert compare_file_contents(a, b) == [f"line 1: {'a' * 50}{'b' * 50}… → {'a' * 20}"]
    lines = [f"line {number}" for number in range(10)]
    assert limit_lines(lines) == [*lines[:8], "and 2 more"] and limit_lines(lines[:9]) == lines[:9]


def test_tables_without_ids_and_broken_tensors(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "x.parquet")
    pq.write_table(pa.table({"n": [float("nan"), 2.0]}), a)
    pq.write_table(pa.table({"n": [float("nan"), 3.0]}), b)
    assert compare_file_contents(a, b) == ["column n: 1 of 2 rows differ, from 0: 1"]
    pq.write_table(pa.table({"n": [1.0] * 12}), a)
    pq.write_table(pa.table({"n": [2.0] * 12}), b)
    assert compare_file_contents(a, b) == ["column n: 12 of 12 rows differ, from 0: 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"]
    pq.write_table(pa.table({"n": [1.0]}), b)
    assert compare_file_contents(a, b) == ["rows: 12 → 1"]
    a, b = (path.with_name("x.safetensors") for path in (a, b))
    save_file({"w": torch.zeros(2), "v": torch.zeros(2)}, a, metadata={"format": "pt"})
    save_file({"w": torch.zeros(2), "u": torch.zeros(2)}, b)
    assert compare_file_contents(a, b) == [
        "tensor u: nothing → F32 [2]",
        "tensor v: F32 [2] → nothing",
        "metadata format: pt → nothing",
    ]
    b.write_bytes(b"none")
    first, second = compare_file_contents(a, b)
    assert first == "ValueError: not readable as safetensors" and second.startswith("byte 0 is the first that differs")


def short_hash(run: RunBuilder, path: str) -> str:
    return hash_file(run.folder / path)[:16]


def test_rerun_is_compared_with_record_and_files(tmp_path: Path) -> None:
    metrics, log = f"models/base/{layout.METRICS_FILE}", "models/base/tensorboard/log"
    step, record = ("pretrain.export", {"model": "base"}), "provenance/records/x.json"
    same = "models/base/same.bin"
    was = {
        "models/base/a.json": b'{"k": 1}',
        "models/base/b.json": b"{}",
        "models/base/gone.bin": b"was",
        "models/base/old.bin": b"1",
        same: b"1",
        metrics: b'{"loss": 1, "seconds": 1}\n',
        log: b"1",
    }
    run, rerun = RunBuilder(tmp_path / "run"), RunBuilder(tmp_path / "rerun")
    run.write(record, "{}")
    run.job(*step, [record], was, counts={"tokens": 1, "seconds": 1.0})
    old = Record.load(run.folder / "provenance/records/pretrain.export.base.json")
    rerun.write(record, "{ }")
    rerun.job(*step, [record], was, counts={"tokens": 1, "seconds": 2.0})
    read = f"read {record}: {short_hash(run, record)} → {short_hash(rerun, record)}"
    times = "it shows joules and times: external meters may have added readings since"
    assert compare_rerun(run.folder, old, rerun.folder, {"seed": 42}) == ([read], [times])
    now = {
        **was,
        "models/base/a.json": b'{"k": 2}',
        "models/base/b.json": b"{ }",
        "models/base/gone.bin": b"now",
        "models/base/new.bin": b"1",
        metrics: b'{"loss": 2, "seconds": 2}\n',
        log: b"2",
    }
    del now["models/base/old.bin"]
    rerun.job(*step, [record], now, settings={"seed": 43}, counts={"tokens": 2})
    (run.folder / "models/base/gone.bin").unlink()
    (run.folder / same).write_bytes(b"3")
    lines, notes = compare_rerun(run.folder, old, rerun.folder, {"seed": 41})
    changed = {
        path: f"{path}: other bytes, sha256 {hashlib.sha256(was[path]).hexdigest()[:16]} → {short_hash(rerun, path)}"
        for path in was.keys() & now.keys()
    }
    assert lines == [
        "record, settings of its command → settings seed: 41 → 42",
        "settings seed: 42 → 43",
        "counts tokens: 1 → 2",
        read,
        changed["models/base/a.json"],
        "  key k: 1 → 2",
        changed["models/base/b.json"],
        "  the same content in other bytes",
        changed["models/base/gone.bin"],
        f"{metrics}:",
        "  line 1, loss: 1 → 2",
        "models/base/new.bin: not in the record",
        "models/base/old.bin: not written now",
        f"{same}: the file in the run is not what the record says ({short_hash(rerun, same)}), "
        "which the step writes again",
        "  byte 0 is the first that differs, of 1 and 1 bytes",
    ]
    assert notes == [
        "models/base/gone.bin is no longer in the run: compared with its record alone",
        f"{log}: not compared",
        times,
    ]
    rerun.job(*step, [record], {**was, same: b"2", metrics: b'{"loss": 1, "seconds": 2}\n'})
    lines, notes = compare_rerun(run.folder, old, rerun.folder, {"seed": 42})
    assert any(line.endswith("and the step writes neither") for line in lines)
    assert f"{metrics}: the same but for clock times and speeds" in notes
