"""Slurm's own pm_counters plugin on nodes with Cray counters: the input joules are in the accounting.

The counters are files of this test in the form of a real node, which grow at a known power; slurmd and its jobs see
them as /sys/cray/pm_counters. All readers are real: Slurm's plugin and accounting, sacct, the job's own meter.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.energy.attribution.job_usage_intervals import MeteredJob, read_job_intervals
from pipeline.energy.external_meters.meter_tables import collect_external_readings
from pipeline.energy.power_model import PowerModel
from pipeline.slurm import job_energy, waiting_for_leftover_jobs
from pipeline.slurm.accounting import collect_accounting
from tests.conftest import is_lacking
from tests.energy.accounts import attribute
from tests.slurm.cluster import Cluster, running, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.thorough]  # counters grow with the clock

ROOT = Path(__file__).parents[2]
WATTS = {"node1": 700, "node2": 1900}
PARTS = {"cpu": 0.1, "memory": 0.05, **{f"accel{number}": 0.15 for number in range(4)}}  # of the node's power
NAME, SECONDS = "of-a-cray", 8.0
# How long counters grew: for the work, and at most 1.5 × the job's time, because they may be read a
# while after they were written, by daemons and jobs of a busy machine, and the accounting has whole seconds. A part
# that is counted twice, or a missing half, is outside.
LEAST_SECONDS, MOST_OF_JOB = 0.9 * SECONDS, 1.5
MODEL = PowerModel(idle_watts=0.0, busy_core_watts=1e6, relative_error=0.05, source="no node of this test")
JOB = """
import sys, time
from pathlib import Path
from pipeline.job.attempt import RunningAttempt
with RunningAttempt("pretrain.segment", {"model": "base"}, Path(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
"""


class Counters(threading.Thread):
    """The counters of all nodes, ten times a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self._end, self._looks, self._began = folder, threading.Event(), 0, time.time()
        for node in WATTS:
            (folder / node).mkdir(parents=True)
            for name, text in {"version": "3", "raw_scan_hz": "10", "generation": "16", "power_cap": "0 W"}.items():
                self._write(node, name, text)
            self._write(node, "startup", str(round(self._began * 1e6)))
        self.look()

    def _write(self, node: str, name: str, text: str) -> None:
        path = self.folder / node / f".{name}"
        path.write_text(f"{text}\n")
        path.rename(path.with_name(name))  # readers see complete files, as from the kernel

    def look(self) -> None:
        """Write the current values of all counters."""
        now, self._looks = time.time(), self._looks + 1
        for node, watts in WATTS.items():
            for name, share in {"": 1.0, **{f"{part}_": share for part, share in PARTS.items()}}.items():
                joules = round(34_283_186 + share * watts * (now - self._began))
                self._write(node, f"{name}energy", f"{joules} J {round(now * 1e6)} us")
                self._write(node, f"{name}power", f"{round(share * watts)} W {round(now * 1e6)} us")
            self._write(node, "freshness", str(self._looks))

    def run(self) -> None:
        """Continue until the end."""
        while not self._end.wait(0.1):
            self.look()

    def end(self) -> None:
        """Stop the thread."""
        self._end.set()
        self.join()


@pytest.fixture(scope="module")
def cray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with counters."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        is_lacking("only root can give a node a /sys of its own")
    counters = Counters(tmp_path_factory.mktemp("counters"))
    counters.start()
    try:
        with running(counters=counters.folder) as cluster:
            yield cluster
    finally:
        counters.end()


def test_accounting_files_contain_the_counter_joules(
    cray: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cray.environment()["PATH"])
    monkeypatch.setattr(waiting_for_leftover_jobs, "current_invocation", None)
    waiting_for_leftover_jobs.record_invocation(tmp_path, NAME)

    def submit(command: str, *options: str) -> str:
        words = ("sbatch", "--parsable", "--output=/dev/null", f"--job-name={NAME}", f"--chdir={ROOT}", "--exclusive")
        return cray.ask(*words, *options, f"--wrap={command}")

    own = shlex.join([sys.executable, "-c", JOB, str(tmp_path), str(SECONDS)])
    step = f"srun --exact --ntasks=1 --cpus-per-task=1 --mem=50 sleep {SECONDS}"
    jobs = {
        submit(own, "--nodelist=node1"): {"node1": "measured"},
        submit(f"{step} & {step} & wait", "--nodelist=node2", "--ntasks=2"): {"node2": "measured"},
    }
    wait_until(lambda: not cray.jobs(), "they have ended")
    jobs[submit(f"srun sleep {SECONDS}", "--nodes=2")] = {"node1": "stated", "node2": "stated"}
    wait_until(lambda: not cray.jobs(), "it has ended")
    wait_until(
        lambda: (
            collect_accounting(tmp_path) >= 0
            and len({external_reading.job for external_reading in collect_external_readings(tmp_path)}) == 3
        ),
        "all are known",
    )

    assert job_energy.query_meter_readings([]).plugin == "pm_counters", "as in scontrol"
    external_readings = collect_external_readings(tmp_path)
    print(
        *(
            f"{external_reading.job} {external_reading.node} {external_reading.readings[0].joules} J"
            for external_reading in external_readings
        ),
        sep="\n",
    )
    assert {external_reading.readings[0].plugin for external_reading in external_readings} == {
        "acct_gather_energy/pm_counters"
    }
    assert {
        (external_reading.readings[0].component, external_reading.whole_node) for external_reading in external_readings
    } == {("node", True)}
    took_seconds = {
        external_reading.job: external_reading.ended - external_reading.started
        for external_reading in external_readings
    }
    print(took_seconds)
    for job, nodes in jobs.items():
        node_readings = {
            external_reading.node: external_reading.readings[0]
            for external_reading in external_readings
            if external_reading.job == job
        }
        assert {node: reading.label for node, reading in node_readings.items()} == nodes
        seconds = sum(reading.joules or 0 for reading in node_readings.values()) / sum(WATTS[node] for node in nodes)
        most_seconds = MOST_OF_JOB * took_seconds[job]
        assert LEAST_SECONDS <= seconds <= most_seconds, f"job {job}: the counters went up for so long"

    ((attempt, intervals),) = read_job_intervals((tmp_path / layout.READINGS).glob("*.jsonl"), []).items()
    readings = [reading for line in intervals for reading in line.readings]
    assert {reading.component for reading in readings} == {"node", "package", "dram", "board"}, "the job's own meter"
    assert {reading.meter for reading in readings} == {"pm_counters"}
    own_job, own_watts = next(iter(jobs)), WATTS["node1"]
    most_seconds = MOST_OF_JOB * took_seconds[own_job]
    of_node = sum(reading.joules or 0 for reading in readings if reading.component == "node")
    assert LEAST_SECONDS <= of_node / own_watts <= most_seconds
    job = MeteredJob(attempt, "pretrain.segment", {}, "finished", own_job, intervals)
    total = attribute([job], external_readings, MODEL).total()
    # Before and after the attempt the external reading applies.
    assert LEAST_SECONDS <= total.joules / own_watts <= most_seconds and total.estimated == total.stated == 0
