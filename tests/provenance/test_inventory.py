"""Every change to any path of a results folder is reported, or is on the short list of the auditor's page."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.hashing import hash_file
from pipeline.provenance.inventory import (
    ACCEPTED_WITHOUT_VOUCHER,
    FILE_KINDS,
    NO_VOUCHER,
    SNAKEMAKE_MARK,
    find_file_kind,
)
from pipeline.provenance.verify_run import TrustAnchors, verify_run
from tests.provenance.authority import Authority
from tests.provenance.conftest import ROOT, RunBuilder, sign

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/reference/results-folder.md").read_text(encoding="utf-8")
STEPS = {
    "evaluate.baseline": "baselines/ngram/results.json",
    "plan.estimate": "plan/plan.json",
    "tokenizer.train": "tokenizer/main/tokenizer.json",
}
EVIDENCE = (
    "logs/slurm/rule_corpus_filter/laws_0/7.log",
    "provenance/accounting/books/meter.json",
    "provenance/accounting/starts/micro.1.json",
    "provenance/batches/sources",
    "provenance/signatures/small.sig",
)


def add_other_kinds(run: RunBuilder) -> None:
    """Add a file of each kind that the small run lacks."""
    for step, path in STEPS.items():
        run.job(step, {}, [], {path: b"{}"})
    for path in EVIDENCE:
        run.write(path, "" if path.endswith("sources") else '{"text": "more"}\n')
    run.write(f"corpus/main/filtered/{SNAKEMAKE_MARK}", "")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> tuple[Path, TrustAnchors]:
    """A finished run with a file of every kind, and all trust anchors of its owner."""
    made = sign(tmp_path_factory.mktemp("kinds"), authority, add_other_kinds)
    given = TrustAnchors(
        hash_file(made.folder / layout.CRATE), made.house / "key.pem.pub", authority.certificate, made.heads
    )
    return made.folder, given


def added_path(file: Path) -> Path:
    """Return the name of another file of the same kind."""
    return file.with_name(f"more{file.name}" if file.name[0] != "." else f"{file.name}more")


# As in a time stamp; the last one names the algorithm of its signature. The page says that nobody reads it there.
RSA_ENCRYPTION = bytes.fromhex("2a864886f70d010101")


def flip(file: Path) -> list[Path]:
    content = bytearray(file.read_bytes())
    unread = content.rfind(RSA_ENCRYPTION) if file.suffix == ".tsr" else -1
    place = random.Random(file.name).randrange(len(content))
    if unread >= 0 and unread <= place < unread + len(RSA_ENCRYPTION):
        place -= len(RSA_ENCRYPTION)
    content[place] ^= 1
    file.write_bytes(content)
    return [file]


def cut(file: Path) -> list[Path]:
    os.truncate(file, file.stat().st_size - 1)
    return [file]


def append(file: Path) -> list[Path]:
    file.write_bytes(file.read_bytes() + b"\n")
    return [file]


def remove(file: Path) -> list[Path]:
    file.unlink()
    return [file]


def rename(file: Path) -> list[Path]:
    return [file, file.rename(added_path(file))]


def duplicate(file: Path) -> list[Path]:
    return [Path(shutil.copy(file, added_path(file)))]


def hide(file: Path) -> list[Path]:
    return [Path(shutil.copy(file, file.with_name(f".{file.name}")))]


def link(file: Path) -> list[Path]:
    moved = file.rename(Path(os.environ["OUTSIDE"]))
    file.symlink_to(moved)
    return [file]


def make_folder(file: Path) -> list[Path]:
    file.unlink()
    file.mkdir()
    return [file]


CHANGES: tuple[Callable[[Path], list[Path]], ...] = (
    *(flip, cut, append, remove, rename, duplicate, hide, link, make_folder),
)


def is_exception(path: str, change: str) -> bool:
    """Return whether the page lists a change as not reported."""
    is_mark = path.endswith(f"/{SNAKEMAKE_MARK}") and change in ("remove", "rename", "make_folder")
    return path.startswith(f"{layout.SCRATCH}/") or is_mark


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_run_fixture_has_a_file_of_every_kind(pinned: tuple[Path, TrustAnchors]) -> None:
    folder, trusted = pinned
    assert verify_run(folder, trusted).problems == []
    assert {find_file_kind(path) for path in files_below(folder)} >= {
        kind for kind in FILE_KINDS if kind.pattern not in (layout.RUN_LOCK, layout.FORMER_PROV)
    }


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_every_file_change_is_detected(
    pinned: tuple[Path, TrustAnchors],
    tmp_path: Path,
    change: Callable[[Path], list[Path]],
    every: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One file of each kind, or every file."""
    original, trusted = pinned
    folder = shutil.copytree(original, tmp_path / "run")
    monkeypatch.setenv("OUTSIDE", str(tmp_path / "outside"))
    unnamed = []
    files = files_below(folder)
    for path in files if every else {find_file_kind(path): path for path in files}.values():
        if change in (flip, cut) and not (folder / path).stat().st_size:
            continue
        changed = change(folder / path)
        problems = verify_run(folder, trusted).problems
        for name in (file.relative_to(folder).as_posix() for file in changed):
            if not any(problem.startswith(f"{name} ") or problem.startswith(f"{name},") for problem in problems):
                unnamed.append(name) if not is_exception(path, change.__name__) else None
        for file in changed:
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        shutil.copy2(original / path, folder / path)
    assert unnamed == []
    assert verify_run(folder, trusted).problems == []


def pack(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def changed_members(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the expected name, and an archive with that change."""
    for name, content in files.items():
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        yield name, pack({**files, name: bytes(flipped)})
        yield name, pack({**files, name: content + b" "})
        if name.startswith(f"{layout.RECORDS}/"):  # it then reports an unchanged file
            record = json.loads(content)
            record["outputs"][0]["sha256"] = "0" * 64
            yield name, pack({**files, name: json.dumps(record).encode()})
        yield name, pack({other: files[other] for other in files if other != name})
        more = name.replace("corpus.filter", "corpus.other")
        yield more, pack({**files, more: content})
    for name in (
        "provenance/records/../../corpus/x.json",
        "corpus/main/x.parquet",
        "/etc/x",
        "provenance/batches/b.json",
    ):
        yield "", pack({**files, name: b"{}"})
    whole = pack(files)
    yield "", whole.replace(b"records/corpus.filter.main.wiki.0.json", b"records/corpus.filter.main.wiki.1.json")
    yield "", whole[:-1]
    yield "", whole + b"PK"
    yield "", b"PK\x03\x04"


def test_every_change_inside_an_archive_is_detected(pinned: tuple[Path, TrustAnchors], tmp_path: Path) -> None:
    folder, trusted = shutil.copytree(pinned[0], tmp_path / "run"), pinned[1]
    (archive,) = layout.BATCH_ARCHIVE.glob(folder)
    original, place = archive.read_bytes(), archive.relative_to(folder).as_posix()
    with zipfile.ZipFile(archive) as content:
        files = {name: content.read(name) for name in content.namelist()}
    assert len({*map(find_file_kind, files)}) == len(files) == 3
    crate, listed = (folder / layout.CRATE).read_text(), hash_file(archive)
    for name, changed in changed_members(files):
        archive.write_bytes(changed)
        problems = verify_run(folder, trusted).problems
        assert len(problems) == 1 and problems[0].startswith(f"{place} "), (name, problems)
        if name:  # if the crate was changed with it, the log names the file inside
            (folder / layout.CRATE).write_text(crate.replace(listed, hash_file(archive)))
            problems = verify_run(folder, trusted._replace(crate_sha256=None)).problems
            # A removed record is missing only for the changed crate, and that is reported.
            is_named = any(problem.startswith(f"{name} ") for problem in problems)
            assert problems and (is_named or name not in FileStore(folder).archived), (name, problems)
            (folder / layout.CRATE).write_text(crate)
    archive.write_bytes(original)
    later = archive.with_name(f"3{archive.name[1:]}")
    for name, content in files.items():
        later.write_bytes(pack({name: content[:-2] + b" " + content[-2:]}))
        place = later.relative_to(folder).as_posix()
        assert any(problem.startswith(f"{place} is unknown") for problem in verify_run(folder, trusted).problems)
        later.unlink()
        single = folder / name
        single.write_bytes(content[:-2] + b" " + content[-2:])
        assert any(problem.startswith(f"{name} was changed") for problem in verify_run(folder, trusted).problems)
        single.unlink()
    assert verify_run(folder, trusted).problems == []


def test_every_change_inside_an_archive_of_outputs_is_detected(
    pinned: tuple[Path, TrustAnchors], tmp_path: Path
) -> None:
    folder, trusted = shutil.copytree(pinned[0], tmp_path / "run"), pinned[1]
    (archive,) = folder.glob("corpus/*/archives/*.zip")
    original, place = archive.read_bytes(), archive.relative_to(folder).as_posix()
    with zipfile.ZipFile(archive) as content:
        ((name, output),) = ((name, content.read(name)) for name in content.namelist())
    assert name == "corpus/main/removed/filter.wiki.0.parquet" and not (folder / name).exists()
    other = name.replace("wiki", "wik")
    crate, listed = (folder / layout.CRATE).read_text(), hash_file(archive)
    changes = {"changed": {name: b"other"}, "gone": {}, "added": {name: output, other: b"x"}}
    changes |= {
        "foreign": {name: output, "corpus/main/x.parquet": b"x"},
        "of records": {f"{layout.RECORDS}/x.json": b"{}"},
    }
    for change, files in changes.items():
        archive.write_bytes(pack(files))
        problems = verify_run(folder, trusted).problems
        assert len(problems) == 1 and problems[0].startswith(f"{place} "), (change, problems)
        (folder / layout.CRATE).write_text(crate.replace(listed, hash_file(archive)))
        problems = verify_run(folder, trusted._replace(crate_sha256=None)).problems
        named = {"changed": name, "gone": name, "added": layout.CRATE}.get(change, place)
        assert any(problem.startswith(f"{named} ") for problem in problems), (change, problems)
        (folder / layout.CRATE).write_text(crate)
    archive.unlink()
    problems = verify_run(folder, trusted).problems
    assert problems == [f"{place} is missing, the crate lists it."]
    archive.write_bytes(original)
    for content, expected in ((b"other", [f"{name} was changed"]), (output, [])):
        (folder / name).write_bytes(content)
        problems = verify_run(folder, trusted).problems
        assert [problem.partition(":")[0] for problem in problems] == expected, "an unpacked file counts first"


ADDED = ("payload", "payload.json", ".payload", ".lock-node1-7", ".partial-payload", "folder/payload.json")


@pytest.mark.parametrize("name", ADDED)
def test_file_added_to_any_folder_is_detected(pinned: tuple[Path, TrustAnchors], tmp_path: Path, name: str) -> None:
    folder, trusted = shutil.copytree(pinned[0], tmp_path / "run"), pinned[1]
    folders = ["", *(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_dir())]
    for place in folders:
        added = folder / place / name
        added.parent.mkdir(exist_ok=True)
        added.write_text("{}")
        places = (added, added.parent)
        names = [path.relative_to(folder).as_posix() for path in places if path != folder / place]
        problems = verify_run(folder, trusted).problems
        is_named = any(problem.startswith(f"{name} ") for name in names for problem in problems)
        assert is_named or place.split("/")[0] == layout.SCRATCH, (place, problems)
        shutil.rmtree(added.parent) if "/" in name else added.unlink()


@pytest.mark.parametrize("name", [".hidden", "folder"])
def test_folder_added_outside_the_layout_is_detected(
    pinned: tuple[Path, TrustAnchors], tmp_path: Path, name: str
) -> None:
    folder, trusted = shutil.copytree(pinned[0], tmp_path / "run"), pinned[1]
    for place in (
        "",
        "provenance",
        *(kind.folder_pattern for kind in FILE_KINDS if kind.folder_pattern and kind.voucher != NO_VOUCHER),
    ):
        (added := folder / place / name).mkdir()
        (problem,) = verify_run(folder, trusted).problems or [""]
        below = added.relative_to(folder).as_posix()
        may_be_there = name == "folder" and find_file_kind(f"{below}/file") is not None
        assert (problem == "") if may_be_there else problem.startswith(f"{below} is unknown"), place
        added.rmdir()


def test_page_lists_the_accepted_exceptions() -> None:
    text = " ".join(PAGE.split())
    assert [exception for exception in ACCEPTED_WITHOUT_VOUCHER if f"- {exception}" not in text] == []
    assert len(ACCEPTED_WITHOUT_VOUCHER) == text.split("accepts without a message:")[1].split("##")[0].count(" - ")
    assert all(
        any(kind.pattern.removesuffix("**") in text for text in ACCEPTED_WITHOUT_VOUCHER)
        for kind in FILE_KINDS
        if kind.voucher == NO_VOUCHER
    )


def test_scratch_is_a_folder_of_the_run(pinned: tuple[Path, TrustAnchors], tmp_path: Path) -> None:
    folder = shutil.copytree(pinned[0], tmp_path / "run")
    (folder / layout.SCRATCH).rename(tmp_path / "elsewhere")
    (folder / layout.SCRATCH).symlink_to(tmp_path / "elsewhere")
    (problem,) = verify_run(folder, pinned[1]).problems
    assert problem.startswith(f"{layout.SCRATCH} is a symbolic link")
