"""A record that contradicts its command line, its attempt or its own times is reported with each contradiction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.core.job_records import Record, load_records
from pipeline.provenance.evidence_check import check_record_against_attempt
from tests.provenance.test_verify_run import LAWS_RECORD, edit


def contradictions(run: Path, record: Record) -> list[str]:
    """Return what a record contradicts in its command line, its attempt and its own times."""
    reported: list[tuple[str, str]] = []
    check_record_against_attempt(lambda path: run / path, record, lambda *problem: reported.append(problem), set())
    assert {file for file, _ in reported} <= {record.file}
    assert all(sentence.startswith(f"{record.file} contradicts itself: ") for _, sentence in reported)
    return [problem for _, sentence in reported for problem in sentence[:-1].partition("itself: ")[2].split("; ")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": "corpus.filter"}'])
def test_record_with_an_unreadable_attempt_contradicts_itself(finished: Path, content: str) -> None:
    (record,) = [one for one in load_records(finished) if one.file == LAWS_RECORD]
    attempt = finished / layout.ATTEMPTS / str(record.attempt)
    attempt.write_text(content)
    (sentence,) = contradictions(finished, record)
    assert attempt.name in sentence


def test_record_is_compared_with_its_command_attempt_and_times(finished: Path) -> None:
    (record,) = [one for one in load_records(finished) if one.file == LAWS_RECORD]
    given = {"seed": 1, "rules": {"a": 1, "b": {"c": 2}}, "lists": {}}
    words = dict(zip(["--settings", "--code", "--environment"], ["{", "c0de", ""], strict=True))
    command = list(record.full_command)
    for option, value in words.items():
        command[command.index(option) + 1] = value
    other = [*command[:3], "corpus", "other", "--settings", json.dumps(given)]
    rules = {"a": 2, "b": {"c": 3}, "d": 4}
    changes: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"command": command}, ["its command names no settings"]),
        (
            {"command": other, "settings": {"seed": 2, "rules": rules, "lists": {}, "more": 1}},
            [
                *("its command is corpus other, its step corpus.filter",),
                *("its command has other settings: seed, rules.a, rules.b.c",),
                *("its command has another code version", "its command has another environment version"),
            ],
        ),
        ({"ended": "soon"}, ["its times are none", "its attempt has other ended"]),
        ({"attempt": None}, ["it names no attempt"]),
        ({"host": "node2", "cpu_seconds": 1.0}, ["its attempt has other host", "its attempt has other cpu seconds"]),
    ]
    for change, problems in changes:
        assert contradictions(finished, replace(record, **change)) == problems
    edit(finished / layout.ATTEMPTS / str(record.attempt), lambda attempt: attempt.update(status="failed", step="x.y"))
    assert contradictions(finished, record) == ["its attempt has other step", "its attempt is failed"]
    for change in ({"started": record.ended}, {"wall_seconds": 31.0}):
        assert f"its attempt has other {next(iter(change)).replace('_', ' ')}" in contradictions(
            finished, replace(record, **change)
        )
