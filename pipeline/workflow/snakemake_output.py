"""Replace Snakemake's output on the terminal by warnings, errors and the progress of the run.

`attach_output` adds a log handler with the interface of Snakemake's logger plugins, but without an installed package:
Snakemake reads `--logger` before it reads the Snakefile. Snakemake's own output stays in its log file, and is on the
terminal with --verbose, --debug-dag or --printshellcmds.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from logging import ERROR, WARNING, LogRecord
from typing import Any, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.config.configuration import Config
from pipeline.workflow.snakemake_internals import SnakemakeWorkflow

TICK_SECONDS = 5.0  # between two updates of the progress
NOTHING_TO_DO = "Nothing to be done"
# Messages that the display of the progress replaces.
REPLACED = re.compile(
    "Exiting because a job execution failed|At least one job did not complete|Shutting down, this might take"
    r"|\ARuleException:\s*CalledProcessError"  # the whole command of a failed job
)
# Messages at the end of a dry run that our summary replaces. The advice about rerun triggers is wrong here.
ADVICE = re.compile(
    "^Job stats:|^Reasons:|^Some jobs were triggered by provenance|^Rules with provenance triggered jobs"
    "|^This was a dry-run|^The run involves checkpoint jobs|jobs have (missing|outdated) provenance"
)
LOCATION = re.compile(r"\AWorkflowError(?: in [^\n]*)?:\n")


class OutputHandler(LogHandlerBase):
    """The log handler of an invocation of Snakemake.

    Args:
        common_settings: Snakemake's output settings.
        stream: where messages are printed.
    """

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __init__(self, common_settings: Any, stream: TextIO) -> None:
        super().__init__(common_settings, None)
        self.display: Any = None
        self._stream = stream
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick_until_end, name="progress", daemon=True)

    def start_progress_display(self, config: Config, workflow: SnakemakeWorkflow) -> None:
        """Show the progress of a run from now on."""
        from pipeline.workflow.progress_display import ProgressDisplay  # here, because dry runs need none

        view = None
        if self._stream.isatty():
            from pipeline.workflow.live_view import LiveView  # here, because it imports rich

            view = LiveView()
        self.display = ProgressDisplay(config, workflow.count_jobs_by_rule, self._stream, workflow.log_file, view=view)

    def update_queue(self, reasons: Mapping[int, str]) -> None:
        """Take the jobs that wait in Slurm's queue, by their ids, with the reasons."""
        if self.display is not None:
            self.display.update_queue(reasons)

    def emit(self, record: LogRecord) -> None:
        """Show a record; the first started job starts the thread that updates the progress."""
        event = getattr(record, "event", None)
        try:
            if event == LogEvent.JOB_ERROR and self.display is not None:
                self.display.handle(record)
            elif record.levelno >= WARNING or NOTHING_TO_DO in str(record.msg):
                text = LOCATION.sub("error: ", record.getMessage())
                if text.strip() and not REPLACED.search(text):
                    self._print(text, error=record.levelno >= ERROR)
            elif self.display is not None:
                self.display.handle(record)
                if event == LogEvent.JOB_INFO and not self._thread.is_alive():
                    self._thread.start()
        except Exception:
            self.handleError(record)

    def _print(self, text: str, *, error: bool) -> None:
        if self.display is not None:
            self.display.print(text, error=error)
        else:
            print(text, file=self._stream, flush=True)

    def _tick_until_end(self) -> None:
        while True:
            with suppress(OSError, ValueError, KeyError):  # files that are being replaced
                self.display.tick()
            if self._ended.wait(TICK_SECONDS):
                return

    def close(self) -> None:
        """End the display; Snakemake calls it at its end."""
        if not self._ended.is_set():
            self._ended.set()
            if self._thread.is_alive():
                self._thread.join()
            if self.display is not None:
                self.display.end()
        super().close()


def replace_snakemake_output(workflow: SnakemakeWorkflow, *, executes: bool) -> OutputHandler | None:
    """Replace Snakemake's output; return None where it stays, because the user asked for it or nothing runs.

    Args:
        workflow: Snakemake's workflow.
        executes: whether this invocation runs jobs.
    """
    if not executes and not workflow.is_dry_run:
        return None
    if workflow.shows_own_output:
        if not executes:
            workflow.hide_messages(ADVICE)
        return None
    handlers: list[OutputHandler] = []

    def make(settings: Any) -> OutputHandler:
        handlers.append(OutputHandler(settings, sys.stderr if executes else sys.stdout))
        return handlers[0]

    workflow.replace_output(make)
    return handlers[0]
