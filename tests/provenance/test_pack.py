"""A packed run is a valid bag, verifies itself without Polder, and reports changed, missing or added files."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import bagit
import pytest
from rocrate.rocrate import ROCrate

from pipeline import layout
from pipeline.cli.entry_point import main
from pipeline.core.display_text import escape_to_one_line
from pipeline.core.errors import InputError
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.provenance.pack import pack
from tests.provenance.conftest import FROZEN, RunBuilder, describe

LIMIT = 2_000  # the crate is larger, and always inside
LARGE = "models/base/milestones/10/model.safetensors"


def check(bag: Path, *given: str) -> tuple[int, str]:
    """Run the verifier inside the bag, without any package."""
    words = [sys.executable, "-I", "-S", "verify_files.py", *given]
    done = subprocess.run(words, cwd=bag, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def large(finished: Path) -> Path:
    """A finished run with a file of 5000 bytes that the crate lists."""
    (finished / "tokens/large.bin").write_bytes(b"5" * 5000)
    RunBuilder(finished).crate(provider="Institute", contact="info@example.org")
    return finished


ODD = [" in front", "100% %20 #1?", "tab\tx", "n\nl", "r\rl", "é", "e\u0301", "rtl\u202egnp", "b\\s", 'q"x']


def test_unusual_file_names_agree_between_crate_bag_and_their_libraries(finished: Path, tmp_path: Path) -> None:
    for name in ODD:
        (finished / "report" / f"{name}.txt").write_text(name)
    describe(finished, [])
    files = [entity for entity in ROCrate(finished).data_entities if entity.id.endswith(".txt")]
    assert sorted(Path(unquote(file.id)).stem for file in files) == sorted(ODD)
    for name, limit_bytes in (("inside", 1_000_000), ("left out", 0)):
        pack(finished, tmp_path / name, limit_bytes)
        assert bagit.Bag(str(tmp_path / name)).validate()
        output = check(tmp_path / name)[1]
        lacking = [one for one in ODD if f"data/report/{escape_to_one_line(one)}.txt is not here" in output]
        assert "files checked" in output and lacking == ([] if name == "inside" else ODD)


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "a\x0bb", "a\x1eb"])
def test_file_name_with_a_line_end_is_refused_before_writing(finished: Path, tmp_path: Path, name: str) -> None:
    (finished / "report" / name).write_text("x")
    describe(finished, [])
    with pytest.raises(InputError, match=r"report/a\\[ux0-9be]+b: the name of the file holds a line separator: rename"):
        pack(finished, tmp_path / "bag")
    assert not [*tmp_path.glob("*bag*")]


def test_file_name_with_invalid_utf8_is_refused(finished: Path, tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(finished / "report") + b"/a\xffb", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(InputError, match=r"report/a\\udcffb: the name of the file is no UTF-8: rename the file"):
        pack(finished, tmp_path / "bag")
    with pytest.raises(InputError, match=r"report/a\\udcffb: the name of the file is no UTF-8"):
        describe(finished, [])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_bag_is_valid_for_bagit_and_contains_all_evidence(finished: Path, tmp_path: Path) -> None:
    for path in ("provenance/accounting/books.json", "provenance/readings/a@n.jsonl", "logs/more.log"):
        (finished / path).parent.mkdir(parents=True, exist_ok=True)
        (finished / path).write_text("{}")
    attest_evidence(finished)
    (finished / "provenance/accounting/lock").write_text("pid")
    done = pack(finished, tmp_path / "bag")
    assert bagit.Bag(str(tmp_path / "bag")).validate()
    packed = {path.removeprefix("data/") for path in contents(tmp_path / "bag") if path.startswith("data/")}
    expected = {path for path in contents(finished) if not path.startswith("scratch/")}
    assert packed == expected - {"provenance/accounting/lock"}
    assert len(packed) == done.inside
    code, output = check(tmp_path / "bag")
    checked, unknown = output.splitlines()
    assert code == 0
    assert checked == f"{done.inside + 4} files checked, 0 elsewhere: all that is here is as it was packed."
    assert unknown.startswith("Give --log-checkpoint and --crate-sha256 of the owner to check")


def test_packing_the_same_run_gives_the_same_bytes(large: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(large, tmp_path / name, LIMIT, "https://example.org/run")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    info = (tmp_path / "a/bag-info.txt").read_text()
    assert "Bagging-Date: 2026-01-05\n" in info
    assert "Source-Organization: Institute\n" in info and "Contact-Name: info@example.org\n" in info


def test_large_file_is_listed_by_url_until_fetched(large: Path, tmp_path: Path) -> None:
    done = pack(large, tmp_path / "bag", LIMIT, "https://example.org/run/")
    assert done.fetched >= 1 and done.left_out == 0
    fetch = (tmp_path / "bag/fetch.txt").read_text().splitlines()
    assert "https://example.org/run/tokens/large.bin 5000 data/tokens/large.bin" in fetch
    code, report = check(tmp_path / "bag")
    assert code == 0 and "data/tokens/large.bin is not here: https://example.org/run/tokens/large.bin" in report
    for line in fetch:
        path = line.split(" ", 2)[2].removeprefix("data/")
        (tmp_path / "bag/data" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(large / path, tmp_path / "bag/data" / path)
    assert bagit.Bag(str(tmp_path / "bag")).validate()
    (tmp_path / "bag/data/tokens/large.bin").write_bytes(b"6" * 5000)
    assert "data/tokens/large.bin was changed" in check(tmp_path / "bag")[1]


def test_batch_archives_are_packed_at_any_size_limit(finished: Path, tmp_path: Path) -> None:
    pack(finished, tmp_path / "bag", limit_bytes=0)
    archives = [path.name for path in layout.BATCH_ARCHIVE.glob(finished)]
    assert len(archives) == 1 and (tmp_path / "bag/data" / layout.BATCH_ARCHIVES / archives[0]).is_file()
    assert "is missing" not in check(tmp_path / "bag")[1]


def test_large_file_without_a_url_is_listed_and_left_out(large: Path, tmp_path: Path) -> None:
    pack(large, tmp_path / "at the limit", 5000)
    assert (tmp_path / "at the limit/data/tokens/large.bin").is_file()
    done = pack(large, tmp_path / "bag", LIMIT)
    assert done.left_out >= 1 and not (tmp_path / "bag/fetch.txt").exists()
    assert bagit.Bag(str(tmp_path / "bag")).validate()
    assert "tokens/large.bin\t5000\t" in (tmp_path / "bag/large-files.tsv").read_text()
    code, report = check(tmp_path / "bag")
    assert code == 0 and "data/tokens/large.bin is not here: no address is known" in report
    (tmp_path / "bag/data/tokens").mkdir(exist_ok=True)
    shutil.copy(large / "tokens/large.bin", tmp_path / "bag/data/tokens/large.bin")
    assert "large.bin" not in check(tmp_path / "bag")[1]


def _change(bag: Path) -> None:
    (bag / "data" / LARGE).write_bytes(b"weights 9.9")


def _delete(bag: Path) -> None:
    (bag / "data" / LARGE).unlink()


def _add(bag: Path) -> None:
    (bag / "data/models/extra.txt").write_text("x")


def _forge(bag: Path) -> None:
    """Change a file, and write matching manifests."""
    _change(bag)
    bagit.Bag(str(bag)).save(manifests=True)


def _link(bag: Path) -> None:
    (bag / "data" / LARGE).unlink()
    (bag / "data" / LARGE).symlink_to("/etc/hostname")


def _link_inside(bag: Path) -> None:
    (bag / "data" / LARGE).rename(bag / "data/models/moved")
    (bag / "data" / LARGE).symlink_to(bag / "data/models/moved")


def _loop(bag: Path) -> None:
    (bag / "data" / LARGE).unlink()
    (bag / "data" / LARGE).symlink_to(bag / "data" / LARGE)


def _add_certificate(bag: Path) -> None:
    """Add a file next to the manifests, and to their own list."""
    (bag / "CERTIFICATE.txt").write_text("certified")
    with (bag / "tagmanifest-sha256.txt").open("a") as tags:
        tags.write(f"{sha256_of(bag / 'CERTIFICATE.txt')} CERTIFICATE.txt\n")


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (_change, f"data/{LARGE} was changed"),
        (_delete, f"data/{LARGE} is missing, the manifest lists it."),
        (_add, "data/models/extra.txt is unknown"),
        (_forge, f"data/{LARGE} is another file"),
        (_link, f"data/{LARGE} is a link, or outside of the bag."),
        (_loop, f"data/{LARGE} is missing, the manifest lists it."),
        (_add_certificate, "CERTIFICATE.txt is unknown: no bag of a run has it."),
    ],
)
def test_bag_change_is_detected(finished: Path, tmp_path: Path, attack: Callable[[Path], None], sentence: str) -> None:
    pack(finished, tmp_path / "bag")
    attack(tmp_path / "bag")
    code, report = check(tmp_path / "bag")
    assert code == 1 and sentence in report and "problems: 1" in report


def test_link_inside_a_bag_is_reported(finished: Path, tmp_path: Path) -> None:
    pack(finished, tmp_path / "bag")
    _link_inside(tmp_path / "bag")
    assert f"data/{LARGE} is a link, or outside of the bag." in check(tmp_path / "bag")[1]


@pytest.mark.parametrize("name", ["tagmanifest-sha256.txt", "manifest-sha256.txt", f"data/{layout.CRATE}"])
@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_pipe_or_device_instead_of_a_manifest_is_refused(
    finished: Path, tmp_path: Path, name: str, target: str
) -> None:
    pack(finished, tmp_path / "bag")
    (tmp_path / "bag" / name).unlink()
    (tmp_path / "bag" / name).symlink_to(target) if target != "pipe" else os.mkfifo(tmp_path / "bag" / name)
    code, output = check(tmp_path / "bag")
    assert code == 2 and output.endswith(f"{name} is missing or no file\n") and output.count("\n") == 1


@pytest.mark.parametrize(
    "crate",
    ["[" * 100_000, '{"@graph":[{"@id":5,"@type":"X"}]}', '{"@graph":[{"@id":[],"@type":"File","sha256":"a"}]}'],
)
def test_malformed_crate_in_a_bag_is_refused(finished: Path, tmp_path: Path, crate: str) -> None:
    pack(finished, tmp_path / "bag")
    (tmp_path / "bag/data" / layout.CRATE).write_text(crate)
    code, output = check(tmp_path / "bag")
    assert code == 2 and "is no bag of a run that can be read: " in output and output.count("\n") == 1


def test_a_member_of_an_archive_that_expands_beyond_the_memory_is_named(finished: Path, tmp_path: Path) -> None:
    pack(finished, tmp_path / "bag")
    (archive,) = (tmp_path / "bag/data" / layout.BATCH_ARCHIVES).glob("*.zip")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as members:
        members.writestr("logs/large.log", bytes(128 << 20))
    limit = f"ulimit -v {96 << 10}; exec {shlex.quote(sys.executable)} -I -S verify_files.py"
    done = subprocess.run(["sh", "-c", limit], cwd=tmp_path / "bag", capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "data/logs/large.log is unknown: neither" in done.stdout, done.stderr[-300:]


def _rewrite_log(bag: Path, change: Callable[[bytes], bytes]) -> None:
    path = bag / "data" / layout.ATTESTATION_LOG
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (lambda data: (data / "logs/foreign.log").write_text("x"), "data/logs/foreign.log is unknown: neither"),
        (lambda data: (data / "models/foreign.bin").write_text("x"), "data/models/foreign.bin is unknown: neither"),
        (lambda data: (data / "provenance/attempts/z.json").write_text("{}"), "attempts/z.json is unknown: neither"),
        (lambda data: (data / "logs/.x").write_text("x"), "data/logs/.x is unknown: neither"),
        (lambda data: (data / "logs/corpus.filter.log").unlink(), "data/logs/corpus.filter.log is missing, the log"),
        (lambda data: (data / "provenance/accounting/1.json").unlink(), "accounting/1.json is missing, the log"),
        (
            lambda data: _rewrite_log(data.parent, lambda text: text.replace(b"\n", b"\r\n")),
            f"data/{layout.ATTESTATION_LOG}, line 2",
        ),
        (
            lambda data: _rewrite_log(data.parent, lambda text: text[:-1]),
            f"data/{layout.ATTESTATION_LOG} was cut: its last line",
        ),
    ],
    ids=["log", "model", "attempt", "hidden", "deleted log", "deleted accounting", "line ends", "no end"],
)
def test_rewritten_manifests_are_detected_by_crate_and_log(
    finished: Path, tmp_path: Path, attack: Callable[[Path], None], sentence: str
) -> None:
    pack(finished, tmp_path / "bag")
    assert check(tmp_path / "bag")[0] == 0
    attack(tmp_path / "bag/data")
    bagit.Bag(str(tmp_path / "bag")).save(manifests=True)
    code, output = check(tmp_path / "bag")
    assert code == 1 and sentence in output


def checkpoint_of(run: Path) -> str:
    return hashlib.sha256((run / layout.ATTESTATION_LOG).read_bytes().splitlines()[-1]).hexdigest()


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_completely_forged_bag_does_not_match_the_publication(
    finished: Path, build_run: Callable[..., Any], tmp_path: Path
) -> None:
    pins = ["--log-checkpoint", checkpoint_of(finished).upper(), "--crate-sha256", sha256_of(finished / layout.CRATE)]
    pack(finished, tmp_path / "bag")
    assert check(tmp_path / "bag", *pins)[0] == 0
    forged = build_run("forged", loss=1.0)
    forged.crate()
    pack(forged.folder, tmp_path / "other")
    assert check(tmp_path / "other")[0] == 0, "all of it is consistent"
    code, output = check(tmp_path / "other", *pins)
    assert (
        code == 1
        and f"data/{layout.CRATE} is another one" in output
        and f"data/{layout.ATTESTATION_LOG} was cut" in output
    )
    code, output = check(tmp_path / "bag", "--log-checkpoint", "")
    assert code == 1 and "given is ." in output


@pytest.mark.parametrize("place", ["provenance/attempts/corpus.filter.failed.json", layout.ATTESTATION_LOG])
def test_evidence_removed_from_a_bag_is_detected(finished: Path, tmp_path: Path, place: str) -> None:
    """A failure, or the log's last lines, with matching manifests."""
    checkpoint = checkpoint_of(finished)
    pack(finished, tmp_path / "bag")
    file = tmp_path / "bag/data" / place
    if place == layout.ATTESTATION_LOG:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-10]))
    else:
        file.unlink()
    bagit.Bag(str(tmp_path / "bag")).save(manifests=True)
    code, output = check(tmp_path / "bag", "--log-checkpoint", checkpoint)
    assert code == 1 and f"data/{place} " in output
    assert check(tmp_path / "bag")[0] == 1


def test_each_kind_of_evidence_is_missed_in_a_bag(finished: Path, tmp_path: Path) -> None:
    made = [FROZEN, "provenance/signatures/base.sig", layout.SIGNER, layout.PUBLIC_KEY]
    for path in made:
        RunBuilder(finished).write(path, "{}")
    attest_evidence(finished)
    pack(finished, tmp_path / "bag")
    assert check(tmp_path / "bag")[0] == 0
    folders = ("accounting", "attempts", "batches", "environments", "readings")
    first = [
        sorted((finished / "provenance" / folder).iterdir())[0].relative_to(finished).as_posix() for folder in folders
    ]
    gone = [*made, *first, "logs/corpus.filter.log"]
    for path in gone:
        (tmp_path / "bag/data" / path).unlink()
    bagit.Bag(str(tmp_path / "bag")).save(manifests=True)
    code, output = check(tmp_path / "bag")
    assert code == 1 and [f"data/{path} is missing, the log attests it." for path in sorted(gone)] == [
        line for line in output.splitlines() if "is missing" in line
    ]


def test_bag_verifier_escapes_terminal_control_characters(finished: Path, tmp_path: Path) -> None:
    pack(finished, tmp_path / "bag")
    (tmp_path / "bag/data/\x1b[2Jgone").write_text("x")
    code, output = check(tmp_path / "bag")
    assert code == 1 and "\x1b" not in output and "data/\\x1b[2Jgone is unknown" in output


def test_run_that_differs_from_its_crate_is_not_packed(finished: Path, tmp_path: Path) -> None:
    (finished / LARGE).write_bytes(b"other")
    with pytest.raises(InputError, match=r"model\.safetensors was changed since the crate was made"):
        pack(finished, tmp_path / "bag")
    (finished / layout.CRATE).unlink()
    with pytest.raises(InputError, match="finish the run first"):
        pack(finished, tmp_path / "bag")
    assert not (tmp_path / "bag").exists()


@pytest.mark.parametrize("name", ["report/more.html", "report/more"])
def test_link_or_an_address_of_another_kind_is_not_packed(finished: Path, tmp_path: Path, name: str) -> None:
    (finished / name).symlink_to(finished / ("report" if name.endswith("more") else "report/index.html"))
    with pytest.raises(InputError, match=rf"^{name} is a symbolic link: replace it by what it leads to, or delete it"):
        pack(finished, tmp_path / "bag")
    with pytest.raises(InputError, match=r"--url ftp://example\.org is no address: it begins with https://"):
        pack(finished, tmp_path / "bag", url="ftp://example.org")


def test_command_packs_and_refuses_an_existing_target(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["provenance", "pack", str(finished), "--to", str(tmp_path / "new/bag")]
    assert main(arguments) == 0
    assert "0 left out" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "exists: delete it, or name another folder" in capsys.readouterr().err
    assert main([*arguments[:-1], str(finished / "bag")]) == 2
    assert json.loads((tmp_path / "new/bag/data" / layout.CRATE).read_text())["@graph"]
