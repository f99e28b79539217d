"""Every CPU second of a job is counted once, whichever process started it and however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.energy import cpu_time_accounting
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree, peak_memory_bytes_of_process_tree
from pipeline.energy.readings import read_intervals
from tests.energy.programs import BURN, CHILDREN, QUICK, ROOT, cpu_seconds, run


def test_cpu_time_of_short_lived_children_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    tree_seconds = float(run(CHILDREN, path))
    assert tree_seconds > 1.6
    assert cpu_seconds(path) == pytest.approx(tree_seconds, rel=0.03, abs=0.05)
    intervals = [*read_intervals(path)]
    assert len(intervals) > 3 and all(one.seconds > 0 for one in intervals)
    assert [a.ended for a in intervals[:-1]] == [b.started for b in intervals[1:]], "every moment is in exactly one"
    assert all(one.node_cpu_seconds >= one.job_cpu_seconds for one in intervals)
    assert intervals[0].job_memory_bytes > 1e6


ORPHANS = """
import os, shlex, subprocess, sys, time
from pathlib import Path
from pipeline.energy import cpu_time_accounting
from pipeline.energy.meter_recorder import NodeMeter
done, may_end = (str(Path(sys.argv[1]).with_name(name)) for name in ("done", "may end"))
work = "import os, sys, time\\nwhile time.process_time() < 1: sum(range(1000))\\n"
work += "os.symlink(str(os.getpid()), sys.argv[1])\\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.05)"
with NodeMeter(Path(sys.argv[1])):
    own_seconds = time.process_time()
    # The shell ends at once, so that nobody of this tree waits for what it has started.
    words = shlex.join([sys.executable, "-S", "-c", work, done, may_end])
    subprocess.run(["bash", "-c", f"sleep 0.4 & {words} & sleep 0.4"])
    while not os.path.islink(done): time.sleep(0.1)
    cpu_time_accounting.get_process_accounting().update_and_read_memory()
    open(may_end, "w").close()
    stat = f"/proc/{os.readlink(done)}/stat"
    while os.path.exists(stat) and ") Z " not in open(stat).read(): time.sleep(0.05)
print(time.process_time() - own_seconds)
"""


def test_cpu_time_of_an_orphan_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    own_seconds = float(run(ORPHANS, path))
    intervals = [*read_intervals(path)]
    start_up = intervals[0].job_cpu_seconds
    orphan_seconds = sum(one.job_cpu_seconds for one in intervals) - start_up - own_seconds
    assert orphan_seconds == pytest.approx(1.0, abs=0.3)
    assert all(one.job_cpu_seconds >= 0 for one in intervals)


SEQUENCE = """
import sys
from pathlib import Path
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree
from pipeline.energy.meter_recorder import NodeMeter
meter_recorder.SAMPLE_SECONDS = 1.0  # a look uses CPU time, and a busy machine leaves time for more of them
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


def test_meters_of_one_process_count_each_second_once(tmp_path: Path) -> None:
    tree_seconds = float(run(SEQUENCE, tmp_path))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 6
    assert cpu_seconds(*paths) == pytest.approx(tree_seconds, rel=0.05)
    assert 0.6 < cpu_seconds(tmp_path / "3") < 1.0, "the time before belongs to itself"
    assert 0.3 < cpu_seconds(tmp_path / "at once") < 0.7, "of two parallel ones each has half"


FORKED = """
import os, sys, time
from pathlib import Path
from pipeline.energy import cpu_time_accounting
from pipeline.energy.meter_recorder import NodeMeter
meter_recorder.SAMPLE_SECONDS = 1.0
burn(0.8)
meter_recorder.divide_startup_among_jobs(4)
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


def test_forked_jobs_share_the_cpu_time_of_their_startup(tmp_path: Path) -> None:
    tree_seconds = float(run(FORKED, tmp_path))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 4
    assert cpu_seconds(*paths) == pytest.approx(tree_seconds, rel=0.05)
    start_up = [next(read_intervals(path)) for path in paths]
    assert len({one.job_cpu_seconds for one in start_up}) == 1 and start_up[0].job_cpu_seconds > 0.2
    began = [one.started - (one.booted or 0) for one in start_up]  # each by its own calendar
    assert max(began) - min(began) < 0.01, "each process records the same moment"
    for path in paths:
        first, *own = read_intervals(path)
        assert first.is_shared_start and not any(one.is_shared_start for one in own)
        assert own[0].started >= first.ended


NAMED = """
import os, sys, time
from pathlib import Path
from pipeline.energy import cpu_time_accounting
from pipeline.energy.meter_recorder import NodeMeter
os.environ["PIPELINE_ATTEMPT"] = "mine"
with NodeMeter(Path(sys.argv[1])):
    print(time.process_time(), flush=True)
    sys.stdin.readline()
    cpu_time_accounting.get_process_accounting().update_and_read_memory()
    print("looked", flush=True)
    sys.stdin.readline()
print(time.process_time())
"""


def test_only_processes_of_the_attempt_are_counted_under_any_parent(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    place = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
    command = [sys.executable, "-c", QUICK + NAMED, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=place, **pipes) as metered:
        assert metered.stdout and metered.stdin
        began_seconds = float(metered.stdout.readline())
        burn = [sys.executable, "-S", "-c", f"{BURN}burn(1)\nprint('burnt', flush=True)\ninput()"]
        mine = {**place, "PIPELINE_ATTEMPT": "mine"}  # like slurmd starting srun: neither is below the other
        others = [place, {**mine, "PIPELINE_ATTEMPT": "other"}, {**mine, "SLURMD_NODENAME": "node2"}]
        processes = [subprocess.Popen(burn, env=environment, **pipes) for environment in (mine, *others)]
        assert all(process.stdout.readline() == "burnt\n" for process in processes)
        metered.stdin.write("\n")
        metered.stdin.flush()
        assert metered.stdout.readline() == "looked\n"
        for process in processes:
            process.communicate("\n")
        own_seconds = float(metered.communicate("\n")[0]) - began_seconds
    start_up, *intervals = read_intervals(path)
    assert {one.node for one in intervals} == {"node1"} and start_up.job_cpu_seconds > 0.03, "an interpreter began"
    assert sum(one.job_cpu_seconds for one in intervals) - own_seconds == pytest.approx(1.0, abs=0.3)


BURNING_CHILD = """
import sys, time
ballast = bytearray(120_000_000)
while time.process_time() < 1.0: sum(range(1000))
print(time.process_time(), flush=True)
sys.stdin.read()
"""


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def test_children_are_counted_while_running_and_after_exit() -> None:
    before_seconds = cpu_seconds_of_process_tree() - time.process_time()
    with subprocess.Popen(
        [sys.executable, "-c", BURNING_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child_seconds = float(child.stdout.readline())
        running_seconds = cpu_seconds_of_process_tree() - time.process_time() - before_seconds
        with_child_bytes = peak_memory_bytes_of_process_tree()
        own_bytes = psutil.Process().memory_info().rss
    ended_seconds = cpu_seconds_of_process_tree() - time.process_time() - before_seconds
    assert running_seconds == pytest.approx(child_seconds, rel=0.5)
    assert ended_seconds == pytest.approx(child_seconds, rel=0.5), "not as a running and as a finished child"
    assert with_child_bytes > own_bytes + 100_000_000
    assert peak_memory_bytes_of_process_tree() >= 120_000_000, "an ended child's peak is remembered"


def test_children_of_children_and_threads_are_found() -> None:
    command = [sys.executable, "-c", "import subprocess as s; print(s.Popen(['sleep', '60']).pid, flush=True); input()"]
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE).result()
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        results = {process.pid for process in cpu_time_accounting._list_descendant_processes()}
        assert {child.pid, grandchild} <= results == {process.pid for process in psutil.Process().children(True)}
    psutil.Process(grandchild).kill()
    child.communicate(b"\n")


def test_thread_that_exits_during_the_scan_hides_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    read, gone = Path.read_text, iter([True])

    def shown(path: Path, encoding: str) -> str:
        if path.name == "children" and next(gone, False):
            raise FileNotFoundError(path)  # it was listed just before
        return read(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", shown)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in [*cpu_time_accounting.list_descendants(os.getpid())]
        child.communicate(b"\n")


def test_job_without_boards_starts_its_meter_without_heavy_imports(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from pipeline.energy.meter_recorder import NodeMeter
NodeMeter(Path(sys.argv[1])).end()
assert not {"torch", "zeus", "codecarbon", "numpy", "pynvml", "amdsmi"} & set(sys.modules)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a@b.jsonl")], check=True, cwd=root)
    assert (tmp_path / "a@b.jsonl").exists()
