"""Asks a training that runs for a trace of its next steps: `python -m pipeline profile RUN MODEL`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pipeline.core import atomic_files
from pipeline.core.errors import InputError
from pipeline.pretrain.follow import trains_in
from pipeline.pretrain.monitors.profiler import REQUEST, TRACES

SECONDS = 1.0  # between two looks at whether it is done


def main(arguments: list[str]) -> int:
    """Have process 0 of a training trace its next steps, in Chrome's format (chrome://tracing, Perfetto)."""
    parser = argparse.ArgumentParser(prog="python -m pipeline profile", description=main.__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="to wait for it")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        raise InputError(f"--steps {options.steps} is no number of steps: write at least 1")
    folder = trains_in(options.run_directory, options.model)
    if folder is None:
        raise InputError(f"{options.run_directory} has no training of {options.model} that runs: look with `follow`")
    before = {*(folder / TRACES).glob("[!.]*.json")}
    atomic_files.write(folder / REQUEST, f"{options.steps}\n".encode())  # found empty it would be thrown away
    deadline = time.monotonic() + options.seconds
    try:
        while not (made := {*(folder / TRACES).glob("[!.]*.json")} - before):
            if time.monotonic() > deadline:
                raise InputError(f"no step was traced within {options.seconds:g} seconds: does the training go on?")
            time.sleep(SECONDS)
    finally:
        (folder / REQUEST).unlink(missing_ok=True)  # the next start is not to trace what nobody waits for
    print(f"{made.pop()}: open it in https://ui.perfetto.dev or chrome://tracing")
    return 0
