"""YAML and JSON input is unambiguous, or refused with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import load_yaml, parse_unique_json


@pytest.mark.parametrize(
    ("content", "line", "key"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a"),
        ("a:\n  b: 1\n  b: 2\n", 3, "b"),
        ("a:\n  - {b: 1}\n  - c: 1\n    c: 2\n", 4, "c"),
        ('"a": 1\na: 2\n', 2, "a"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n  b: 1\n  b: 2\n", 5, "b"),
        ('{"a": {"b": 1,\n"b": 2}}', 2, "b"),
        ('{\n\t"a": 1,\n\t"a": 2\n}\n', 3, "a"),
        ('[\n{"a": 1},\n{"a": 1, "a": 1}]', 3, "a"),
        ("\ufeffa: 1\na: 2\n", 2, "a"),
        ("1: a\n0x1: b\n", 2, "0x1"),
        ("yes: a\ntrue: b\n", 2, "true"),
        ("~: a\nnull: b\n", 2, "null"),
    ],
)
def test_duplicate_key_is_refused_with_its_line(content: str, line: int, key: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"file.yaml, line {line}: the key {key} occurs twice"):
        load_yaml(path)


@pytest.mark.parametrize("number", ["010", "-017", "1:30", "12:30:00", "1:30.5"])
def test_non_decimal_number_is_refused_unless_quoted(number: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"a: 1\nb: [1, {number}]\n")
    with pytest.raises(InputError, match=rf"line 2: YAML reads {number} as another number"):
        load_yaml(path)
    path.write_text(f"a: 1\nb: [1, '{number}']\n")
    assert load_yaml(path) == {"a": 1, "b": [1, number]}
    assert load_yaml(path, scalars_as_text=True) == {"a": "1", "b": ["1", number]}


@pytest.mark.parametrize(
    ("content", "value", "text"),
    [
        ("a: no\n", {"a": False}, {"a": "no"}),
        ("a: 0\nb: 08\nc: 0x1F\n", {"a": 0, "b": "08", "c": 31}, {"a": "0", "b": "08", "c": "0x1F"}),
        ("a: 1.50\nb: ~\n", {"a": 1.5, "b": None}, {"a": "1.50", "b": None}),
        ("x: &x {a: 1}\ny: {<<: *x, a: 2}\n", {"x": {"a": 1}, "y": {"a": 2}}, {"x": {"a": "1"}, "y": {"a": "2"}}),
        ('{\n\t"a": "x\\u00e9"\n}', {"a": "xé"}, {"a": "xé"}),
        ('["\u2028", "\x7f", "\\ud83d\\ude00", 1e3]', ["\u2028", "\x7f", "😀", 1e3], ["\u2028", "\x7f", "😀", "1e3"]),
        ('"\\ud83d\\ude00": "\\ud83d\\ude00"\n', {"😀": "😀"}, {"😀": "😀"}),
        ("# nothing\n", None, None),
    ],
)
def test_written_file_is_read_unchanged(content: str, value: Any, text: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content, encoding="utf-8")
    assert load_yaml(path) == value
    assert load_yaml(path, scalars_as_text=True) == text


@pytest.mark.parametrize(
    "content",
    [
        *(b"a: [1", b"a: 1\n---\nb: 2\n", b"a: !!python/object:x {}\n", b"a: caf\xe9\n", b"a: 2026-13-41"),
        *(b"a: \x1b", b"a: \0", b'["\\ud83d"]', b'a: "\\ud83d"'),
    ],
)
def test_invalid_yaml_is_refused_with_its_position(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"file\.yaml(, line \d+, column \d+)?( is no|: this is not UTF-8)"):
        load_yaml(path)


def test_duplicate_key_in_json_is_refused() -> None:
    assert parse_unique_json('{"a": [{"b": 1}, {"b": 2}]}', "f, line 3") == json.loads('{"a": [{"b": 1}, {"b": 2}]}')
    with pytest.raises(InputError, match="f, line 3: the key b occurs twice"):
        parse_unique_json('{"a": [{"b": 1, "b": 2}]}', "f, line 3")
    with pytest.raises(ValueError):
        parse_unique_json("{", "f, line 3")
