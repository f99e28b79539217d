"""Lets a step stop when Slurm asks, and puts its job back into the queue.

One mechanism for all steps, one process or many, FSDP or DeepSpeed: who was asked to stop keeps what it has, raises
`Stopped`, and the job that it ran in starts again under the same number. Snakemake sees one job that runs for long.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import NoReturn

from pipeline.core.errors import Stopped

TRIES, SECONDS_BETWEEN = 4, 10.0


def in_batch_job() -> bool:
    """Return whether this process runs in a job of Slurm."""
    return "SLURM_JOB_ID" in os.environ


def stop_when_asked() -> None:
    """Let a step end with `Stopped` on SIGTERM in a job of Slurm: so a preemption begins, some time before its end."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped("as asked by Slurm: start again to continue")

    if in_batch_job():
        signal.signal(signal.SIGTERM, stop)


def put_back() -> bool:
    """Ask Slurm to put this job back into the queue; return whether it will.

    A job that is not running any more, because it was cancelled or its time is over, is left to its end; so is one that
    Slurm has started again elsewhere, where it had lost this node. A controller that does not answer is asked again.
    """
    job, starts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    asked = False
    for attempt in range(TRIES if job else 0):
        time.sleep(SECONDS_BETWEEN if attempt else 0)
        try:
            words = ["scontrol", "--oneliner", "show", "job", job]
            told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            known = dict(word.split("=", 1) for word in told.split() if "=" in word)
            if known.get("JobState") != "RUNNING" or known.get("Restarts", starts) != starts:
                return asked  # what it did not answer it may have done
            asked = True
            subprocess.run(["scontrol", "requeue", job], check=True)
            return True
        except subprocess.CalledProcessError as error:
            print(f"the job was not put back into the queue: {error}", file=sys.stderr, flush=True)
        except OSError as error:
            print(f"the job was not put back into the queue: {error}", file=sys.stderr, flush=True)
            break
    return False


def wait_for_end() -> NoReturn:
    """Wait until Slurm ends this job, which it has put back; an end of its own would count as a failure."""
    while True:
        time.sleep(60)
