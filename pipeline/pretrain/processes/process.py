"""One process of a training, from the file of its arguments to the outcome that it writes."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pipeline.core import disk_space
from pipeline.core.errors import InputError, OutOfMemory, Superseded
from pipeline.model import switches
from pipeline.pretrain.monitors import memory_advice
from pipeline.pretrain.monitors.watchdog import Watchdog
from pipeline.pretrain.processes.loop import Worker
from pipeline.pretrain.skips import Rewind

STATUS = {Superseded: "superseded", OutOfMemory: "out of memory"}  # of what a process says of itself


def _conclude(arguments: dict[str, Any], rank: int, outcome: dict[str, Any]) -> None:
    """Write how it went, in one stroke; on a full disk that is said instead."""
    path = Path(arguments["outcome"])
    partial = path.with_name(f"{path.name}-{rank}")
    try:
        partial.write_text(json.dumps(outcome), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        if not disk_space.is_full(error):
            raise
        disk_space.say(str(disk_space.disk_full(error, [path.parent])))


def main() -> int:
    """Train as the file says that the command line names, and return the exit code."""
    disk_space.forgive_full_logs()
    warnings.simplefilter("ignore", FutureWarning)  # the libraries' own, several a step
    arguments = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    name = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    seconds = arguments["settings"]["training"]["stability"]["hang_seconds"]
    watchdog = Watchdog(Path(arguments["paths"]["scratch"]), str(arguments["number"]), name, seconds)
    try:
        with memory_advice.explained(arguments), switches.explain_missing_kernel("training.deterministic"):
            worker = Worker(arguments, watchdog)
            outcome = worker.run()
    except InputError as error:  # of this process, or of all: the launcher ends the others
        status = STATUS.get(type(error), "refused")
        _conclude(arguments, int(name), {"status": status, "error": str(error)})
        return 2
    except FloatingPointError as error:
        worker.settle()  # or the checkpoint that is being written would be lost
        outcome = {"status": "diverged", "error": str(error)}
    except Rewind as rewind:
        worker.settle()  # the training goes back to the checkpoint that is being written
        outcome = {"status": "rewind", "rewind": rewind.args[0], "reason": rewind.args[0]["reason"]}
    if worker.rank == 0:
        _conclude(arguments, 0, {**outcome, "failed_checkpoints": worker.saves_failed})
    dist.barrier()
    dist.destroy_process_group()
    watchdog.stop()
    return 0  # torchrun and srun would call another code a crash; what happened stands in the outcome
