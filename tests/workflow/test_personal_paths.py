"""A raw file with personal data in its path is refused, and a searched path is not searched again."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.workflow import cache_between_invocations, preflight

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
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the requests of the searching process, one for each start of it."""
    given, run = [], subprocess.run

    def noted(*words: Any, **options: Any) -> Any:
        given.append(options["input"])
        return run(*words, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    return given


def test_personal_data_in_a_raw_file_name_is_refused_without_printing_it(tmp_path: Path) -> None:
    written = with_post(tmp_path / "raw", "jan.zaaier@plantenpost.nl.txt")
    (sentence,) = preflight.find_problems(parse_configuration(written), {}, slurm=False)
    assert "source post: the path of its file <EMAIL> has personal data" in sentence and "zaaier" not in sentence
    written["corpus"] = {"main": {"personal_data": {"email": False}}}
    assert [*preflight.find_problems(parse_configuration(written), {}, slurm=False)] == []


def test_names_are_searched_again_only_after_a_change(
    tmp_path: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, written = tmp_path / "kept/names", with_post(tmp_path / "raw", "brief.txt")

    def search() -> int:
        assert [*cache_between_invocations.find_personal_data_in_paths(parse_configuration(written), file)] == []
        return len(searches)

    assert [search(), search()] == [1, 1]
    (tmp_path / "raw/nog een.txt").write_text("Dag.")
    assert [search(), search()] == [2, 2], "another file"
    written["corpus"]["main"]["personal_data"] = {"bsn": False}
    assert [search(), search()] == [3, 3], "another setting"
    monkeypatch.setattr(cache_between_invocations, "package_sha256", lambda: "another")
    assert [search(), search()] == [4, 4], "other code"
    written["run"]["environment"] = "cuda"
    assert [search(), search()] == [5, 5], "other libraries"
    file.write_bytes(b"\xff")
    assert [search(), search()] == [6, 6], "a damaged file"
    monkeypatch.setattr(cache_between_invocations, "package_sha256", lambda: Path("/nowhere").read_text())
    assert [search(), search()] == [7, 8], "the code is unknown"


def test_result_is_not_cached_if_the_code_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_configuration(with_post(tmp_path / "raw", "brief.txt"))
    for hashes, is_kept in ((["a", "b"], False), (["b", "b"], True)):
        monkeypatch.setattr(cache_between_invocations, "package_sha256", iter(hashes).__next__)
        assert [*cache_between_invocations.find_personal_data_in_paths(config, tmp_path / "names")] == []
        assert (tmp_path / "names").exists() == is_kept


def test_found_personal_data_is_searched_at_every_invocation(tmp_path: Path, searches: list[str]) -> None:
    config = parse_configuration(with_post(tmp_path / "raw", "jan.zaaier@plantenpost.nl.txt"))
    for number in (1, 2):
        assert (
            len([*cache_between_invocations.find_personal_data_in_paths(config, tmp_path / "names")]) == 1
            and len(searches) == number
        )
    assert not (tmp_path / "names").exists()


def test_unwritable_cache_folder_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [
        *cache_between_invocations.find_personal_data_in_paths(
            parse_configuration(copy.deepcopy(MICRO)), tmp_path / "file/names"
        )
    ] == []
