"""Detect a hung process: after too long without a heartbeat, dump its stacks and end it."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HUNG_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
SLOW_FACTOR = 4
"""How much longer the first step may take, which joins processes, loads a checkpoint and compiles, and a synchronous
write of a checkpoint."""


def list_hung_stack_files(scratch: Path, token: str) -> list[Path]:
    """Return the stack files of hung processes of this start of a training."""
    stack_files = []
    for path in sorted((scratch / "logs").glob(f"stacks-{token}-*.txt")):
        with suppress(FileNotFoundError):  # its process just ended well
            stack_files += [path] if path.stat().st_size else []
    return stack_files


def seconds_between_checks(hang_seconds: float) -> float:
    """Return the seconds between two checks of a process."""
    return min(hang_seconds / 10, 10.0)


def report_grace_seconds(hang_seconds: float) -> float:
    """Return the maximum seconds between the reports of the first and the last hung process."""
    return max(2 * seconds_between_checks(hang_seconds), 5.0)


class Watchdog:
    """A thread that ends this process when `beat` is not called for `seconds`.

    If a library holds the interpreter lock, faulthandler's thread does the same a little later, with exit code 1.
    """

    def __init__(self, scratch: Path, token: str, name: str, seconds: float) -> None:
        (scratch / "logs").mkdir(parents=True, exist_ok=True)
        self.path = scratch / "logs" / f"stacks-{token}-{name}.txt"
        self.collectives = scratch / "logs" / f"collectives-{token}-{name}.json"
        self.seconds = seconds
        self._interval, self._grace = seconds_between_checks(seconds), report_grace_seconds(seconds)
        self._stream = self.path.open("w", encoding="utf-8")
        self._deadline = time.monotonic() + SLOW_FACTOR * seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self, factor: float = 1) -> None:
        """Report progress, and set how much longer the next phase may take."""
        self._deadline = time.monotonic() + factor * self.seconds

    def stop(self) -> None:
        """Stop the watchdog and remove its empty file."""
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            left = self._deadline - time.monotonic()
            if left > 0:
                faulthandler.dump_traceback_later(left + self._grace, file=self._stream, exit=True)
                continue
            faulthandler.dump_traceback_later(2 * self._grace, file=self._stream, exit=True)  # the dump may hang too
            with suppress(Exception):  # the stacks matter more than any error here
                dump_collectives(self.collectives)
            sentence = f"no progress for {self.seconds:g} s: the stacks of process {os.getpid()} are in {self.path}\n"
            for stream in (self._stream, sys.stderr):
                stream.write(sentence)
                stream.flush()
                faulthandler.dump_traceback(file=stream, all_threads=True)
            time.sleep(self._grace)  # the launcher ends the others too, which have to report first
            os._exit(HUNG_EXIT_CODE)


# The last collectives before a hang, from torch's flight recorder.


def dump_collectives(path: Path) -> None:
    """Write the last collectives of this process as JSON: group, kind, sizes and number, oldest first."""
    if "torch" not in sys.modules:
        return  # torch is not loaded yet
    from pipeline.model.torch_private import flight_recordings

    for content in flight_recordings():
        if json.loads(content).get("entries"):
            path.write_bytes(content)
            return


def read_collective_counts(path: Path) -> dict[str, tuple[int, str]]:
    """Return the number of collectives that a process started in each group, and the last one's name."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["entries"]
    counts: dict[str, tuple[int, str]] = {}
    for entry in entries:
        if not entry["is_p2p"]:
            counts[entry["process_group"][1]] = entry["collective_seq_id"], entry["profiling_name"]
    return counts


def find_process_behind_in_collectives(paths: dict[int, Path], processes: int) -> str | None:
    """Return which process a hang waited for, from the dumps; None where all started the same collectives.

    It is the process with the fewest collectives in a group, else one without a dump. A process without entries for a
    group is inconclusive, because a dump has only the last collectives.
    """
    counts = {process: read_collective_counts(path) for process, path in paths.items()}
    for group in sorted({name for group_counts in counts.values() for name in group_counts}):
        known = {process: group_counts[group] for process, group_counts in counts.items() if group in group_counts}
        least, most = min(known.values()), max(known.values())
        if least[0] < most[0]:
            late = [process for process, (count, _) in sorted(known.items()) if count == least[0]]
            have = "has" if len(late) == 1 else "have"
            kind = most[1].rpartition(":")[2]
            begun = f"begun {least[0]} collectives of {group}, others {most[0]}, the last a {kind}"
            return f"{_format_processes(late)} {have} {begun}"
    silent = [process for process in range(processes) if process not in paths]
    return f"{_format_processes(silent)} did not answer" if silent else None


def _format_processes(processes: list[int]) -> str:
    numbers = ", ".join(map(str, processes))
    return f"process {numbers}" if len(processes) == 1 else f"processes {numbers}"
