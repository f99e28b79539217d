"""A trace of some steps of a training that runs, when somebody asks: `polder profile RUN MODEL`.

Process 0 finds the request in the scratch of its segment, as it finds that it is to stop. Nothing is started again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.core import atomic_files
from pipeline.core.errors import InputError
from pipeline.pretrain.training_follower import find_latest_segment

REQUEST, TRACES = "profile", "traces"


class Profiler:
    """Traces the steps that are asked for, of one process; without a folder it does nothing."""

    def __init__(self, folder: Path | None, device: torch.device) -> None:
        self._folder = folder
        self._activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
        self._running: Any = None
        self._first = self._last = 0

    def begin(self, step: int) -> None:
        """Begin a trace before a step where one is asked for; a request that is no number is thrown away."""
        if self._folder is None or self._running or not (request := self._folder / REQUEST).exists():
            return
        try:
            asked = request.read_text(encoding="utf-8").strip()
            request.unlink()
        except FileNotFoundError:  # who asked has just given up
            return
        if asked.isdecimal() and int(asked):
            self._first, self._last = step, step + int(asked) - 1
            self._running = profile(activities=self._activities, record_shapes=True, profile_memory=True)
            self._running.start()

    def end(self, step: int, *, is_last: bool) -> None:
        """Write the trace behind its last step, or the training's; the file has its name when it is whole."""
        if self._folder is None or self._running is None or (step < self._last and not is_last):
            return
        self._running.stop()
        path = self._folder / TRACES / f"steps-{self._first}-{step}.json"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f".{path.name}")
        self._running.export_chrome_trace(str(partial))
        partial.replace(path)
        self._running = None
        print(f"traced steps {self._first} to {step}: {path}", flush=True)


SECONDS = 1.0  # between two looks at whether it is done


def request_trace(run_directory: Path, model: str, steps: int, wait_seconds: float) -> Path:
    """Have process 0 of a running training trace its next steps, and return the trace in Chrome's format.

    Raises:
        InputError: the training does not run, or no step was traced in time.
    """
    if steps < 1:
        raise InputError(f"--steps {steps} is no number of steps: write at least 1")
    folder = find_latest_segment(run_directory, model)
    if folder is None:
        raise InputError(f"{run_directory} has no training of {model} that runs: look with `follow`")
    before = {*(folder / TRACES).glob("[!.]*.json")}
    atomic_files.write_atomically(folder / REQUEST, f"{steps}\n".encode())  # found empty it would be thrown away
    deadline = time.monotonic() + wait_seconds
    try:
        while not (made := {*(folder / TRACES).glob("[!.]*.json")} - before):
            if time.monotonic() > deadline:
                raise InputError(f"no step was traced within {wait_seconds:g} seconds: does the training go on?")
            time.sleep(SECONDS)
    finally:
        (folder / REQUEST).unlink(missing_ok=True)  # the next start is not to trace what nobody waits for
    return made.pop()
