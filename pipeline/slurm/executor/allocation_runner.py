"""Run the Snakemake jobs of one Slurm allocation in parallel.

    python -m pipeline.slurm.executor.allocation_runner FILE SHA256 [CODE …]

The CODEs are those with which Slurm starts a job again (RequeueExit of slurm.conf): another one takes their place.
FILE was written at submission and is complete: no job reads the configuration or starts Snakemake again. It is checked
against the hash in the batch script, of which Slurm keeps a copy. The exit code of each job is appended to a second
file next to it: a requeued allocation then runs only unfinished jobs, and a Snakemake that starts later knows the
finished ones.

This module runs on the host, outside of any image, because it needs Slurm's commands. It imports only the standard
library, because each job pays for its start.
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
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

ALLOCATIONS_FOLDER = Path(".snakemake/allocations")  # next to Snakemake's marks of incomplete outputs
REFUSED_CODE = 2
NOT_STARTED_CODE = 126
CODES_WITH_A_MEANING = {REFUSED_CODE, os.EX_IOERR, os.EX_TEMPFAIL}
REQUEUE_TRIES, REQUEUE_SECONDS = 4, 10.0


@dataclass(frozen=True)
class AllocationTask:
    """One job of Snakemake: its shell command, and the words of `srun` before it, if it does not start srun itself."""

    what: str
    command: str
    srun: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)


def write_allocation(path: Path, tasks: list[AllocationTask]) -> str:
    """Write the file of an allocation and return its sha256."""
    text = json.dumps([asdict(task) for task in tasks], indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def format_batch_script(path: Path, sha256: str, avoided: Sequence[int] = ()) -> str:
    """Return the batch script, which names the file of the allocation, its hash, and exit codes not to have."""
    words = [sys.executable, "-m", __name__, str(path), sha256, *map(str, avoided)]
    return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def exit_codes_file(path: Path) -> Path:
    """Return the file with the exit codes of an allocation's jobs, one per line."""
    return path.with_suffix(".ends")


def read_exit_codes(path: Path) -> dict[int, int]:
    """Return the exit codes of the ended jobs of an allocation, by their position in its file."""
    try:
        lines = exit_codes_file(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    codes: dict[int, int] = {}
    for line in lines:
        number, _, code = line.partition(" ")
        if number.isdigit() and code.lstrip("-").isdigit():  # the last line of a lost node may be truncated
            codes[int(number)] = int(code)
    return codes


def list_finished_outputs(folder: Path) -> list[str]:
    """Return the outputs of all successful jobs in a folder of allocations."""
    outputs: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if not (codes := read_exit_codes(path)):  # its file may be truncated if its snakemake was killed
            continue
        tasks = json.loads(path.read_text(encoding="utf-8"))
        outputs += [name for number, task in enumerate(tasks) if codes.get(number) == 0 for name in task["outputs"]]
    return outputs


def _shell_exit_code(status: int) -> int:
    """Return the exit code of a shell: 128 + the number of a signal."""
    return status if status >= 0 else 128 - status


class AllocationRun:
    """The jobs of one file, run once each."""

    def __init__(self, path: Path, tasks: list[dict[str, Any]]) -> None:
        self.path = path
        self.tasks = tasks
        self.codes = {number: code for number, code in read_exit_codes(path).items() if code == 0}
        self._lock = threading.Lock()

    def _run_task(self, number: int) -> None:
        task = self.tasks[number]
        # bash, not sh: commands are written for it, and $BASH_ENV defines `module`.
        words = [*task["srun"], "bash", "-c", task["command"]]
        environment = {**os.environ, **task["environment"]}
        try:
            code = _shell_exit_code(subprocess.run(words, env=environment, stdin=subprocess.DEVNULL).returncode)
        except OSError as error:
            print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
            code = NOT_STARTED_CODE
        with self._lock:
            self.codes[number] = code
            try:
                with exit_codes_file(self.path).open("a", encoding="utf-8") as stream:
                    stream.write(f"{number} {code}\n")
            except OSError as error:  # a full disk: Slurm has the exit code of the allocation
                print(f"the end of {task['what']} could not be recorded: {error}", file=sys.stderr, flush=True)
            if code:
                print(f"{task['what']} ended with exit code {code}", file=sys.stderr, flush=True)

    def run(self) -> int:
        """Run the unfinished jobs in parallel; return 0, or the exit code of the first failed job."""
        threads = [
            threading.Thread(target=self._run_task, args=[number])
            for number in range(len(self.tasks))
            if number not in self.codes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [code for _, code in sorted(self.codes.items()) if code]
        if os.EX_TEMPFAIL in failed and requeue_job():
            sleep_until_slurm_ends_job()
        if len(self.codes) < len(self.tasks):  # an error of this program: its traceback is in the log
            return 1
        return failed[0] if failed else 0


def requeue_job() -> bool:
    """Requeue this Slurm job; return whether Slurm will do so.

    A job that was canceled or ran out of time is not requeued, nor one that Slurm has restarted on another node. A
    controller that does not answer is asked again.
    """
    job, starts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    requested = False
    for attempt in range(REQUEUE_TRIES if job else 0):
        time.sleep(REQUEUE_SECONDS if attempt else 0)
        try:
            words = ["scontrol", "--oneliner", "show", "job", job]
            shown = subprocess.run(words, capture_output=True, text=True, errors="replace", check=True).stdout
            known = dict(word.split("=", 1) for word in shown.split() if "=" in word)
            if known.get("JobState") != "RUNNING" or known.get("Restarts", starts) != starts:
                return requested  # a request without an answer may have succeeded
            requested = True
            subprocess.run(["scontrol", "requeue", job], check=True)
            return True
        except subprocess.CalledProcessError as error:
            print(f"the job was not requeued: {error}", file=sys.stderr, flush=True)
        except OSError as error:
            print(f"the job was not requeued: {error}", file=sys.stderr, flush=True)
            break
    return False


def sleep_until_slurm_ends_job() -> NoReturn:
    """Wait until Slurm ends this requeued job; an exit would count as a failure."""
    while True:
        time.sleep(60)


def main(arguments: list[str]) -> int:
    """Run an allocation's jobs and return the exit code."""
    # Slurm's SIGTERM is for the jobs, which do not inherit a handler, unlike SIG_IGN.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    path, sha256, avoided = Path(arguments[0]), arguments[1], {int(code) for code in arguments[2:]}
    try:
        code = _run_file(path, sha256)
    except Exception:
        traceback.print_exc()
        code = 1
    others = [other for other in range(1, 256) if other not in avoided | CODES_WITH_A_MEANING]
    return others[0] if code in avoided and others else code


def _run_file(path: Path, sha256: str) -> int:
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != sha256:
        print(f"error: {path} has changed since its submission: run snakemake again", file=sys.stderr)
        return REFUSED_CODE
    return AllocationRun(path, json.loads(text)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
