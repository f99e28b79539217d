"""A raw file whose path holds personal data is refused, and what was searched once is not searched again."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.workflow import preflight, startup_cache

pytestmark = pytest.mark.usefixtures("warm_commands")
MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())


def with_post(folder: Path, name: str) -> dict[str, Any]:
    """Return a configuration with a source of one file."""
    folder.mkdir()
    (folder / name).write_text("Goedemorgen.")
    written = copy.deepcopy(MICRO)
    written["sources"].append({**written["sources"][0], "name": "post", "path": f"{folder}/*.txt"})
    return written


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is asked of the process that searches, once for each start of it."""
    given, run = [], subprocess.run

    def noted(*words: Any, **options: Any) -> Any:
        given.append(options["input"])
        return run(*words, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    return given


def test_a_person_in_the_name_of_a_raw_file_is_refused_without_naming_them(tmp_path: Path) -> None:
    written = with_post(tmp_path / "raw", "jan.zaaier@plantenpost.nl.txt")
    (sentence,) = preflight.find_problems(parse_configuration(written), {}, slurm=False)
    assert "source post: the path of its file <EMAIL> has personal data" in sentence and "zaaier" not in sentence
    written["corpus"] = {"main": {"personal_data": {"email": False}}}
    assert [*preflight.find_problems(parse_configuration(written), {}, slurm=False)] == []


def test_what_was_searched_once_is_searched_again_where_anything_has_changed(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, written = tmp_path / "kept/names", with_post(tmp_path / "raw", "brief.txt")

    def search() -> int:
        assert [*startup_cache.find_personal_data_in_paths(parse_configuration(written), file)] == []
        return len(asked)

    assert [search(), search()] == [1, 1]
    (tmp_path / "raw/nog een.txt").write_text("Dag.")
    assert [search(), search()] == [2, 2], "another file"
    written["corpus"]["main"]["personal_data"] = {"bsn": False}
    assert [search(), search()] == [3, 3], "another setting"
    monkeypatch.setattr(startup_cache, "package_sha256", lambda: "another")
    assert [search(), search()] == [4, 4], "other code"
    written["run"]["environment"] = "cuda"
    assert [search(), search()] == [5, 5], "other libraries"
    file.write_bytes(b"\xff")
    assert [search(), search()] == [6, 6], "a damaged file"
    monkeypatch.setattr(startup_cache, "package_sha256", lambda: Path("/nowhere").read_text())
    assert [search(), search()] == [7, 8], "nobody knows which code"


def test_nothing_is_kept_of_code_that_is_edited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_configuration(with_post(tmp_path / "raw", "brief.txt"))
    for hashes, is_kept in ((["a", "b"], False), (["b", "b"], True)):
        monkeypatch.setattr(startup_cache, "package_sha256", iter(hashes).__next__)
        assert [*startup_cache.find_personal_data_in_paths(config, tmp_path / "names")] == []
        assert (tmp_path / "names").exists() == is_kept


def test_what_was_found_is_searched_at_every_start(tmp_path: Path, asked: list[str]) -> None:
    config = parse_configuration(with_post(tmp_path / "raw", "jan.zaaier@plantenpost.nl.txt"))
    for number in (1, 2):
        assert (
            len([*startup_cache.find_personal_data_in_paths(config, tmp_path / "names")]) == 1 and len(asked) == number
        )
    assert not (tmp_path / "names").exists()


def test_a_folder_that_cannot_be_written_costs_no_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [
        *startup_cache.find_personal_data_in_paths(parse_configuration(copy.deepcopy(MICRO)), tmp_path / "file/names")
    ] == []
