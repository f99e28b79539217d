"""Records and attempts are read in order and round-trip, and an invalid one is an error."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import command_option, replace_settings_by_digest
from pipeline.core.job_records import (
    SEGMENT_STEP,
    Attempt,
    BatchFile,
    BatchRecord,
    FileEntry,
    FileReference,
    Record,
    ReusedResult,
    is_training_segment,
    load_records,
    load_run_attempts,
    outputs_exist,
)
from tests.record_content import attempt_content, record_content

STEP = "corpus.filter"


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False, sort_keys=True) + "\n")
    return path


def write_record(run: Path, name: str, **fields: Any) -> Path:
    return write(run / f"{layout.RECORDS}/{name}.json", record_content(".".join(name.split(".")[:2]), **fields))


def test_records_are_sorted_by_name(tmp_path: Path) -> None:
    names = [f"corpus.filter.main.laws.{number}" for number in (2, 0, 10)]
    for name in names:
        write_record(tmp_path, name, instance={"corpus": "main", "unit": name[-1]})
    write(tmp_path / f"{layout.RECORDS}/.partial-1.json", {})
    records = load_records(tmp_path)
    assert [record.name for record in records] == sorted(names)
    assert records[0].title == "corpus.filter (corpus=main, unit=0)"
    assert records[0].file == "provenance/records/corpus.filter.main.laws.0.json"
    assert gc.isenabled()


def test_record_fields_are_typed_and_round_trip(tmp_path: Path) -> None:
    content = record_content(
        STEP,
        settings={"name": "é", "share": 0.1, "list": []},
        operation={},
        inputs=[{"name": "files", "path": "data:raw/a.txt", "bytes": 0}],
        outputs=[{"path": "corpus/a.parquet"}],
        environment={"lock": "cpu"},
        frozen={"path": "provenance/frozen/1.json", "sha256": "cd"},
        launch=None,
        taken_over_from={"record": "a.json", "attempt": "b.json"},
        counts={"documents": 3, "nan": float("nan")},
        host="node",
        slurm=None,
        git={"commit": "ef", "dirty": False},
        machine={},
        container=None,
        modules=["cuda"],
        attempt="c.json",
    )
    path = write(tmp_path / "r.json", content)
    record = Record.load(path, strict=True)
    assert record.inputs == (FileEntry("files", "data:raw/a.txt", "ab" * 32, 0),) and record.inputs[0].is_outside_run
    assert not record.outputs[0].is_outside_run
    assert record.frozen == FileReference("provenance/frozen/1.json", "cd")
    assert record.taken_over_from == ReusedResult("a.json", "b.json") and record.computing_attempt_file_name == "b.json"
    assert record.planned_settings_and_versions == ('{"list": [], "name": "é", "share": 0.1}', "code", "environment")
    assert record.ended_seconds == record.started_seconds == 1767607200
    record.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_attempts_and_batches_round_trip(tmp_path: Path) -> None:
    attempt = attempt_content(STEP, snakemake="snakemake.1", host="node", slurm={"slurm_job_id": "7"})
    outputs = [{"path": "corpus/a.parquet", "bytes": 7}]
    names = ("step", "instance", "settings", "code_version", "environment_version")
    batch = {**{name: record_content(STEP)[name] for name in names}, "of": "0f", "outputs": outputs}
    for kind, content in ((Attempt, attempt), (BatchRecord, batch)):
        path = write(tmp_path / "one.json", content)
        read = kind.load(path)
        read.write(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert isinstance(read, BatchRecord) and read.outputs == (BatchFile("corpus/a.parquet", 7),)


def test_older_records_lack_fields_and_newer_records_have_extra_fields() -> None:
    content = {**record_content(STEP, outputs=[{"path": "a", "later": 1}]), "later": 1}
    record = Record.parse(json.dumps(content))
    assert (record.operation, record.modules, record.attempt, record.computing_attempt_file_name) == (
        {},
        [],
        None,
        None,
    )
    assert record.outputs == (FileEntry("file", "a", "ab" * 32, 7),)


SETTINGS = {"list": [], "name": "é", "share": 0.1}
TEXT = '{"list": [], "name": "é", "share": 0.1}'
DIGEST = f"sha256:{hashlib.sha256(TEXT.encode()).hexdigest()}"
FULL, SHORT = (["python", "--settings", word, "--code", "x"] for word in (TEXT, DIGEST))


def test_command_has_the_settings_digest_of_its_record() -> None:
    record = Record.parse(json.dumps(record_content(STEP, settings=SETTINGS, command=FULL)))
    assert (
        record.with_short_command().command
        == SHORT
        == replace_settings_by_digest(SHORT)
        == replace_settings_by_digest(FULL)
    )
    assert record.full_command == record.with_short_command().full_command == FULL
    assert command_option(SHORT, "--settings") == DIGEST
    other = Record.parse(json.dumps(record_content(STEP, settings={**SETTINGS, "share": 0.2}, command=FULL)))
    assert other.with_short_command() == other and replace(other, command=SHORT).full_command == SHORT
    assert record.matches_versions((TEXT, "code", "environment"))
    assert not record.matches_versions((TEXT, "other", "environment"))


def test_batch_refers_to_its_settings_by_digest() -> None:
    content = {**record_content(STEP), "outputs": []}
    del content["settings"]
    of_an_earlier_version = BatchRecord.parse(json.dumps({**content, "settings": SETTINGS}))
    for batch in (of_an_earlier_version, BatchRecord.parse(json.dumps({**content, "settings_digest": DIGEST}))):
        assert batch.matches_versions((TEXT, "code", "environment"))
        assert not batch.matches_versions((TEXT, "code", "other"))
        assert not batch.matches_versions(("{}", "code", "environment"))


def _without(*keys: str | int) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        *parents, last = keys
        for key in parents:
            content = content[key]
        del content[last]

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_without("step"), "the field step is missing"),
        (_without("outputs", 1, "sha256"), "the field outputs.1.sha256 is missing"),
        (lambda content: content["outputs"][1].update(bytes="7"), "the field outputs.1.bytes is not an integer"),
        (lambda content: content["outputs"].append(3), "the field outputs.2 is not an object"),
        (lambda content: content.update(inputs={}), "the field inputs is not a list"),
        (lambda content: content.update(wall_seconds=None), "the field wall_seconds is not a number"),
        (lambda content: content.update(command=["python", 3]), "the field command is not a list of texts"),
        (lambda content: content.update(instance={"step": 3}), "the field instance is not an object of texts"),
        (lambda content: content.update(frozen={"path": "a"}), "the field frozen.sha256 is missing"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_invalid_record_error_names_file_and_field(
    tmp_path: Path, change: Callable[[Any], None], problem: str, strict: bool
) -> None:
    content = record_content(STEP, outputs=[{"path": "a"}, {"path": "b"}])
    change(content)
    with pytest.raises(InputError) as caught:
        Record.load(write(tmp_path / "r.json", content), strict=strict)
    assert str(caught.value) == f"provenance/records/r.json is not a valid record: {problem}"


def test_file_that_is_not_a_record_is_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path, "tokens.shard.main.0")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"provenance/records/tokens\.shard\.main\.0\.json is not a valid record"):
        load_records(tmp_path)
    for text in ("[]", '{"a":' * 100_000):
        path.write_text(text)
        with pytest.raises(InputError, match="is not a valid record"):
            Record.load(path)
    path.unlink()
    with pytest.raises(InputError, match=r"tokens\.shard\.main\.0\.json is missing, or is no file"):
        Record.load(path)
    with pytest.raises(InputError, match="holds no records"):
        load_records(tmp_path)
    assert load_run_attempts(tmp_path) == []


def test_evidence_with_duplicate_keys_is_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path, "tokens.shard.main.0")
    path.write_text(path.read_text().replace('"step":', '"step": "corpus.filter", "step":'))
    assert Record.load(path).step == "tokens.shard"
    with pytest.raises(InputError, match="the key 'step' occurs twice"):
        load_records(tmp_path)


def test_killed_attempt_is_read_as_running(tmp_path: Path) -> None:
    attempt = attempt_content("pretrain.segment", wall_seconds=60.0, last_seen="2026-01-05T10:01:00+00:00")
    write(tmp_path / "provenance/attempts/pretrain.segment.base.10.1.json", attempt)
    write(tmp_path / "provenance/attempts/.partial-x.json", {})
    (read,) = load_run_attempts(tmp_path)
    assert (read.status, read.ended, read.wall_seconds) == ("running", None, 60.0)


def test_outputs_exist_with_their_recorded_sizes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234567")
    assert outputs_exist(tmp_path, [BatchFile("a", 7)])
    assert not outputs_exist(tmp_path, [BatchFile("a", 8)])
    assert not outputs_exist(tmp_path, [BatchFile("a", 7), BatchFile("b", 7)])


def test_training_segment_differs_from_other_jobs_and_models() -> None:
    assert is_training_segment("base", SEGMENT_STEP, {"model": "base", "step": "8"})
    assert not is_training_segment("base", "pretrain.export", {"model": "base"})
    assert not is_training_segment("base", SEGMENT_STEP, {"model": "branch", "step": "8"})
