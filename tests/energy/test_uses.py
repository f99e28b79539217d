"""Every CPU second of a job is counted once, whoever started its processes and however they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.energy.readings import read_intervals
from tests.energy.programs import BURN, CHILDREN, QUICK, ROOT, cpu_seconds, run


def test_what_children_burn_is_counted_however_short_they_live(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    tree_seconds = float(run(CHILDREN, path))
    assert tree_seconds > 3.0
    assert cpu_seconds(path) == pytest.approx(tree_seconds, rel=0.03, abs=0.05)
    intervals = [*read_intervals(path)]
    assert len(intervals) > 3 and all(one.seconds > 0 for one in intervals)
    assert [a.ended for a in intervals[:-1]] == [b.started for b in intervals[1:]], "no moment is in none or in two"
    assert all(one.node_cpu_seconds >= one.job_cpu_seconds for one in intervals)
    assert intervals[0].job_memory_bytes > 1e6


ORPHANS = """
import shlex, subprocess, sys, time
from pathlib import Path
from pipeline.energy.watch import NodeMeter
done = Path(sys.argv[1]).with_name("done")
work = f"import time\\nwhile time.process_time() < 1: sum(range(1000))\\ntime.sleep(1)\\nopen({str(done)!r}, 'w')"
with NodeMeter(Path(sys.argv[1])):
    # The shell ends at once, so that nobody of this tree waits for what it has started.
    subprocess.run(["bash", "-c", f"sleep 0.4 & {sys.executable} -S -c {shlex.quote(work)} & sleep 0.4"])
    while not done.exists(): time.sleep(0.1)
    time.sleep(1)
"""


def test_a_process_that_nobody_waits_for_keeps_what_it_used(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    run(ORPHANS, path)
    intervals = [*read_intervals(path)]
    start_up = intervals[0].job_cpu_seconds
    assert sum(one.job_cpu_seconds for one in intervals) - start_up == pytest.approx(1.0, abs=0.2)
    assert all(one.job_cpu_seconds >= 0 for one in intervals)


SEQUENCE = """
import sys
from pathlib import Path
from pipeline.energy.processes import cpu_seconds_of_process_tree
from pipeline.energy.watch import NodeMeter
for number in range(5):
    burn(0.3)  # between two meters
    with NodeMeter(Path(sys.argv[1]) / str(number)):
        burn(0.4)
        if number == 2:
            with NodeMeter(Path(sys.argv[1]) / "at once"):
                burn(0.8)
    seconds = cpu_seconds_of_process_tree()
print(seconds)
"""


def test_meters_of_one_process_share_out_each_second_once(tmp_path: Path) -> None:
    tree_seconds = float(run(SEQUENCE, tmp_path))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 6
    assert cpu_seconds(*paths) == pytest.approx(tree_seconds, rel=0.03)
    assert cpu_seconds(tmp_path / "3") == pytest.approx(0.7, abs=0.15), "the time before it is its own"
    assert cpu_seconds(tmp_path / "at once") == pytest.approx(0.4, abs=0.15), "of two at once each has half"


FORKED = """
import os, sys, time
from pathlib import Path
from pipeline.energy import uses
from pipeline.energy.watch import NodeMeter
burn(0.8)
uses.share_start(4)
children = []
for number in range(4):
    if (child := os.fork()) == 0:
        with NodeMeter(Path(sys.argv[1]) / str(number)):
            burn(0.3)
        os._exit(0)
    children.append(child)
    if number % 2:
        for child in children: os.waitpid(child, 0)
        children = []
print(sum(os.times()[:4]))
"""


def test_forked_jobs_share_what_their_start_took(tmp_path: Path) -> None:
    tree_seconds = float(run(FORKED, tmp_path))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 4
    assert cpu_seconds(*paths) == pytest.approx(tree_seconds, rel=0.05)
    start_up = [next(read_intervals(path)) for path in paths]
    assert len({one.job_cpu_seconds for one in start_up}) == 1 and start_up[0].job_cpu_seconds > 0.2
    began = [one.started for one in start_up]
    assert max(began) - min(began) < 0.1, "each process tells the same moment by its own clock"
    for path in paths:
        first, *own = read_intervals(path)
        assert first.is_shared_start and not any(one.is_shared_start for one in own)
        assert own[0].started >= first.ended


NAMED = """
import os, sys
from pathlib import Path
from pipeline.energy.watch import NodeMeter
os.environ["PIPELINE_ATTEMPT"] = "mine"
with NodeMeter(Path(sys.argv[1])):
    print("metered", flush=True)
    sys.stdin.read()
"""


def test_processes_of_the_attempt_under_other_parents_are_counted_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    place = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
    command = [sys.executable, "-c", QUICK + NAMED, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=place, stdin=pipe, stdout=pipe) as metered:
        assert metered.stdout is not None and metered.stdout.readline() == b"metered\n"
        burn = [sys.executable, "-S", "-c", f"{BURN}burn(1)\ntime.sleep(1)"]  # so that its last look sees all of it
        mine = {**place, "PIPELINE_ATTEMPT": "mine"}  # as what slurmd starts for srun: nothing that is below the other
        others = [place, {**mine, "PIPELINE_ATTEMPT": "other"}, {**mine, "SLURMD_NODENAME": "node2"}]
        for process in [subprocess.Popen(burn, env=environment) for environment in (mine, *others)]:
            assert process.wait() == 0
        metered.communicate()
    start_up, *intervals = read_intervals(path)
    assert {one.node for one in intervals} == {"node1"} and start_up.job_cpu_seconds > 0.03, "an interpreter began"
    assert sum(one.job_cpu_seconds for one in intervals) == pytest.approx(1.0, abs=0.3)
