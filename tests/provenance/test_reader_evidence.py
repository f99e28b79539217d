"""The table of the page Provenance on what the reader has: raw files and the repository, by an attack on each."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.audit.commit_differences import CommitTree
from pipeline.cli.application import main
from pipeline.core.hashing import hash_file
from pipeline.job import reach, versions
from tests.audit.test_commit_differences import commit
from tests.conftest import ROOT
from tests.provenance.authority import Authority
from tests.provenance.conftest import ENVIRONMENT, SOURCES, RunBuilder, command_of, sign
from tests.provenance.test_attacks import edit, rewrite

PAGE = ROOT / "docs/explanation/provenance.md"
HEAD = "| Attack on evidence of the reader |"
STEP = "corpus.ngrams"
RECORD, ATTEMPT = f"provenance/records/{STEP}.main.json", f"provenance/attempts/{STEP}.main.20260105T1000.1.json"
FILTER = "provenance/records/corpus.filter.main.laws.0.json"
OTHER_TEXT = "De Grondwet garandeert niets.\n"
OTHER_CODE = "0" * 16


class Reader:
    """A signed run, and what its reader has: the raw files, the repository of the code, and every trust anchor."""

    def __init__(self, house: Path, authority: Authority) -> None:
        self.house, self.raw = house, house / "raw"
        for source, (_, _, text) in SOURCES.items():
            (self.raw / source).mkdir(parents=True)
            (self.raw / source / "0.jsonl").write_text(text)
        (house / "repository").mkdir()
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(house / "repository")
            subprocess.run(["git", "init", "-q"], check=True)
            modules = {f"pipeline/job/{Path(str(m.__file__)).name}": m for m in (reach, versions)}
            code = {name: Path(str(module.__file__)).read_text() for name, module in modules.items()}
            step = {"pipeline/__init__.py": "", f"pipeline/{STEP.replace('.', '/')}.py": "def run():\n    return 1\n"}
            self.commit = commit(house / "repository", {**code, **step})
            with tempfile.TemporaryDirectory() as folder:
                version = CommitTree(self.commit, Path(folder)).step_code_version(STEP)
        assert version is not None

        def add_job_of_commit(run: RunBuilder) -> None:
            facts = {"git": {"commit": self.commit, "dirty": False}, "code_version": version}
            command = command_of(STEP, version, ENVIRONMENT)
            run.job(STEP, {"corpus": "main"}, [], {"corpus/main/ngrams.json": b"{}"}, command=command, **facts)

        self.signed = sign(house, authority, add_job_of_commit)
        crate, checkpoint = hash_file(self.signed.folder / layout.CRATE), self.signed.checkpoint
        self.pins = [
            [],
            ["--crate-sha256", crate],
            ["--key", str(self.signed.trusted.key)],
            ["--log-checkpoint", checkpoint],
            ["--log", str(self.signed.heads)],
            ["--timestamp-certificates", str(authority.certificate)],
        ]

    def verify(self, folder: Path, raw: Path, has_repository: bool) -> list[bool]:
        """Return for each trust anchor whether `verify` reports a problem."""
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(self.house / "repository" if has_repository else self.house)
            return [main(["verify", str(folder), "--raw", str(raw), *pin]) == 1 for pin in self.pins]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Reader:
    return Reader(tmp_path_factory.mktemp("reader"), authority)


def _exchange_raw_file(run: Path, raw: Path, key: Path) -> None:
    (raw / "laws/0.jsonl").write_text(OTHER_TEXT)


def _remove_raw_file(run: Path, raw: Path, key: Path) -> None:
    (raw / "laws/0.jsonl").unlink()


def _rewrite_with(change: Callable[[Path], None], run: Path, key: Path) -> None:
    change(run)
    rewrite(run, lambda folder: None, key)
    shutil.rmtree(run / layout.TIMESTAMPS)


def _exchange_raw_file_and_rewrite(run: Path, raw: Path, key: Path) -> None:
    _exchange_raw_file(run, raw, key)
    now = {"sha256": hash_file(raw / "laws/0.jsonl"), "bytes": len(OTHER_TEXT)}
    _rewrite_with(edit(FILTER, lambda record: record["inputs"][0].update(now)), run, key)


def _claim_commit(run: Path, raw: Path, key: Path) -> None:
    """Let the record and the attempt of a job name code that its commit does not have."""

    def change(folder: Path) -> None:
        honest = json.loads((folder / RECORD).read_text())["code_version"]
        for path in (RECORD, ATTEMPT):
            (folder / path).write_text((folder / path).read_text().replace(honest, OTHER_CODE))

    _rewrite_with(change, run, key)


ATTACKS: dict[str, tuple[Callable[[Path, Path, Path], None], bool]] = {
    "a raw file is changed after the run; `--raw`": (_exchange_raw_file, False),
    "a raw file is removed or not available": (_remove_raw_file, False),
    "a raw file is changed, and everything is written again with the owner's key; `--raw`": (
        _exchange_raw_file_and_rewrite,
        False,
    ),
    "a record names a commit whose code it did not run, and everything is written again with the owner's key; "
    "repository": (_claim_commit, True),
    "the same without the repository": (_claim_commit, False),
}


def read_table() -> dict[str, list[bool]]:
    """Return for each attack of the page whether `verify` finds it with each trust anchor."""
    table = PAGE.read_text(encoding="utf-8").partition(HEAD)[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: [cell == "found" for cell in row[1:]] for row in rows}


@pytest.mark.parametrize("attack", ATTACKS)
def test_table_lists_what_raw_files_and_repository_detect(
    reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str], attack: str
) -> None:
    run = shutil.copytree(reader.signed.folder, tmp_path / "run", symlinks=True)
    raw = shutil.copytree(reader.raw, tmp_path / "raw")
    make, has_repository = ATTACKS[attack]
    assert reader.verify(run, raw, has_repository) == [False] * len(reader.pins)
    output = capsys.readouterr().out
    assert output.count("Raw files: 2 agree.") == len(reader.pins)
    assert output.count("the commits in their records: 1 agree,") == (len(reader.pins) if has_repository else 0)
    make(run, raw, reader.signed.key)
    assert reader.verify(run, raw, has_repository) == read_table()[attack]
    assert list(ATTACKS) == list(read_table())
