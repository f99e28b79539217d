"""Records and attempts are read in order, and a broken one is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.provenance.records import load_attempts, load_records


def test_records_come_in_the_order_of_their_names(finished: Path) -> None:
    records = load_records(finished)
    assert [record.file for record in records] == sorted(record.file for record in records)
    laws = next(record for record in records if record.instance.get("source") == "laws" and record.step[0] == "c")
    assert laws.title == "corpus.filter (corpus=main, source=laws, unit=0)"
    assert laws.inputs[0].is_outside
    assert laws.computed_by == laws.attempt


def test_a_truncated_record_names_the_file(finished: Path) -> None:
    path = finished / "provenance/records/tokens.shard.main.0.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"provenance/records/tokens\.shard\.main\.0\.json is not a valid record"):
        load_records(finished)


def test_a_record_without_a_field_names_the_field(finished: Path) -> None:
    path = finished / "provenance/records/tokens.shard.main.0.json"
    record = json.loads(path.read_text())
    del record["outputs"][0]["sha256"]
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"the field outputs\.0\.sha256"):
        load_records(finished)


def test_a_folder_without_records_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no records"):
        load_records(tmp_path)
    assert load_attempts(tmp_path) == []


def test_a_killed_attempt_is_read_as_it_was_left(tmp_path: Path) -> None:
    folder = tmp_path / "provenance/attempts"
    folder.mkdir(parents=True)
    attempt = {
        "step": "pretrain.segment",
        "instance": {"model": "base", "step": "10"},
        "command": ["python"],
        "host": "node1",
        "slurm": None,
        "started": "2026-01-05T10:00:00+00:00",
        "last_seen": "2026-01-05T10:01:00+00:00",
        "ended": None,
        "status": "running",
        "error": None,
        "wall_seconds": 60.0,
        "cpu_seconds": 50.0,
    }
    (folder / "pretrain.segment.base.10.1.json").write_text(json.dumps(attempt))
    (folder / ".partial-x.json").write_text("{")
    (read,) = load_attempts(tmp_path)
    assert (read.status, read.ended, read.wall_seconds) == ("running", None, 60.0)
