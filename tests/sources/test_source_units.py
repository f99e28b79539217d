"""The listing assigns files to units, and a batch is a range of units that no other file changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.sources import listing
from pipeline.sources.settings import ListingSettings, Source
from pipeline.sources.source_units import SourceUnits, assign_unit, find_files_by_glob, listing_sha256


def source(**described: Any) -> Source:
    rights = {"basis": "license", "holder": "someone"}
    return Source.model_validate({"name": "s", "language": "nl", "license": "MIT", "rights": rights, **described})


def settings(units: SourceUnits) -> ListingSettings:
    described = units.source
    return ListingSettings(
        source="s",
        pattern=units.folder_and_pattern()[1],
        units=described.units,
        unit_bytes=described.unit_bytes,
        listing_sha256=listing_sha256(units.units),
    )


def test_every_file_is_listed_once_and_a_large_one_by_its_parts(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (raw / "a").mkdir(parents=True)
    for name in ("a/1.txt", "a/2.txt", "3.txt"):
        (raw / name).write_text("kort")
    (raw / "groot.txt").write_text("x" * 5000)
    units = SourceUnits(source(path=f"{raw}/**/*.txt", units=2, unit_bytes=2048), None, tmp_path / "parts")
    counts = listing.run(settings(units), raw=raw, listing=tmp_path / "listing")
    assert counts == {"units": len(units.units), "files": 4}
    listed = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "listing").iterdir()}
    assert {unit: [file["name"] for file in content["files"]] for unit, content in listed.items()} == {
        unit: [*files] for unit, files in units.units.items()
    }
    parts = [file["part"] for content in listed.values() for file in content["files"] if file["part"]]
    assert len(parts) == 3 and {Path(part).name for part in parts} == {
        "00000.parquet",
        "00001.parquet",
        "00002.parquet",
    }
    assert str(tmp_path) not in json.dumps(listed)


@pytest.mark.parametrize(("size", "parts"), [(2047, 0), (2048, 0), (2049, 2), (4096, 2), (4097, 3)])
def test_file_larger_than_a_unit_is_split(size: int, parts: int, tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"x" * size)
    units = SourceUnits(source(path=f"{tmp_path}/*.txt", unit_bytes=2048), None, tmp_path / "parts")
    assert [cut for _, cut in units.large_files.values()] == [parts] * (parts > 0)
    assert len(units.units) == max(parts, 1)


def test_file_added_while_the_job_waited_is_reported(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("x")
    planned = settings(SourceUnits(source(path=f"{tmp_path}/*.txt"), None, tmp_path / "parts"))
    (tmp_path / "2.txt").write_text("y")
    with pytest.raises(InputError, match="the files of s changed while the job waited"):
        listing.run(planned, raw=tmp_path, listing=tmp_path / "listing")


@given(st.integers(1, 300), st.integers(1, 40))
def test_every_unit_is_in_one_batch_of_bounded_size(units: int, units_per_job: int) -> None:
    batches = dataset(units, units_per_job).batches
    assert max(map(len, batches.values())) <= units_per_job
    assert [unit for batch in batches.values() for unit in batch] == [str(unit) for unit in range(units)]


@pytest.mark.parametrize(("units", "jobs"), [(1, 1), (240, 1), (241, 2), (9_600, 40), (10_000, 42), (100_000, 100)])
def test_job_uses_many_cores_and_a_source_has_at_most_a_hundred_jobs(units: int, jobs: int) -> None:
    batches = dataset(units, None).batches
    assert len(batches) == jobs and all(len(batch) % 48 == 0 for batch in [*batches.values()][:-1])


@pytest.mark.parametrize(("units", "jobs"), [(1, 1), (1_000, 5), (100_000, 100)])
def test_many_small_files_make_few_jobs(units: int, jobs: int) -> None:
    listed = SourceUnits(source(path="*.txt", units=units), None, Path("parts"))
    names = [f"{number}.txt" for number in range(10_000)]
    listed.__dict__.update(files={name: Path(name) for name in names}, sizes=dict.fromkeys(names, 1))
    results = [name for batch in listed.batches.values() for unit in batch for name in listed.units[unit]]
    assert len(listed.batches) == jobs and sorted(results) == sorted(names)


def test_parts_of_large_files_share_jobs_that_new_files_barely_change(tmp_path: Path) -> None:
    def batches() -> dict[str, list[str]]:
        described = source(path=f"{tmp_path}/*.txt", unit_bytes=1024, units_per_job=24)
        return SourceUnits(described, None, tmp_path / "parts").batches

    for number in range(100):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 8 * 1024)
    (tmp_path / "small.txt").write_text("x")
    before = batches()
    sizes = [len(batch) for number, batch in before.items() if int(number) >= 100_000]
    assert sum(sizes) == 800 and 32 <= len(sizes) <= 64 and max(sizes) <= 96
    (tmp_path / "new.txt").write_bytes(b"x" * 8 * 1024)
    changed = [number for number, batch in batches().items() if before.get(number) != batch]
    assert len(changed) == 1


def dataset(units: int, units_per_job: int | None) -> SourceUnits:
    name = {"name": "nobody/nothing", "revision": "0" * 40}
    described = source(dataset=name, units=units, units_per_job=units_per_job)
    return SourceUnits(described, None, Path("parts"))


def test_names_are_relative_to_the_folder_before_the_first_wildcard(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    files = find_files_by_glob(f"{tmp_path}/*/*.jsonl")
    assert list(files) == ["a/1.jsonl", "b/2.jsonl"]
    assert files["b/2.jsonl"] == tmp_path / "b/2.jsonl"
    assert list(find_files_by_glob(f"{tmp_path}/**/*.txt")) == ["a/1.txt"]
    assert list(find_files_by_glob(f"{tmp_path}/a/1.txt")) == ["1.txt"]


def test_unmatched_pattern_and_dangling_link_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file matches .*\*\.jsonl"):
        find_files_by_glob(f"{tmp_path}/*.jsonl")
    os.symlink(tmp_path / "gone", tmp_path / "link.jsonl")
    with pytest.raises(InputError, match=r"link\.jsonl is a link"):
        find_files_by_glob(f"{tmp_path}/*.jsonl")


def test_file_name_with_invalid_utf8_is_refused(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/na\xffam.txt", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(InputError, match=r"na\\udcffam\.txt: the name of the file is no UTF-8: rename the file"):
        find_files_by_glob(f"{tmp_path}/*.txt")


def test_unit_of_a_file_name_never_changes() -> None:
    assert [assign_unit(f"{number}.jsonl", 4) for number in range(8)] == [0, 1, 2, 2, 0, 1, 3, 1]


@given(st.text(min_size=1), st.integers(1, 50))
def test_unit_index_is_below_the_number_of_units(name: str, units: int) -> None:
    assert 0 <= assign_unit(name, units) < units
