"""The table of the page Provenance: what each trust anchor detects, by an attack on each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.core import attestation_log, signing_keys
from pipeline.core.hashing import hash_file
from pipeline.provenance import run_signing_and_log_checkpoint
from pipeline.provenance.settings import Provenance
from pipeline.provenance.verify_run import TrustAnchors, verify_run
from tests.conftest import ROOT
from tests.provenance.authority import Authority
from tests.provenance.conftest import RunBuilder, Signed
from tests.provenance.test_attacks import BETTER, FAILED, rewrite

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/explanation/provenance.md"
HEAD = "| Attack | nothing |"


def _write_again(run: Signed, key: Path) -> None:
    rewrite(run.folder, BETTER, key)
    shutil.rmtree(run.folder / layout.TIMESTAMPS)


def _write_again_unsigned(run: Signed) -> None:
    def change(folder: Path) -> None:
        BETTER(folder)
        for name in (layout.SIGNER, layout.PUBLIC_KEY):
            (folder / name).unlink()

    rewrite(run.folder, change, None)
    shutil.rmtree(run.folder / layout.TIMESTAMPS)


def _write_again_with_own_key(run: Signed) -> None:
    own = run.house / "own.pem"
    signing_keys.generate_key_pair(own, "p256")
    _write_again(run, own)


def _drop_the_end(run: Signed) -> None:
    """Restore the log and all files attested by its last invocation to their state after the crate."""
    shutil.rmtree(run.folder)
    shutil.copytree(run.house / "after the crate", run.folder, symlinks=True)


ATTACKS: dict[str, Callable[[Signed], object]] = {
    "a file is changed": lambda run: BETTER(run.folder),
    "a failed attempt is removed": lambda run: (run.folder / FAILED).unlink(),
    "the last lines of the log are removed, and the files that they attest": _drop_the_end,
    "everything is written again, unsigned": _write_again_unsigned,
    "everything is written again, with another key": _write_again_with_own_key,
    "everything is written again, with the owner's key": lambda run: _write_again(run, run.key),
}


def read_table() -> dict[str, list[bool]]:
    """Return for each attack of the page whether each anchor detects it, in the order of the columns."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(HEAD))
    rows = [line.strip("| ").split(" | ") for line in lines[begin + 2 : begin + 2 + len(ATTACKS)]]
    return {row[0]: [cell == "found" for cell in row[1:]] for row in rows}


@pytest.fixture
def failed_later(original: Signed, authority: Authority, tmp_path: Path) -> Signed:
    """A signed, timestamped and published run with a later failed invocation, also timestamped and published."""
    house = shutil.copytree(original.house, tmp_path / "house", symlinks=True)
    run = Signed(house / "run", house)
    shutil.copytree(run.folder, house / "after the crate", symlinks=True)
    stamps = {"url": authority.url, "certificates": str(authority.certificate)}
    settings = {"key": str(run.key), "owner": "Stichting Proef", "timestamps": stamps, "log": str(run.heads)}
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(attestation_log.SIGNING_KEY_VARIABLE, raising=False)
        run_signing_and_log_checkpoint.begin_signing(run.folder, Provenance.model_validate(settings), print)
        RunBuilder(run.folder).fail("corpus.filter.later", "failed")
        assert run_signing_and_log_checkpoint.finish_signing(
            run.folder, Provenance.model_validate(settings), messages.append
        )
        del os.environ[attestation_log.SIGNING_KEY_VARIABLE]
    run.checkpoint = messages[0].split()[2]
    return run


@pytest.mark.parametrize("attack", ATTACKS)
def test_table_lists_what_each_trust_anchor_detects(failed_later: Signed, authority: Authority, attack: str) -> None:
    run = failed_later
    pins = [
        TrustAnchors(),
        TrustAnchors(crate_sha256=hash_file(run.folder / layout.CRATE)),
        TrustAnchors(key=run.trusted.key),
        TrustAnchors(log_checkpoint=run.checkpoint),
        TrustAnchors(log=run.heads),
        TrustAnchors(timestamp_certificates=authority.certificate),
    ]
    assert [verify_run(run.folder, pin).problems for pin in pins] == [[]] * len(pins)
    ATTACKS[attack](run)
    results = [bool(verify_run(run.folder, pin).problems) for pin in pins]
    assert read_table()[attack] == results
