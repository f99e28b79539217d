"""CPU seconds per minute of the node meter's thread, in a job that does nothing else.

    python -m benchmarks.meter_overhead [PROCESSES]

PROCESSES other processes run on the node, and as many again below the job. The goal is at most 0.5 % of one core.
Board meters cost what their driver costs; the node's own are read as in a job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.energy.meter_recorder import NodeMeter
from pipeline.energy.readings import read_intervals
from pipeline.energy.startup_counters import ATTEMPT_VARIABLE

SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Print the share of a core that the meter takes."""
    number = int(arguments[0]) if arguments else 100
    os.environ[ATTEMPT_VARIABLE] = "overhead"
    words = ["sleep", "3600"]
    elsewhere = {**os.environ, ATTEMPT_VARIABLE: "other"}
    processes = [
        subprocess.Popen(words, env=environment) for environment in (os.environ, elsewhere) for _ in range(number)
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "overhead@node.jsonl"
            began = time.process_time()
            meter = NodeMeter(path)
            started = time.process_time() - began
            began, clock = time.process_time(), time.monotonic()
            time.sleep(SECONDS)
            used, passed = time.process_time() - began, time.monotonic() - clock
            meter.end()
            lines = len([*read_intervals(path)])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(f"{len(os.listdir('/proc'))} entries in /proc, {2 * number} processes below the job, {lines} intervals")
    print(
        f"to begin: {started * 1000:.0f} ms; then {used:.3f} CPU s in {passed:.0f} s = {used / passed:.2%} of one core"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
