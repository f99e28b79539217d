"""Programs that burn CPU time while they meter themselves, for tests of the node meter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline.energy.readings import read_intervals

ROOT = Path(__file__).parents[2]
BURN = """
import time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: sum(range(1000))
"""
QUICK = """
from pipeline.energy import meter_recorder
meter_recorder.SAMPLE_SECONDS, meter_recorder.SHORTEST_WRITE_SECONDS = 0.1, 0.3
"""


def run(program: str, *words: object, **variables: str) -> str:
    """Run a program that meters itself frequently, and return its output."""
    command = [sys.executable, "-c", QUICK + BURN + program, *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def cpu_seconds(*paths: Path) -> float:
    return sum(interval.job_cpu_seconds for path in paths for interval in read_intervals(path))


CHILDREN = """
import subprocess, sys, os
from pathlib import Path
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree
from pipeline.energy.meter_recorder import NodeMeter
child = [sys.executable, "-S", "-c", "import time\\nwhile time.process_time() < float('%s'): sum(range(1000))"]
with NodeMeter(Path(sys.argv[1])):
    one = subprocess.Popen([*child[:3], child[3] % 0.8])
    for _ in range(10):
        subprocess.run([*child[:3], child[3] % 0.05])
    burn(0.3)
    one.wait()
    seconds = cpu_seconds_of_process_tree()
print(seconds)
"""
