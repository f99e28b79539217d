"""What an allocation of Slurm runs: the jobs of Snakemake that it was made for, side by side, and nothing else.

    python -m pipeline.slurm.allocation FILE SHA256

FILE was written when the allocation was submitted and says everything: no job reads the configuration or starts
Snakemake again. It is checked against the hash in the batch script, of which Slurm has a copy of its own. How each job
has ended is added to a second file beside it, so that an allocation that is put back into the queue runs only what is
not done, and a Snakemake that was killed meanwhile learns what is.

It runs on the host, outside of any image, since it needs Slurm's commands, and imports the standard library alone:
each job pays for its start.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import TRY_AGAIN
from pipeline.slurm import requeue

ALLOCATIONS = Path(".snakemake/allocations")  # beside Snakemake's own marks of what is incomplete
REFUSED = 2


@dataclass(frozen=True)
class Task:
    """One job of Snakemake: its shell command, and the words of `srun` before it; without any it starts its own."""

    what: str
    command: str
    srun: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)


def write(path: Path, tasks: list[Task]) -> str:
    """Write the file of an allocation and return its sha256."""
    text = json.dumps([asdict(task) for task in tasks], indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def batch_script(path: Path, sha256: str) -> str:
    """Return the script that Slurm keeps: it names the file of the allocation and the hash that it must have."""
    words = [sys.executable, "-m", "pipeline.slurm.allocation", str(path), sha256]
    return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def ends_file(path: Path) -> Path:
    """Return the file with the ends of an allocation's jobs, a line each."""
    return path.with_suffix(".ends")


def ends(path: Path) -> dict[int, int]:
    """Return the exit codes of the jobs of an allocation that have ended, by their place in its file."""
    try:
        lines = ends_file(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found: dict[int, int] = {}
    for line in lines:
        number, _, code = line.partition(" ")
        if number.isdigit() and code.lstrip("-").isdigit():  # the last line of a node that died may be cut
            found[int(number)] = int(code)
    return found


def finished_outputs(folder: Path) -> list[str]:
    """Return the outputs of all jobs in a folder of allocations that have ended well, whoever waited for them."""
    found: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if not (codes := ends(path)):  # nor is its file whole, where the snakemake that wrote it was killed
            continue
        tasks = json.loads(path.read_text(encoding="utf-8"))
        found += [name for number, task in enumerate(tasks) if codes.get(number) == 0 for name in task["outputs"]]
    return found


def _code(status: int) -> int:
    """Return an exit code as a shell has it: a signal counts from 128."""
    return status if status >= 0 else 128 - status


class Allocation:
    """The jobs of one file, run once each."""

    def __init__(self, path: Path, tasks: list[dict[str, Any]]) -> None:
        self.path = path
        self.tasks = tasks
        self.codes = {number: code for number, code in ends(path).items() if code == 0}
        self._lock = threading.Lock()

    def _run(self, number: int) -> None:
        task = self.tasks[number]
        # bash, not sh: commands are written for it, and $BASH_ENV tells it of modules.
        words = [*task["srun"], "bash", "-c", task["command"]]
        environment = {**os.environ, **task["environment"]}
        code = _code(subprocess.run(words, env=environment, stdin=subprocess.DEVNULL).returncode)
        with self._lock:
            self.codes[number] = code
            try:
                with ends_file(self.path).open("a", encoding="utf-8") as stream:
                    stream.write(f"{number} {code}\n")
            except OSError as error:  # a full disk: Slurm's own exit code still tells
                print(f"the end of {task['what']} could not be written down: {error}", file=sys.stderr, flush=True)
            if code:
                print(f"{task['what']} ended with exit code {code}", file=sys.stderr, flush=True)

    def run(self) -> int:
        """Run all that is not done yet side by side and return an exit code: 0, or that of the first that failed."""
        threads = [
            threading.Thread(target=self._run, args=[number])
            for number in range(len(self.tasks))
            if number not in self.codes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [code for _, code in sorted(self.codes.items()) if code]
        if TRY_AGAIN in failed and requeue.put_back():
            requeue.wait_for_end()
        return failed[0] if failed else 0


def main(arguments: list[str]) -> int:
    """Run an allocation's jobs and return the exit code."""
    # Slurm's SIGTERM is for the jobs; a handler, unlike SIG_IGN, is not inherited by them.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    path, sha256 = Path(arguments[0]), arguments[1]
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != sha256:
        print(f"error: {path} is not what was submitted: start snakemake again", file=sys.stderr)
        return REFUSED
    return Allocation(path, json.loads(text)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
