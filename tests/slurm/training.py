"""A training in a Slurm job, started by the command line of a rule, and faults that may hit it."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings
from pipeline.slurm.executor.allocation_runner import AllocationTask
from pipeline.slurm.executor.host_interface import ENDED_STATES
from pipeline.slurm.output_parsing import parse_seconds
from tests.pretrain.processes import chaos
from tests.slurm.cluster import Cluster
from tests.slurm.submitted import STEP, submit

WORKER = "pipeline.pretrain.processes.worker"
# A job in these states never completes; a preempted one may have been requeued.
OVER = ENDED_STATES - {"PREEMPTED"}


class SlurmTraining:
    """A segment in an allocation of some nodes with as many tasks each; one task is a step like any other."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SegmentSettings,
        tokens: dict[str, Path],
        folder: Path,
        nodes: int,
        per_node: int,
        *options: str,
        staging: str | None = None,
        before: str = "",
    ) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        tasks = nodes * per_node
        shape = [f"--nodes={nodes}", f"--ntasks={tasks}", f"--ntasks-per-node={per_node}", "--cpus-per-task=1"]
        launch = ["srun", *shape, f"--output={folder}/rank-%t.log", "--open-mode=append"] if tasks > 1 else []
        paths = {**tokens, "milestone": folder / "milestone", "scratch": folder / "scratch"}
        arguments = {
            "settings": settings.model_dump(mode="json"),
            "launch": shlex.join(launch),
            "counts": str(folder / "counts"),
            "paths": {name: str(path) for name, path in paths.items()} | ({"staging": staging} if staging else {}),
        }
        command = shlex.join([sys.executable, "-c", chaos.PROGRAM, json.dumps(arguments)])
        warned = "--signal=USR1@10" if tasks > 1 else "--signal=URG@10"
        task = AllocationTask("training", f"trap : TERM; {before} {command}", [] if tasks > 1 else STEP)
        given = [warned, *shape, f"--output={folder}/messages", "--mem=3000", "--time=5", *options]
        self.job = submit(cluster, folder, [task], *given)

    def step(self) -> int:
        """Return the last step in the metrics."""
        path = self.folder / "scratch/metrics.jsonl"
        lines = metrics.read_metrics(path) if path.exists() else []
        return lines[-1]["step"] if lines else 0

    def said(self) -> str:
        """Return the output of the job and its ranks so far."""
        files = [self.folder / "messages", *sorted(self.folder.glob("rank-*.log"))]
        return "\n".join(path.read_text() for path in files if path.exists())

    def wait_for_step(self, step: int, seconds: float = 300) -> None:
        """Wait until the training has reached a step.

        Raises:
            AssertionError: the job ended before.
        """
        deadline = time.monotonic() + seconds
        while self.step() < step:
            state = self.cluster.state(self.job)
            assert state not in OVER, f"{state}: {self.said()}"
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def finish(self, seconds: float = 600) -> None:
        """Wait until the job is complete.

        Raises:
            AssertionError: it ended in another way.
        """
        deadline = time.monotonic() + seconds
        while (state := self.cluster.state(self.job)) != "COMPLETED":
            assert state not in OVER, f"{state}: {self.said()}"
            assert time.monotonic() < deadline, f"{state}: {self.said()}"
            time.sleep(0.2)

    def limit(self, minutes: int) -> None:
        """Set the job's time limit in minutes since its start."""
        self.cluster.ask("scontrol", "update", f"jobid={self.job}", f"timelimit={minutes}")

    def lasts_seconds(self) -> float:
        """Return the job's running time since its start."""
        return parse_seconds(self.cluster.ask("squeue", "--noheader", "--format=%M", f"--jobs={self.job}"))

    @contextmanager
    def in_its_last_minutes(self) -> Iterator[None]:
        """Leave the job one or two minutes, at any running time; then it has enough again."""
        self.limit(int(self.lasts_seconds() + 45) // 60 + 1)
        yield
        self.limit(20)

    def requeues(self) -> int:
        """Return how often Slurm has started the job again."""
        shown = self.cluster.ask("scontrol", "--oneliner", "show", "job", self.job)
        return int(shown.split("Restarts=")[1].split()[0])

    def ranks(self) -> list[psutil.Process]:
        """Return the processes that train."""
        results = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                if words[1:3] == ["-m", WORKER] and words[-1].startswith(f"{self.folder}/"):
                    results.append(process)
            except psutil.Error:
                continue
        return results

    @contextmanager
    def frozen(self) -> Iterator[list[psutil.Process]]:
        """Suspend the ranks during the context; yield them."""
        ranks = self.ranks()
        for rank in ranks:
            rank.suspend()
        try:
            yield ranks
        finally:
            for rank in ranks:
                with suppress(psutil.NoSuchProcess):
                    rank.resume()


def stands_still(process: psutil.Process) -> bool:
    """Return whether a process exists and is frozen."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def has_got(process: psutil.Process, number: signal.Signals) -> bool:
    """Return whether a frozen process was sent a signal: it is pending, or has already ended the process."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    waiting = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(waiting, 16) >> (number - 1) & 1)
