"""Show the progress of a run in a terminal, as a live view, and follow a run by its files from any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.core.display_text import format_duration
from pipeline.workflow.run_progress_file import RunProgress, read_trainings

SHOWN = 6  # running jobs, and other lists
BAR_WIDTH = 40
SECONDS, QUEUE_SECONDS = 5.0, 60.0  # between two looks, and two queries to Slurm, which serves many users


def render(progress: RunProgress, trainings: list[str], now: float, waiting: list[str] | None = None) -> RenderableType:
    """Return the view of a run.

    Args:
        progress: the progress of the run.
        trainings: a line about each training.
        now: the time in Unix seconds.
        waiting: sentences about jobs that wait in Slurm's queue; None takes those of the progress.
    """
    elapsed = format_duration((progress.ended or now) - progress.started)
    status = progress.status(now)
    style = "red" if progress.failed or status.startswith("silent") else "bold"
    title = Text.assemble(
        (progress.run, "bold"), f"  {progress.done} of {progress.total} jobs  ", (status, style), f"  {elapsed}"
    )
    if left := progress.time_left():
        title.append(f"  {left}", "bold")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="cyan", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for stage in progress.stages:
        filled = BAR_WIDTH * stage.done // stage.jobs
        bar = Text.assemble(("━" * filled, "green"), ("─" * (BAR_WIDTH - filled), "dim"))
        rows.add_row(stage.stage, bar, f"{stage.done} of {stage.jobs}")
    details = Table.grid(padding=(0, 2))
    details.add_column(style="cyan", no_wrap=True)
    details.add_column(overflow="fold")
    running = [f"{job.name}  {format_duration(max(now - job.started, 0.0))}" for job in progress.running]
    queue = [f"{job.name}  {job.reason}" for job in progress.waiting] if waiting is None else waiting
    failed = [f"{job.name}: {job.cause}" for job in progress.failed]
    for label, entries in (
        ("running", running),
        ("training", trainings),
        ("waiting", queue),
        ("failed", failed),
    ):
        more = [f"and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
        for number, entry in enumerate([*entries[:SHOWN], *more]):
            details.add_row(label if number == 0 else "", Text(entry, "red" if label == "failed" else ""))
    return Group(title, rows, *([Padding(details, (1, 0, 0, 0))] if details.row_count else []))


class LiveView:
    """The live view of a terminal; other output is printed above it.

    Args:
        console: where it is drawn.
        clock: returns the time in Unix seconds.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.time) -> None:
        self.console = console or Console(stderr=True)
        self._clock = clock
        self._shown: tuple[RunProgress, list[str], list[str] | None] | None = None
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=1)

    def _render(self) -> RenderableType:
        if self._shown is None:
            return ""
        progress, trainings, waiting = self._shown
        return render(progress, trainings, self._clock(), waiting)

    def update(self, progress: RunProgress, trainings: list[str], waiting: list[str] | None = None) -> None:
        """Show a progress; the first one opens the view."""
        self._shown = progress, trainings, waiting
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def print(self, text: str, *, error: bool = False) -> None:
        self.console.print(Text(text, "red" if error else ""), soft_wrap=True)

    def stop(self) -> None:
        """Leave the last view on the terminal."""
        if self._live.is_started:
            self._live.stop()


class Follower:
    """Looks at the files of a run again and again.

    Args:
        run_directory: the results of the run.
        list_waiting_jobs: returns sentences about the run's jobs in Slurm's queue.
        describe_trainings: returns a line about each training of the run.
        clock: returns the time in Unix seconds.
    """

    def __init__(
        self,
        run_directory: Path,
        list_waiting_jobs: Callable[[Path], list[str]],
        describe_trainings: Callable[[], list[str]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_directory, self.clock = run_directory, clock
        self._list_waiting_jobs, self._describe_trainings = list_waiting_jobs, describe_trainings
        self._queried = float("-inf")
        self.progress: RunProgress | None = None
        self._has_waited = False
        self.waiting: list[str] = []
        self.trainings: list[str] = []

    def poll(self) -> None:
        """Read the progress of the run, and query Slurm if that is due."""
        if self.clock() - self._queried >= QUEUE_SECONDS:
            self._queried, self.waiting = self.clock(), self._list_waiting_jobs(self.run_directory)
            self._has_waited = self._has_waited or bool(self.waiting)
        self.progress = RunProgress.load(self.run_directory)
        self.trainings = self._describe_trainings()

    def lines(self) -> list[str]:
        first = [self.progress.line([], self.clock())] if self.progress else []
        waiting = self.waiting or ["no job waits in the queue"] * self._has_waited
        return [*first, *waiting, *self.trainings]

    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"waiting": self.waiting, "trainings": []}
        if self.progress:
            trainings = read_trainings(self.run_directory, self.progress)
            content["trainings"] = [training.model_dump() for training in trainings]
            content |= {"done": self.progress.done, "total": self.progress.total, **self.progress.model_dump()}
            content["status"] = self.progress.status(self.clock())
        return content


def follow(
    follower: Follower,
    *,
    once: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the progress of a run by its files until Ctrl-C: a live view on a terminal, else lines that have changed.

    Args:
        follower: looks at the run.
        once: look once.
        as_json: print a line of JSON for each look instead.
        console: where it is shown.
        sleep: waits for some seconds.

    Raises:
        InputError: the folder is not a run, or its progress file is damaged.
    """
    console = console or Console()
    view = LiveView(console, follower.clock) if console.is_terminal and not once and not as_json else None
    shown: set[str] = set()
    try:
        with suppress(KeyboardInterrupt):
            while True:
                follower.poll()
                if as_json:
                    print(json.dumps(follower.json()), file=console.file, flush=True)
                elif view is not None and follower.progress:
                    view.update(follower.progress, follower.trainings, follower.waiting or None)
                else:
                    lines = follower.lines()
                    for line in lines:
                        if line not in shown:
                            print(line, file=console.file, flush=True)
                    shown = {*lines}
                if once:
                    return
                sleep(SECONDS)
    finally:
        if view is not None:
            view.stop()
