"""JSON evidence is unambiguous or refused."""

from __future__ import annotations

import json
import math

import pytest

from pipeline.core.json_validation import parse_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 1}', "the key 'a' occurs twice"),
        ('[{"b": {"a": 1, "c": 2, "a": 3}}]', "the key 'a' occurs twice"),
        ('{"a": 1, "\\u0061": 2}', "the key 'a' occurs twice"),
        ("NaN", "NaN is not a finite number"),
        ('{"a": -Infinity}', "-Infinity is not a finite number"),
        ("1e999", "1e999 is not a finite number"),
        ("[" * 100_000, "nested too deeply"),
        ("{} {}", "Extra data"),
        ("", "Expecting value"),
        (b"\xff\xfe{\x00}\x00", "can't decode"),
        (b"\xef\xbb\xbf{}", "Expecting value"),
    ],
)
def test_ambiguous_or_invalid_json_is_refused(text: bytes | str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_valid_json_is_parsed_as_by_the_standard_library() -> None:
    for text in ('{"a": [1, -2.5e3, "é", null, true], "b": {"a": {}}}', "3", '"\\ud83d\\ude00"', " [1e-400] "):
        assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    assert math.isnan(parse_json('{"a": NaN}', allow_nan=True)["a"])
