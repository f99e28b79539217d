"""What a start writes of the run's signer is whole, or as it was."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from pipeline.attestation import keys
from pipeline.attestation.log import KEY
from pipeline.ground.errors import DiskFull
from pipeline.provenance import evidence, seal
from pipeline.provenance.settings import Provenance


def test_a_start_that_is_killed_while_it_writes_the_signer_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "")  # to be undone
    keys.generate(tmp_path / "key.pem", "p256")
    run, settings = tmp_path / "run", Provenance(key=str(tmp_path / "key.pem"), owner="Somebody")
    seal.begin(run, settings, print)
    files = [run / evidence.PUBLIC_KEY, run / evidence.SIGNER]
    before = [file.read_bytes() for file in files]

    def killed(path: Path, *_: Any, **__: Any) -> None:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(DiskFull):
            seal.begin(run, settings, print)
    assert [file.read_bytes() for file in files] == before
    seal.begin(run, settings, print)


def test_what_is_only_begun_is_no_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "provenance/accounting"
    folder.mkdir(parents=True)
    for name in ("far.7.json", ".partial-login2.9-far.8.json", "lock", ".lock-login2-9"):
        (folder / name).write_text("{}")
    assert [*evidence.files(tmp_path)] == ["provenance/accounting/far.7.json"]
