"""An output of a unit is found with its bytes, by itself or in the newest archive that has it."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import layout
from pipeline.core import output_archives
from pipeline.core.errors import DiskFull, InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import BatchFile, outputs_exist
from pipeline.core.output_archives import ArchivedOutput, OutputArchives, find_output, glob_outputs, output_sizes

FEWEST = 3
UNITS = [str(unit) for unit in range(FEWEST)]
PREFIX = "corpus.matches.main.laws."
ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(UNITS), st.binary(max_size=12)),
    st.tuples(st.just("archive"), st.none(), st.none()),
    st.tuples(st.just("remove"), st.sampled_from(UNITS), st.none()),
)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_archives, "FEWEST_FILES", FEWEST)
    monkeypatch.setattr(output_archives, "MOST_BYTES", 9)


def output(run: Path, unit: str) -> Path:
    return layout.MATCHES.path(run, corpus="main", source="laws", unit=unit)


def write(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def archive(run: Path, units: list[str] = UNITS) -> None:
    OutputArchives(run, "corpus/main", PREFIX).add(f"{PREFIX}0", [output(run, unit) for unit in units])


def zip_files(run: Path) -> list[Path]:
    return sorted(run.rglob("*.zip"))


@given(st.lists(ACTIONS, max_size=12))
def test_newest_content_is_found_and_no_other_is_kept(actions: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, expected = Path(folder), dict[str, bytes]()
        for act, unit, content in actions:
            if act == "write":
                expected[write(output(run, unit), content).name] = content
            elif act == "archive":
                archive(run)
                assert {path.name for path in run.rglob("*.parquet")} == {
                    name for name, content in expected.items() if len(content) > 9
                }
                members = [name for path in zip_files(run) for name in zipfile.ZipFile(path).namelist()]
                assert sorted(os.path.basename(name) for name in members) == sorted(
                    name for name, content in expected.items() if len(content) <= 9
                ), "an older content may be about a document that is to be forgotten"
                assert len(zip_files(run)) <= 1
            else:
                output(run, unit).unlink(missing_ok=True)
                OutputArchives(run).remove([output(run, unit).relative_to(run).as_posix()])
                expected.pop(output(run, unit).name, None)
            outputs = glob_outputs(run, layout.MATCHES, corpus="main", source="laws")
            assert {file.name: file.read_bytes() for file in outputs} == expected
            for one in UNITS:
                file, content = find_output(output(run, one)), expected.get(f"laws.{one}.parquet")
                assert file.is_file() == (content is not None)
                if content is not None:
                    entry = BatchFile(f"corpus/main/matches/laws.{one}.parquet", len(content))
                    assert hash_file(file) == hash_file(write(run / "copy", content))
                    assert outputs_exist(run, [entry]) and not outputs_exist(run, [entry._replace(bytes=99)])


def test_outputs_of_few_units_and_of_other_kinds_stay(tmp_path: Path) -> None:
    few = [write(output(tmp_path, unit)) for unit in UNITS[1:]]
    archive(tmp_path, UNITS[1:])
    values = {"corpus": "main", "source": "laws"}
    final = [write(layout.FINAL_DOCUMENTS.path(tmp_path, **values, unit=unit)) for unit in UNITS]
    OutputArchives(tmp_path, "corpus/main").add("corpus.decontaminate.main.laws.0", final)
    assert all(path.is_file() for path in (*few, *final)) and zip_files(tmp_path) == []
    assert glob_outputs(tmp_path, layout.FINAL_DOCUMENTS, **values) == final


def test_archives_are_reproducible_and_unpack_to_the_same_files(tmp_path: Path) -> None:
    contents = []
    for run in (tmp_path / "a", tmp_path / "b"):
        for unit in UNITS if run.name == "a" else reversed(UNITS):
            os.utime(write(output(run, unit), unit.encode()), (int(unit), 0))
        archive(run)
        contents.append(zip_files(run)[0].read_bytes())
    assert contents[0] == contents[1]
    listing = layout.UNIT_LISTING
    paths = [write(listing.path(run, source="laws", unit=unit), b"{}"[: int(unit)]) for unit in UNITS]
    OutputArchives(run, "sources/laws").add("sources.listing.laws", paths)
    assert [find_output(path).read_bytes() for path in paths] == [b"", b"{", b"{}"], "compressed, and one empty"
    with zipfile.ZipFile(zip_files(run)[0]) as files:
        files.extractall(run)
    assert [output(run, unit).read_bytes() for unit in UNITS] == [unit.encode() for unit in UNITS]


def test_nothing_is_lost_by_a_kill_before_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for unit in UNITS:
        write(output(tmp_path, unit))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            archive(tmp_path)
    write(output(tmp_path, "1"), b"newer")
    left = zip_files(tmp_path)[0].with_name(f".partial-host.1-20260101T000000000000.1.{PREFIX}0.zip")
    left.write_bytes(b"PK")
    archive(tmp_path)
    assert [find_output(output(tmp_path, unit)).read_bytes() for unit in UNITS] == [b"x", b"newer", b"x"]
    assert len(zip_files(tmp_path)) == 1 and not left.exists()


def test_newer_output_counts_although_a_clock_was_ahead(tmp_path: Path) -> None:
    for unit in UNITS:
        write(output(tmp_path, unit))
    archive(tmp_path)
    (path,) = zip_files(tmp_path)
    path.rename(path.with_name(f"2999{path.name[4:]}"))
    write(output(tmp_path, "0"), b"newer")
    archive(tmp_path)
    (path,) = zip_files(tmp_path)
    assert find_output(output(tmp_path, "0")).read_bytes() == b"newer" and path.name.startswith("2999")
    with zipfile.ZipFile(path) as files:
        assert files.namelist() == sorted(files.namelist()), "the same as if all were archived at once"


def test_full_disk_keeps_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for unit in UNITS:
        write(output(tmp_path, unit))
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DiskFull):
        archive(tmp_path)
    assert [path.name for path in sorted(tmp_path.rglob("*.*"))] == [f"laws.{unit}.parquet" for unit in UNITS]


def test_outputs_are_removed_and_added_one_after_another(tmp_path: Path) -> None:
    for unit in UNITS:
        write(output(tmp_path, unit))
    archive(tmp_path)
    archives = OutputArchives(tmp_path, "corpus/main", PREFIX)
    archives.remove(["corpus/main/matches/laws.0.parquet"])
    assert set(archives.archived) == {f"corpus/main/matches/laws.{unit}.parquet" for unit in UNITS[1:]}
    write(output(tmp_path, "1"), b"newer")
    archives.add(f"{PREFIX}0", [output(tmp_path, unit) for unit in UNITS])
    outputs = glob_outputs(tmp_path, layout.MATCHES)
    assert {file.name: file.read_bytes() for file in outputs} == {"laws.1.parquet": b"newer", "laws.2.parquet": b"x"}
    archives.remove(archives.archived)
    assert archives.archived == {} and zip_files(tmp_path) == []


def test_output_that_grew_leaves_its_archive(tmp_path: Path) -> None:
    for unit in UNITS:
        write(output(tmp_path, unit))
    archive(tmp_path)
    write(output(tmp_path, "0"), b"ten bytes.")
    archive(tmp_path)
    assert output(tmp_path, "0").is_file() and [*output_sizes(tmp_path, ["corpus/main/matches/laws.0.parquet"])] == [10]
    assert output(tmp_path, "0").relative_to(tmp_path).as_posix() not in OutputArchives(tmp_path).archived
    assert isinstance(find_output(output(tmp_path, "1")), ArchivedOutput)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("corpus/other/matches/laws.0.parquet", "is no output of a unit"),
        ("corpus/main/final/laws.0.parquet", "is no output of a unit"),
        ("corpus/main/matches/../../../laws.0.parquet", "is no output of a unit"),
        ("", "cannot be read as a ZIP file"),
    ],
)
def test_archives_of_others_are_refused(tmp_path: Path, member: str, said: str) -> None:
    path = tmp_path / f"corpus/main/archives/20260101T000000000000.1.{PREFIX}0.zip"
    write(path)
    if member:
        with zipfile.ZipFile(path, "w") as made:
            made.writestr(member, b"x")
    archives = OutputArchives(tmp_path)
    assert archives.archived == {} and [said in sentence for sentence in archives.problems.values()] == [True]


def test_changed_archive_is_named_where_it_is_read(tmp_path: Path) -> None:
    for unit in UNITS:
        write(output(tmp_path, unit), unit.encode() * 5)
    archive(tmp_path)
    archived_output, (path,) = find_output(output(tmp_path, "1")), zip_files(tmp_path)
    whole = path.read_bytes()
    for changed in (whole.replace(b"11111", b"11121"), whole[: whole.index(b"11111")] + whole[whole.index(b"22222") :]):
        path.write_bytes(changed)
        with pytest.raises(OSError, match=r"its archive corpus/main/archives/.*\.zip is damaged"):
            archived_output.read_bytes()
    path.write_bytes(whole.replace(b"11111", b"11121"))
    with pytest.raises(OSError, match=r"its archive corpus/main/archives/.*\.zip is damaged"):
        archived_output.read_bytes()
    with pytest.raises(InputError, match="is damaged: put it back, or delete it, and its units run again"):
        OutputArchives(tmp_path).remove(["corpus/main/matches/laws.0.parquet"])
    assert path.is_file()
