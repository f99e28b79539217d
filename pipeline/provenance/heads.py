"""Log checkpoints: the hash of the last line of a run's log of attestations, and the file outside of runs with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.core.attestation_log import Line, lines
from pipeline.core.attestations import BEGAN
from pipeline.core.errors import InputError


class Head(NamedTuple):
    """A log checkpoint: what was published of a run's log of attestations.

    Attributes:
        run: the run's name.
        lines: how many lines the log had.
        sha256: the hash of the last one.
        first: the hash of the first one, which tells the log from all others; None where an earlier version wrote it.
    """

    run: str
    lines: int
    sha256: str
    first: str | None = None


def head_of(run_directory: Path) -> Head | None:
    """Return the checkpoint of a run's log; None where there is no line.

    Raises:
        InputError: the log was cut or changed.
    """
    hashes = [line.sha256 for line in lines(run_directory)]
    return Head(run_directory.name, len(hashes), hashes[-1], hashes[0]) if hashes else None


def run_names(found: Iterable[Line]) -> list[str]:
    """Return the names of the runs that the attempts of a log were made for, the newest last; one, unless renamed."""
    attempts = (line.statement.predicate.attempt or {} for line in found if line.statement.kind == BEGAN)
    starts = (str(attempt.get("snakemake") or "") for attempt in attempts)
    return [*dict.fromkeys(start.rpartition(".")[2] for start in starts if start)]


def of_run(published: Iterable[Head], names: Iterable[str], first: str) -> list[Head]:
    """Return the checkpoints that concern a run: those of its log, and those of any log under its name.

    A folder's name is no part of it: a copy may be anywhere. A log that was written anew has another first line, and
    is named as long as it claims the run's name.
    """
    own = set(names)
    return [head for head in published if head.first == first or head.run in own]


def heads(path: Path) -> list[Head]:
    """Return all checkpoints of a file, in their order."""
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Head(str(entry["run"]), int(entry["lines"]), str(entry["head"]), entry.get("first")) for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} is no log of heads, as provenance.log writes it") from None


def publish(path: Path, head: Head) -> None:
    """Append a checkpoint to a file, which is made where there is none; one that it has already is not added again.

    Raises:
        InputError: the file is no log of checkpoints: nothing is written to it.
        OSError: it cannot be written.
    """
    if path.exists() and head.sha256 in {known.sha256 for known in heads(path)}:
        return
    entry = {"run": head.run, "lines": head.lines, "head": head.sha256, "first": head.first}
    line = json.dumps({**entry, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with path.open("a+b") as log:
        log.seek(max(log.seek(0, 2) - 1, 0))
        is_whole = log.read(1) in (b"", b"\n")  # an editor may have left the last line without its end
        log.write(b"" if is_whole else b"\n")
        log.write(f"{line}\n".encode())
