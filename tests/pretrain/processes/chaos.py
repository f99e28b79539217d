"""A training in separate processes that are killed, stopped or terminated, and the results that must be equal."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1, Signals
from typing import Any

import psutil

from pipeline.core.errors import EXIT_TEMPORARY_FAILURE
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings

LAUNCH = "torchrun --standalone --nproc-per-node=2"
PROGRAM = (
    "import sys, json; from pathlib import Path; from pipeline.cli import entry_point as shell;"
    "from pipeline.job import job_entry_point as job;"
    "from pipeline.pretrain import segment; from pipeline.pretrain.settings import SegmentSettings;"
    "a = json.loads(sys.argv[1]); job.main = lambda _: print(json.dumps(segment.run("
    "SegmentSettings.model_validate(a['settings']), previous=[], launch=a['launch'],"
    "**{n: Path(p) for n, p in a['paths'].items()})), file=open(a['counts'], 'w')) or 0;"
    "sys.exit(shell.main(['x', '--settings']))"
)
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Blow:
    """A fault and its target: after the given number of new steps, or at once, and the given seconds."""

    victim: str  # rank, launcher or segment
    number: Signals
    steps: int
    seconds: float


class Training:
    """A segment in a process of its own, restarted whenever it ends unfinished."""

    def __init__(self, settings: SegmentSettings, tokens: dict[str, Path], folder: Path, launch: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        paths = {**tokens, "milestone": folder / "milestone", "scratch": folder / "scratch"}
        arguments = {"settings": settings.model_dump(mode="json"), "launch": launch, "counts": str(folder / "counts")}
        shown = {**arguments, "paths": {name: str(path) for name, path in paths.items()}}
        self.command = [sys.executable, "-c", PROGRAM, json.dumps(shown)]
        self.codes: list[int] = []
        self.start()

    def start(self) -> None:
        """Start the segment."""
        with (self.folder / "messages").open("ab") as messages:
            self.process = psutil.Popen(self.command, stdout=messages, stderr=messages)

    def step(self) -> int:
        """Return the last step in the metrics."""
        lines = metrics.read_metrics(self.folder / "scratch/metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def ended(self) -> bool:
        """Return whether the training is finished; restart it if it ended before.

        Raises:
            RuntimeError: it failed by itself.
        """
        code = self.process.poll()
        if code is None:
            return False
        if code != 0:
            self.codes.append(code)
            if code not in (EXIT_TEMPORARY_FAILURE, -SIGKILL, -SIGTERM, -SIGUSR1):
                raise RuntimeError(f"the segment ended with {code}: see {self.folder / 'messages'}")
            self.start()
        return code == 0

    def finish(self) -> dict[str, Any]:
        """Wait for the end and return the counts."""
        while not self.ended():
            time.sleep(0.1)
        counts: dict[str, Any] = json.loads((self.folder / "counts").read_text())
        return counts

    def strike(self, blow: Blow) -> bool:
        """Send the signal at its moment; return False if the training finished before."""
        target = max(self.reached, self.step()) + blow.steps
        deadline = time.monotonic() + PATIENCE_SECONDS
        while blow.steps and self.step() < target:
            if self.ended():
                return False
            if time.monotonic() > deadline:
                raise RuntimeError(f"no step {target} within {PATIENCE_SECONDS} s")
            time.sleep(0.02)
        time.sleep(blow.seconds)
        self.reached = max(self.reached, self.step())
        while not self.ended():
            try:
                victims = [self.process]
                if blow.victim != "segment":
                    victims = self.process.children()
                if blow.victim == "rank":
                    victims = [rank for launcher in victims for rank in launcher.children()]
                if victims:
                    victims[int(blow.seconds * 1000) % len(victims)].send_signal(blow.number)
                    return True
            except psutil.NoSuchProcess:
                pass
            time.sleep(0.02)
        return False

    reached = 0


def result(folder: Path) -> dict[str, Any]:
    """Return the results that must be equal: steps with batches and losses, and hashes of weights and optimizer."""
    lines = [line for line in metrics.read_metrics(folder / "milestone/metrics.jsonl") if "loss" in line]
    files = sorted((folder / "milestone").glob("*.safetensors"))
    return {
        "steps": [line["step"] for line in lines],
        "data_steps": [line["data_step"] for line in lines],
        "losses": [line["loss"] for line in lines],
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def storm(
    settings: SegmentSettings, tokens: dict[str, Path], folder: Path, planned: list[Blow], launch: str = LAUNCH
) -> tuple[Counter[str], dict[str, Any], Counter[int]]:
    """Train with these faults; return those that occurred, the segment's counts and its process's exit codes."""
    training, fallen = Training(settings, tokens, folder, launch), Counter[str]()
    try:
        for blow in planned:
            if not training.strike(blow):
                break
            fallen[f"{blow.victim} {blow.number.name}"] += 1
        counts = training.finish()
    finally:
        if training.process.poll() is None:
            training.process.kill()
            training.process.wait()
    return fallen, counts, Counter(training.codes)


def small(steps: int, strategy: str, hang_seconds: float) -> SegmentSettings:
    """Return a small model with the given steps."""
    return SegmentSettings.model_validate(
        {
            "seed": 7,
            "first_step": 0,
            "last_step": steps,
            "architecture": {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 2},
            "training": {
                **{"backend": STRATEGIES[strategy].backend, "strategy": strategy},
                **{"sequence_length": 32, "batch_size": 4, "micro_batch_size": 1, "steps": steps},
                **{"learning_rate": 0.01, "checkpoint_every": 5},
                "stability": {"hang_seconds": hang_seconds, "restarts": 10},
            },
        }
    )
