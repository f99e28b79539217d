"""A file of a run is found with its bytes, unarchived or in the newest archive that contains it."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import layout
from pipeline.core import archived_run_files, zip_archives
from pipeline.core.archived_run_files import ArchivedFile, FileStore, file_size
from pipeline.core.errors import DiskFull
from pipeline.core.hashing import hash_file

UNITS = st.sampled_from(["0", "1", "10", "2"])
ACTIONS = st.one_of(
    st.tuples(st.just("write"), UNITS, st.binary(max_size=9)),
    st.tuples(st.just("archive"), st.sets(UNITS), st.just(b"")),
    st.tuples(st.just("remove"), UNITS, st.just(b"")),
)


def record(run: Path, unit: str) -> Path:
    return layout.RECORD.path(run, job=f"corpus.filter.main.laws.{unit}")


def write(run: Path, unit: str, content: bytes = b"{}") -> Path:
    path = record(run, unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def contents(run: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in FileStore(run).find_all(layout.RECORD)}


@given(st.lists(ACTIONS, max_size=12))
def test_latest_version_is_found_after_archiving_and_removal(actions: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, expected = Path(folder), dict[str, bytes]()
        for act, which, content in actions:
            if act == "write":
                expected[write(run, which, content).name] = content
            elif act == "archive":
                FileStore(run).archive(
                    "corpus.filter.main.laws.0", [p for u in which if (p := record(run, u)).exists()]
                )
                assert not any(record(run, unit).exists() for unit in which)
            else:
                record(run, which).unlink(missing_ok=True)
                FileStore(run).remove_from_archives([record(run, which).relative_to(run).as_posix()])
                expected.pop(record(run, which).name, None)
            assert contents(run) == expected
        store = FileStore(run)
        for name, content in expected.items():
            file = store.find(f"{layout.RECORDS}/{name}")
            assert (file.name, file.is_file(), file_size(file)) == (name, True, len(content))
            assert hash_file(file) == hash_file(write(run / "copy", "0", content))
        assert not store.find(record(run, "7").relative_to(run).as_posix()).is_file()


def test_archives_are_reproducible_and_unpack_to_the_same_files(tmp_path: Path) -> None:
    archives = []
    for run in (tmp_path / "a", tmp_path / "b"):
        paths = [write(run, unit, unit.encode()) for unit in ("1", "0")]
        os.utime(paths[0], (0, 0))
        archive = FileStore(run).archive("x", reversed(paths) if run.name == "b" else paths)
        assert archive is not None
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]
    with zipfile.ZipFile(archive) as files:
        assert {member.date_time for member in files.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        files.extractall(tmp_path / "c")
    assert {path.name: path.read_bytes() for path in (tmp_path / "c" / layout.RECORDS).iterdir()} == contents(run)


def test_archive_of_a_node_with_a_slow_clock_is_still_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        hours = 0

        @classmethod
        def now(cls, zone: object = None) -> datetime:
            return datetime.now(UTC) - timedelta(hours=cls.hours)

    for content, hours in ((b"first", 0), (b"second", 5), (b"third", 2)):
        Clock.hours = hours
        monkeypatch.setattr(zip_archives, "datetime", Clock)
        FileStore(tmp_path, "corpus.filter.").archive("corpus.filter.main.laws.0", [write(tmp_path, "0", content)])
        monkeypatch.undo()
        assert contents(tmp_path) == {record(tmp_path, "0").name: content}


def test_full_disk_while_archiving_loses_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path, unit, unit.encode()) for unit in ("0", "1")]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DiskFull):
        FileStore(tmp_path).archive("x", paths)
    assert [path.read_bytes() for path in paths] == [b"0", b"1"]
    assert not os.listdir(tmp_path / layout.BATCH_ARCHIVES), "no part of an archive is left"


@pytest.mark.parametrize("damage", ["cut", "empty", "content", "no archive"])
def test_damaged_archive_is_a_problem_or_an_unreadable_file(tmp_path: Path, damage: str) -> None:
    archive = FileStore(tmp_path).archive("x", [write(tmp_path, "0", b"a" * 99 + bytes(range(99)))])
    assert archive is not None
    whole = archive.read_bytes()
    middle = whole.index(b".json") + 30
    damaged = {
        "cut": whole[:-9],
        "empty": b"",
        "no archive": b"text",
        "content": whole[:middle] + b"\0\0" + whole[middle + 2 :],
    }
    archive.write_bytes(damaged[damage])
    store = FileStore(tmp_path)
    file = store.find(record(tmp_path, "0").relative_to(tmp_path).as_posix())
    if damage == "content":
        assert isinstance(file, ArchivedFile) and store.problems == {}
        with pytest.raises(OSError, match=r"provenance/archives/.*\.x\.zip is damaged"):
            file.read_bytes()
    else:
        ((path, sentence),) = store.problems.items()
        assert path == archive.relative_to(tmp_path).as_posix() and sentence.startswith(f"{path} is damaged")
        assert not file.is_file()


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x.json",
        "provenance/records/../x.json",
        "corpus/x.parquet",
        "provenance/",
        f"{layout.RECORDS}/.a.b.json",
    ],
)
def test_archive_with_foreign_members_is_not_read(tmp_path: Path, name: str) -> None:
    archive = layout.BATCH_ARCHIVE.path(tmp_path, stamp="20260101T000000000000", process=1, job="x")
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr(f"{layout.RECORDS}/a.b.json", "{}")
        files.writestr(name, "{}")
    store = FileStore(tmp_path)
    assert (
        store.find_all(layout.RECORD) == []
        and "is no file of a batch" in store.problems[f"{layout.BATCH_ARCHIVES}/{archive.name}"]
    )


def test_oversized_member_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileStore(tmp_path).archive("x", [write(tmp_path, "0", b"0" * 2000)])
    monkeypatch.setattr(archived_run_files, "MOST_MEMBER_BYTES", 1000)
    archived_run_files._list_members.cache_clear()
    (sentence,) = FileStore(tmp_path).problems.values()
    assert sentence.endswith("its members have 2,000 bytes")
    archived_run_files._list_members.cache_clear()


def test_member_with_another_compression_is_not_read(tmp_path: Path) -> None:
    archive = FileStore(tmp_path).archive("x", [write(tmp_path, "0")])
    assert archive is not None
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_BZIP2) as files:
        files.writestr(f"{layout.RECORDS}/a.b.json", "{}")
    store = FileStore(tmp_path)
    assert not store.archived and next(iter(store.problems.values())).endswith("a member has another compression")


def test_file_archived_after_listing_is_read_from_the_archive(tmp_path: Path) -> None:
    paths = [write(tmp_path, unit, unit.encode()) for unit in ("0", "1")]
    store = FileStore(tmp_path)
    listed = store.find_all(layout.RECORD)
    archive = FileStore(tmp_path).archive("x", paths)
    assert archive is not None
    assert [file.read_bytes() for file in listed] == [b"0", b"1"]
    assert [file.read_bytes() for file in store.find_all(layout.RECORD)] == [b"0", b"1"], (
        "listed before it was archived"
    )
    for file in (listed[0], store.find(paths[0].relative_to(tmp_path).as_posix())):
        assert not isinstance(file, Path) and file.archive_path == archive.relative_to(tmp_path).as_posix()
        assert file.is_file() and file.open().read() == b"0" and file_size(file) == 1
    assert store.find_all(layout.RECORD) == FileStore(tmp_path).find_all(layout.RECORD)
    gone = FileStore(tmp_path).find("provenance/records/a.b.json")
    assert not gone.is_file()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).symlink_to(path), os.mkdir])
def test_non_file_in_place_of_an_archive_is_not_opened(tmp_path: Path, make) -> None:
    archive = layout.BATCH_ARCHIVE.path(tmp_path, stamp="20260101T000000000000", process=1, job="x")
    archive.parent.mkdir(parents=True)
    make(str(archive))
    ((path, sentence),) = FileStore(tmp_path).problems.items()
    assert sentence.startswith(f"{path} cannot be read: ")


def test_large_unarchived_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "0")
    os.truncate(path, 1 << 30)
    with FileStore(tmp_path).find(path.relative_to(tmp_path).as_posix()).open() as stream:
        assert not isinstance(stream, io.BytesIO) and stream.fileno() > 0


def test_file_that_changes_while_archiving_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write_archive = write(tmp_path, "0", b"before"), zip_archives.write_archive

    def meanwhile(archive: Path, files: Iterable[tuple[str, bytes]]) -> None:
        write_archive(archive, files)
        path.write_bytes(b"written by another process")

    monkeypatch.setattr(archived_run_files, "write_archive", meanwhile)
    FileStore(tmp_path).archive("x", [path])
    assert contents(tmp_path) == {path.name: b"written by another process"}


def test_archive_is_synced_before_its_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync, synced = write(tmp_path, "0"), os.fsync, []

    def seen(descriptor: int) -> None:
        assert path.exists()
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    archive = FileStore(tmp_path).archive("x", [path])
    assert archive is not None and not path.exists()
    content, folder = synced[-2:]
    assert (os.path.dirname(content), folder) == (str(archive.parent), str(archive.parent)), "the file, then its name"


def test_archives_with_duplicate_members_or_foreign_names_are_not_read(tmp_path: Path) -> None:
    record_path = f"{layout.RECORDS}/a.b.json"
    twice, other = (tmp_path / layout.BATCH_ARCHIVES / name for name in ("20260101T000000000000.1.x.zip", "a.b.c.zip"))
    twice.parent.mkdir(parents=True)
    with zipfile.ZipFile(twice, "w") as files, pytest.warns(UserWarning, match="Duplicate name"):
        files.writestr(record_path, "{}")
        files.writestr(record_path, "[]")
    with zipfile.ZipFile(other, "w") as files:
        files.writestr(record_path, "{}")
    store = FileStore(tmp_path)
    assert store.find_all(layout.RECORD) == []
    assert [*store.problems] == [twice.relative_to(tmp_path).as_posix()] and "two members" in str(store.problems)


def test_partial_archive_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / layout.BATCH_ARCHIVES
    folder.mkdir(parents=True)
    left, other = (folder / f".partial-n.7-20260101T000000000000.7.{job}.zip" for job in ("x", "y"))
    for path in (left, other):
        path.write_bytes(b"PK")
    FileStore(tmp_path).archive("x", [write(tmp_path, "0")])
    assert not left.exists() and other.exists()
