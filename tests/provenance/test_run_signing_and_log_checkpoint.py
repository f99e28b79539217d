"""The signer file of an invocation is complete or unchanged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.core import signing_keys
from pipeline.core.attestation_log import SIGNING_KEY_VARIABLE, read_log
from pipeline.core.errors import DiskFull, InputError
from pipeline.provenance import evidence_attestation, run_signing_and_log_checkpoint
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.provenance.settings import Provenance


def test_invocation_killed_while_writing_the_signer_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, "")  # to be undone
    signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    run, settings = tmp_path / "run", Provenance(key=str(tmp_path / "key.pem"), owner="Somebody")
    run_signing_and_log_checkpoint.begin_signing(run, settings, print)
    files = [run / layout.PUBLIC_KEY, run / layout.SIGNER]
    before = [file.read_bytes() for file in files]

    def killed(path: Path, *_: Any, **__: Any) -> None:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(DiskFull):
            run_signing_and_log_checkpoint.begin_signing(run, settings, print)
    assert [file.read_bytes() for file in files] == before
    run_signing_and_log_checkpoint.begin_signing(run, settings, print)


def test_run_goes_on_only_with_the_key_with_which_it_began(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, "")  # to be undone
    own, other = (Provenance(key=str(tmp_path / name), owner="Somebody") for name in ("own.pem", "other.pem"))
    for settings in (own, other):
        signing_keys.generate_key_pair(Path(str(settings.key)), "p256")
    run_signing_and_log_checkpoint.begin_signing(tmp_path / "signed", own, print)
    files = [tmp_path / "signed" / name for name in (layout.PUBLIC_KEY, layout.SIGNER)]
    before = [file.read_bytes() for file in files]
    for run, settings, sentence in (
        (tmp_path / "signed", Provenance(), r"signed is signed: give provenance\.key"),
        (tmp_path / "signed", other, "is signed with another key: use that one"),
        (finished, own, "was begun unsigned"),
    ):
        with pytest.raises(InputError, match=sentence):
            run_signing_and_log_checkpoint.begin_signing(run, settings, print)
    assert [file.read_bytes() for file in files] == before and not (finished / layout.PUBLIC_KEY).exists()


def test_run_without_a_key_is_not_signed_by_a_variable_of_the_shell(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, str(tmp_path / "key.pem"))
    (finished / "logs/more.log").write_text("x")
    run_signing_and_log_checkpoint.begin_signing(finished, Provenance(), print)
    attest_evidence(finished)
    assert all(not line.signatures for line in read_log(finished))


def test_partial_files_are_not_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "provenance/accounting"
    folder.mkdir(parents=True)
    for name in ("far.7.json", ".partial-login2.9-far.8.json", "lock", ".lock-login2-9"):
        (folder / name).write_text("{}")
    assert [*evidence_attestation.list_evidence(tmp_path)] == ["provenance/accounting/far.7.json"]


def test_failed_signature_is_reported_and_the_rest_is_signed(tmp_path: Path, finished: Path) -> None:
    (finished / "logs/more.log").write_text("x")
    authority = {"url": "http://localhost:1/", "certificates": str(tmp_path / "none.pem")}
    published = tmp_path / "checkpoints.jsonl"
    messages: list[str] = []
    settings = Provenance.model_validate({"timestamps": authority, "log": str(published)})
    assert run_signing_and_log_checkpoint.finish_signing(finished, settings, messages.append), (
        "an unresponsive authority is asked again"
    )
    assert ["gave no timestamp" in sentence for sentence in messages] == [True, False]
    (finished / "logs/more.log").write_text("y")
    assert not run_signing_and_log_checkpoint.finish_signing(finished, Provenance(log=str(tmp_path)), messages.append)
    assert messages[-1].startswith("the evidence of this start is not complete: ") and messages[-1].endswith(
        "complete it"
    )
    assert attest_evidence(finished) == 0, "it is attested nevertheless"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_incompletely_signed_invocation_has_a_nonzero_exit_code(
    finished: Path, tmp_path: Path, is_sealed: bool
) -> None:
    """As Snakemake ends: at the shutdown of the interpreter, with a key that signs models."""
    signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    (final := finished / "models/base/final").mkdir()
    (final / "model.safetensors").write_text("weights")
    if not is_sealed:
        (final / "link").symlink_to("model.safetensors")  # model_signing signs no links
    ending = (
        "import atexit, os, sys; from pathlib import Path\n"
        "from pipeline.provenance import run_signing_and_log_checkpoint as signing\n"
        "from pipeline.provenance.settings import Provenance\n"
        "run, say = Path(sys.argv[1]), signing.print_to_stderr\n"
        "atexit.register(lambda: signing.finish_signing(run, Provenance(), say) or signing.exit_with_failure())\n"
    )
    environment = {**os.environ, SIGNING_KEY_VARIABLE: str(tmp_path / "key.pem")}
    words = [sys.executable, "-c", ending, str(finished)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if is_sealed else 1), done.stderr
    assert (finished / "provenance/signatures/base.sig").is_file() == is_sealed
    assert ("models/base/final is not signed: " in done.stderr) != is_sealed and "log checkpoint: " in done.stderr
