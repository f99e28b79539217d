"""Files get the same names and units on every machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.sources.units import assign_unit, list_files


def test_names_are_relative_to_the_folder_before_the_first_wildcard(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = list_files(f"{tmp_path}/*/*.jsonl")
    assert list(found) == ["a/1.jsonl", "b/2.jsonl"]
    assert found["b/2.jsonl"] == tmp_path / "b/2.jsonl"
    assert list(list_files(f"{tmp_path}/**/*.txt")) == ["a/1.txt"]
    assert list(list_files(f"{tmp_path}/a/1.txt")) == ["1.txt"]


def test_no_match_and_a_dangling_link_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file matches .*\*\.jsonl"):
        list_files(f"{tmp_path}/*.jsonl")
    os.symlink(tmp_path / "gone", tmp_path / "link.jsonl")
    with pytest.raises(InputError, match=r"link\.jsonl is a link"):
        list_files(f"{tmp_path}/*.jsonl")


def test_a_name_that_is_no_utf_8_is_refused_in_one_sentence(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/na\xffam.txt", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(InputError, match=r"na\\udcffam\.txt: the name of the file is no UTF-8: rename the file"):
        list_files(f"{tmp_path}/*.txt")


def test_the_unit_of_a_name_never_changes() -> None:
    assert [assign_unit(f"{number}.jsonl", 4) for number in range(8)] == [0, 1, 2, 2, 0, 1, 3, 1]


@given(st.text(min_size=1), st.integers(1, 50))
def test_a_unit_is_one_of_the_units(name: str, units: int) -> None:
    assert 0 <= assign_unit(name, units) < units
