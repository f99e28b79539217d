"""Dates of documents keep their known precision."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.raw_documents import iso_date


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2020-02-29", "2020-02-29"),
        ("2020-02-29T10:00:00Z", "2020-02-29"),
        (" 2020-02 ", "2020-02"),
        ("2020", "2020"),
        (2020, "2020"),
        (datetime.date(2020, 2, 3), "2020-02-03"),
        (datetime.datetime(2020, 2, 3, 4), "2020-02-03"),
        ("2021-02-29", None),
        ("2020-13", None),
        ("2020-1-2", None),
        ("20200102", None),
        ("3 mei 2020", None),
        ("٢٠٢٠", None),
        (1588464000, None),
        (True, None),
        (20.5, None),
        (None, None),
        ([], None),
    ],
)
def test_iso_date_is_parsed(value: Any, expected: str | None) -> None:
    assert iso_date(value) == expected


@given(st.dates(datetime.date(1000, 1, 1), datetime.date(2999, 12, 31)))
def test_every_valid_day_is_kept(day: datetime.date) -> None:
    assert iso_date(day.isoformat()) == iso_date(day) == day.isoformat()
