"""The log of heads: a file outside of runs, to which each start adds the hash of the last line of its run's log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.ground.errors import InputError


class Head(NamedTuple):
    """What was published of a run: how many lines its log of attestations had, and the sha256 of the last one."""

    run: str
    lines: int
    sha256: str


def heads(path: Path) -> list[Head]:
    """Return all heads of a log, in their order.

    Raises:
        InputError: it cannot be read, or a line of it is no head.
    """
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Head(str(entry["run"]), int(entry["lines"]), str(entry["head"])) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise InputError(f"{path} is no log of heads, as provenance.log writes it") from None


def publish(path: Path, head: Head) -> None:
    """Append a head to a log, which is made where there is none; one that it has already is not told again.

    Raises:
        InputError: the log is none: nothing is written to it.
        OSError: it cannot be written.
    """
    if path.exists() and head.sha256 in {known.sha256 for known in heads(path)}:
        return
    entry = {"run": head.run, "lines": head.lines, "head": head.sha256}
    line = json.dumps({**entry, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with path.open("a+b") as log:
        log.seek(max(log.seek(0, 2) - 1, 0))
        is_whole = log.read(1) in (b"", b"\n")  # an editor may have left the last line without its end
        log.write(b"" if is_whole else b"\n")
        log.write(f"{line}\n".encode())
