"""The checkpoint log outside of runs: appended to, never damaged, and never misread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.provenance import run_signing_and_log_checkpoint
from pipeline.provenance.run_signing_and_log_checkpoint import (
    PublishedCheckpoint,
    append_to_checkpoint_log,
    read_published_checkpoints,
)
from pipeline.provenance.settings import Provenance

FIRST, SECOND = PublishedCheckpoint("tiny", 3, "a" * 64), PublishedCheckpoint("tiny", 5, "b" * 64)


def test_each_checkpoint_is_published_once_in_order(tmp_path: Path) -> None:
    log = tmp_path / "heads.jsonl"
    for head in (FIRST, SECOND, FIRST, SECOND):
        append_to_checkpoint_log(log, head)
    assert read_published_checkpoints(log) == [FIRST, SECOND]


def test_log_without_a_final_line_end_or_empty_log_is_continued(tmp_path: Path) -> None:
    log = tmp_path / "heads.jsonl"
    log.touch()
    append_to_checkpoint_log(log, FIRST)
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    append_to_checkpoint_log(log, SECOND)
    assert read_published_checkpoints(log) == [FIRST, SECOND] and log.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"run": "tiny", "lines": 3}', "[" * 200_000, "\udcff"])
def test_invalid_checkpoint_log_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    log = tmp_path / "heads.jsonl"
    log.write_text(f"{content}\n", errors="surrogateescape")
    before = log.read_bytes()
    with pytest.raises(InputError, match=r"heads\.jsonl is no log of checkpoints"):
        append_to_checkpoint_log(log, FIRST)
    assert log.read_bytes() == before


def test_invalid_checkpoint_log_does_not_fail_the_invocation(tmp_path: Path, finished: Any) -> None:
    log = tmp_path / "heads.jsonl"
    log.write_text("not JSON\n")
    messages: list[str] = []
    run_signing_and_log_checkpoint.finish_signing(finished, Provenance(log=str(log)), messages.append)
    assert len(messages) == 1 and "is no log of checkpoints" in messages[0]
    (finished / layout.ATTESTATION_LOG).unlink()
    log.unlink()
    run_signing_and_log_checkpoint.publish_log_checkpoint(finished, Provenance(log=str(log)), messages.append)
    assert not log.exists(), "a run without attestations publishes nothing"
