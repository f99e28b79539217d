"""Energy of single steps: the job's meters are read beside the training and told to it through a small file.

The meters belong to the job, which is given how to read them; the processes of the training only read the file. Between
two readings the power of the last interval is assumed, so that the steps' joules add up to what the meters say.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_READINGS = 2.0
ReadMeters = Callable[[], Mapping[str, Any]]
"""Returns at least `joules` since some start and whether all of them are `measured`; the others are estimated."""


@contextmanager
def published(read: ReadMeters | None, path: Path, every_seconds: float = SECONDS_BETWEEN_READINGS) -> Iterator[None]:
    """Keep the file up to date while the block runs; without meters there is no file."""
    path.unlink(missing_ok=True)
    if read is None:
        yield
        return
    stop = threading.Event()

    def write(before: tuple[float, float] | None) -> tuple[float, float]:
        reading, now = read(), time.time()
        joules, watts = float(reading["joules"]), 0.0
        if before is not None and now > before[0]:
            watts = (joules - before[1]) / (now - before[0])
        content = {"at_seconds": now, "joules": joules, "watts": watts, "measured": bool(reading["measured"])}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content), encoding="utf-8")
        os.replace(partial, path)
        return now, joules

    def work(before: tuple[float, float]) -> None:
        while not stop.wait(every_seconds):
            with contextlib.suppress(OSError):  # a full disk is found where something is lost by it
                before = write(before)

    thread = threading.Thread(target=work, args=(write(None),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        path.unlink(missing_ok=True)


class Consumption:
    """What the file says, read now and then by `refresh`; `take` is called by another thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: dict[str, float] | None = None
        self._taken: float | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file again."""
        with contextlib.suppress(OSError, ValueError):
            self._last = json.loads(self._path.read_text(encoding="utf-8"))

    def take(self) -> tuple[float, bool] | None:
        """Return the joules since the last call and whether they are measured; None where that is not known."""
        last, taken = self._last, self._taken
        if last is None:
            return None
        joules = last["joules"] + last["watts"] * max(time.time() - last["at_seconds"], 0.0)
        # Where too much was assumed the next step waits until the meters have caught up.
        self._taken = joules if taken is None else max(joules, taken)
        return None if taken is None else (self._taken - taken, bool(last["measured"]))
