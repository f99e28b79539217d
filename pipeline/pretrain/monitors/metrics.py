"""Write the metrics of a training while it runs: metrics.jsonl, TensorBoard, and progress lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from pipeline import layout
from pipeline.core import atomic_files
from pipeline.core.full_disk_errors import is_disk_full
from pipeline.core.output_lease import Lease
from pipeline.pretrain.monitors.held_out_document_losses import DOCUMENTS

Metrics = Mapping[str, Any]
"""Numbers by name, None where unknown; a line on skipped batches also has texts and lists."""
EVENTS = "events.out.tfevents"
SECONDS_BETWEEN_LINES = 2.0
NO_CHARTS = ("step", "seconds", "ended_unix_seconds")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file, without a truncated last line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def find_last_step(path: Path, first_step: int) -> int:
    """Return the last step before the first gap in the lines after `first_step`."""
    steps = {int(line["step"] or 0) for line in read_metrics(path) if "loss" in line}
    step = first_step
    while step + 1 in steps:
        step += 1
    return step


def truncate_metrics(path: Path, step: int) -> None:
    """Replace the file by one without steps after `step`; a process that still writes the old file does no harm."""
    kept = [line for line in read_metrics(path) if int(line["step"] or 0) <= step]
    atomic_files.write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


class TensorBoardWriter:
    """One events file that depends on the metrics only: its clock is the sum of the steps' seconds."""

    def __init__(self, folder: Path, name: str = f"{EVENTS}.0") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)  # not emptied: another process may have it open
        self._stream = (folder / name).open("wb")
        self._records = RecordWriter(self._stream)
        self._seconds = 0.0
        self._records.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())

    def add(self, metrics: Iterable[Metrics]) -> None:
        """Append lines of metrics, one chart for each name."""
        for line in metrics:
            self._seconds += line.get("seconds") or 0.0
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in line.items()
                if name not in NO_CHARTS and isinstance(value, int | float) and not isinstance(value, bool)
            ]
            event = Event(wall_time=self._seconds, step=int(line["step"] or 0), summary=Summary(value=values))
            self._records.write(event.SerializeToString())
        self._records.flush()

    def add_summary(self, summary: Summary) -> None:
        """Append a summary of the whole training, such as its hyperparameters."""
        self._records.write(Event(wall_time=self._seconds, summary=summary).SerializeToString())

    def restart_at(self, step: int) -> None:
        """Make TensorBoard discard the lines of a step and later ones."""
        start = SessionLog(status=SessionLog.START)
        self._records.write(Event(wall_time=self._seconds, step=step, session_log=start).SerializeToString())

    def close(self) -> None:
        self._records.close()


class MetricsLog:
    """Writes the metrics of a segment into its scratch and prints its progress; only process 0 has one."""

    def __init__(self, owner: Lease, first_step: int, last_step: int) -> None:
        owner.check()
        scratch = owner.folder
        path = scratch / layout.METRICS_FILE
        self._owner = owner
        self._tensorboard = TensorBoardWriter(scratch / "tensorboard")
        self._tensorboard.add(read_metrics(path))
        self._path = path
        self._stream = path.open("ab", buffering=0)
        self._waiting = b""
        self._documents: Metrics = {}
        self._first, self._last = first_step, last_step
        self._started = time.monotonic()
        self._last_printed = 0.0

    def write_line(self, line: Metrics) -> None:
        """Write a line, buffered in memory while the disk is full; the table of documents waits for the last step.

        Raises:
            Superseded: a later start owns the scratch.
        """
        self._owner.check()
        if DOCUMENTS in line:
            self._documents = {"step": line["step"], DOCUMENTS: line[DOCUMENTS]}
            line = {key: value for key, value in line.items() if key != DOCUMENTS}
        self._waiting += (json.dumps(line) + "\n").encode()
        try:
            self._write()
            self._tensorboard.add([line])
        except OSError as error:
            if not is_disk_full(error):
                raise

    def add_once(self, line: Metrics) -> None:
        if line not in read_metrics(self._path):
            self.write_line(line)

    def _write(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._stream.write(self._waiting) :]

    def print_progress(self, line: Metrics) -> None:
        """Print the progress of the training, at most every two seconds and at the last step."""
        now, step = time.monotonic(), int(line["step"] or 0)
        if now - self._last_printed < SECONDS_BETWEEN_LINES and step < self._last:
            return
        self._last_printed = now
        remaining = (now - self._started) / (step - self._first) * (self._last - step)
        utilization = line.get("model_flops_utilization")
        print(
            f"step {step}/{self._last}  loss {line['loss']:.4f}  {line['tokens_per_second']:,.0f} tokens/s  "
            f"{'' if utilization is None else f'MFU {utilization:.1%}  '}{remaining / 60:.1f} min left",
            flush=True,
        )

    def flush_to_disk(self) -> None:
        """Flush the lines to the disk; on a full disk they stay in memory."""
        try:
            self._write()
            os.fsync(self._stream.fileno())
        except OSError as error:
            if not is_disk_full(error):
                raise

    def close(self) -> None:
        """Write all lines, with the table of documents if the last step was validated, and close the files."""
        if self._documents.get("step") == self._last:
            self._waiting += (json.dumps(self._documents) + "\n").encode()
        self._write()
        self._stream.close()
        self._tensorboard.close()


UNKNOWN = -1.0  # in collectives, where every figure has to be a number
SLOW_RATIO = 1.3
"""A process that takes this many times the median of all is reported as slow."""


def summarize_probes(seconds: Sequence[float]) -> dict[str, float]:
    """Summarize the probes of all processes for a line of metrics; nothing if one is unknown."""
    if min(seconds) < 0:
        return {}
    most = max(seconds)
    return {
        "probe_seconds": median(seconds),
        "slowest_process": seconds.index(most),
        "slowest_process_ratio": most / median(seconds),
    }


def format_slow_process(line: Mapping[str, Any], nodes: Sequence[str]) -> str | None:
    """Format a warning on a slow process in a step's line, or None.

    Args:
        nodes: the node of each process.
    """
    if line.get("slowest_process_ratio", 0.0) < SLOW_RATIO:
        return None
    process = int(line["slowest_process"])
    return (
        f"process {process} on {nodes[process]} takes {line['slowest_process_ratio']:.2f} times as long as the median "
        "of all processes for the same work, and all wait for it"
    )
