"""Accounting with stand-ins for Slurm's and EAR's tools that print real output: late, broken, missing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.entry_point import main
from pipeline.energy.external_meters.meter_tables import collect_external_readings
from pipeline.slurm import accounting, waiting_for_leftover_jobs
from pipeline.slurm.sacct import FIELDS

EAR = "JOBID;STEPID;NODENAME;JOB_START_TIME;JOB_END_TIME;TIME_SEC;DC_NODE_POWER_W;DRAM_POWER_W;PCK_POWER_W\n"
SECONDS = 100


class Tools:
    """The commands that the accounting calls, each of which prints the text of a file, and a run with one job."""

    def __init__(self, folder: Path, ended: int) -> None:
        self.run, self._folder, self.began = folder / "run", folder / "bin", ended - SECONDS
        self._folder.mkdir()
        self.says("scontrol", "ClusterName = far\nAcctGatherEnergyType = acct_gather_energy/ipmi\n")
        self.says("squeue", "")
        self.says("sinfo", "n1|128\nn2|128\n")
        self.sacct(ended, "30000")
        start = waiting_for_leftover_jobs.SlurmInvocation(
            name="mine", host="a", process=1, started=waiting_for_leftover_jobs.utc_timestamp(), cluster="far"
        )
        start.write(self.run)

    def says(self, name: str, text: str, code: int = 0, error: str = "") -> None:
        """Set the output of a command."""
        (self._folder / f"{name}.txt").write_text(text)
        script = f"#!/bin/sh\n/bin/cat '{self._folder}/{name}.txt'\necho '{error}' >&2\nexit {code}\n"
        (self._folder / name).write_text(script)
        (self._folder / name).chmod(0o755)

    def sacct(self, ended: int, energy: str, node: str = "n1", cpus: int = 128) -> None:
        """Set one job of sacct."""
        known = {"JobIDRaw": "7", "State": "COMPLETED", "ExitCode": "0:0", "ElapsedRaw": str(SECONDS), "NNodes": "1"}
        known |= {"Start": str(ended - SECONDS), "End": str(ended), "NodeList": node, "ConsumedEnergyRaw": energy}
        known |= {"AllocTRES": f"cpu={cpus},node=1"}
        self.says("sacct", "|".join({**dict.fromkeys(FIELDS, ""), **known}[field] for field in FIELDS) + "\n")

    def ear(self, watts: float = 400, job: str = "7") -> None:
        """Set a job of eacct."""
        end = self.began + SECONDS
        self.says("eacct", f"{EAR}{job};0;n1;{self.began};{end};{SECONDS}.0;{watts};0.0;200.0\n")

    def freeze(self, **configuration: Any) -> None:
        """Write the configuration of the run's last invocation."""
        path = self.run / "provenance/frozen/1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"configuration": configuration}))

    def book(self) -> dict[str, Any]:
        """Return the accounting file of the job."""
        content: dict[str, Any] = json.loads((self.run / layout.ACCOUNTING / "far.7.json").read_text())
        return content

    def problems(self) -> list[str]:
        """Return the failed queries."""
        return list(json.loads((self.run / layout.ACCOUNTING_PROBLEMS).read_text())["problems"])

    def meters(self) -> dict[str, list[float | None]]:
        """Return the joules of nodes by the meters in the accounting file."""
        results: dict[str, list[float | None]] = {}
        for book in self.book()["external_readings"]:
            for reading in book["readings"]:
                if reading["component"] == "node":
                    results.setdefault(reading["meter"], []).append(reading["joules"])
        return results


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tools]:
    """Return a function that makes the stand-ins, of a job that ended some seconds ago."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(accounting, "SECONDS_BETWEEN", 0.0)
    return lambda ago=60.0: Tools(tmp_path, int(time.time() - ago))


def test_slurm_and_ear_energies_are_recorded_per_node(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.ear()
    assert accounting.collect_accounting(here.run) == 1
    accounting_file = here.book()
    assert here.meters() == {"slurm": [30_000], "ear": [40_000]} and accounting_file["energy_final"] is True
    assert (
        accounting_file["total"]["slurm_energy_joules"] == 30_000
        and accounting_file["total"]["ear_energy_joules"] == 40_000
    )
    assert accounting_file["ear"] == [{"node": "n1", "seconds": 100, "watts": 400, "gpu_watts": 0, "joules": 40_000}]
    assert {entry["whole_node"] for entry in accounting_file["external_readings"]} == {True}
    assert len(collect_external_readings(here.run)) == 2 and here.problems() == []
    assert accounting.collect_accounting(here.run) == 0, "final values are not queried again"


def test_neighbors_on_the_node_are_recorded_in_each_accounting_file(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.sacct(here.began + SECONDS, "30000", cpus=16)
    here.ear()
    accounting.collect_accounting(here.run)
    assert {entry["whole_node"] for entry in here.book()["external_readings"]} == {False}


def test_late_energy_is_queried_again(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.says("eacct", "No jobs found\n")
    here.sacct(here.began + SECONDS, "0")
    assert accounting.collect_accounting(here.run) == 1
    assert here.book()["energy_final"] is False and here.meters() == {"slurm": [None]}
    problems = collect_external_readings(here.run).problems
    assert "job 7: EAR has no energy of n1 yet: it is queried again" in problems
    assert "job 7: Slurm's plugin ipmi has no energy yet: it is queried again" in problems
    assert "the energy of 1 jobs of Slurm (such as 7) is not final" in problems[-1]
    here.ear()
    here.sacct(here.began + SECONDS, "30000")
    assert accounting.collect_accounting(here.run) == 0, "it is not a new job"
    assert here.book()["energy_final"] is True and here.meters() == {"slurm": [30_000], "ear": [40_000]}
    assert not [
        problem for problem in collect_external_readings(here.run).problems if "again" in problem or "final" in problem
    ]


def test_energy_missing_after_an_hour_is_not_measured(tools: Callable[..., Tools]) -> None:
    here = tools(3600 + 60)
    here.says("eacct", EAR)
    accounting.collect_accounting(here.run)
    assert here.book()["energy_final"] is True
    assert "job 7: EAR has no energy of n1 an hour after its end: it is not measured" in here.book()["energy_problems"]
    assert here.book()["total"]["ear_energy_joules"] is None, "no zero"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", 1, "eacct gives no energies (the database is away)"),
        ("Segmentation fault\n", 0, "eacct has no header"),
        (EAR.replace("DC_NODE_POWER_W", "DC_NODE_PWR_W"), 0, "is it 'DC_NODE_PWR_W' there?"),
    ],
)
def test_ear_failure_does_not_affect_slurm_energy_and_is_retried(
    tools: Callable[..., Tools], capsys: pytest.CaptureFixture[str], text: str, code: int, message: str
) -> None:
    here = tools(3600 + 60)
    here.says("eacct", text, code, "the database is away")
    assert main(["accounting", str(here.run)]) == 0
    assert here.meters() == {"slurm": [30_000]} and here.book()["energy_final"] is False
    assert (
        message in capsys.readouterr().err
        and message in here.problems()[0]
        and message in here.book()["energy_problems"][-1]
    )


def test_earlier_meter_reading_is_kept_when_the_meter_fails_later(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.sacct(here.began + SECONDS, "")
    here.ear()
    accounting.collect_accounting(here.run)
    assert here.meters() == {"slurm": [None], "ear": [40_000]} and here.book()["energy_final"] is False
    here.sacct(here.began + SECONDS, "30000")
    here.says("eacct", "", 1)
    accounting.collect_accounting(here.run)
    assert here.meters() == {"slurm": [30_000], "ear": [40_000]}


def test_uncallable_ear_of_the_platform_is_reported(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.freeze(platform="snellius")
    accounting.collect_accounting(here.run)
    assert "there is no eacct here: load EAR's module" in here.problems()[0]
    assert here.book()["energy_final"] is False


def test_unavailable_sacct_stops_nothing_and_meter_tables_are_read(
    tools: Callable[..., Tools], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tools()
    here.says("sacct", "", 1, "Connection refused")
    first, second = (int(time.time()) + seconds for seconds in (0, 60))
    (tmp_path / "pdu.csv").write_text(f"time,outlet\n{first},300\n{second},300\n")
    (tmp_path / "ear.csv").write_text(EAR + f"7;0;n1;{first};{second};60;400;0;200\n7;0;n1;{first};")
    meters = [{"path": str(tmp_path / "pdu.csv"), "unit": "W", "nodes": {"n1": "outlet"}}]
    files = [str(tmp_path / "ear.csv"), str(tmp_path / "late.csv")]
    here.freeze(energy={"smart_meters": meters, "ear_files": files})
    assert main(["accounting", str(here.run)]) == 0
    stderr = capsys.readouterr().err
    for output in (
        "accounting does not answer (Connection refused)",
        "ear.csv, line 3: the row is truncated",
        "late.csv",
    ):
        assert output in stderr and any(output in problem for problem in here.problems())
    external_readings = collect_external_readings(here.run)
    energies = {
        r.meter: r.joules
        for external_reading in external_readings
        for r in external_reading.readings
        if r.component == "node"
    }
    assert energies == {"ear": 24_000, "smart_meter": 18_000}
    assert set(here.problems()) <= set(external_readings.problems)


def test_invalid_meter_configuration_is_an_error(
    tools: Callable[..., Tools], capsys: pytest.CaptureFixture[str]
) -> None:
    here = tools()
    here.freeze(energy={"smart_meters": [{"path": "pdu.csv", "units": "W", "nodes": {"n1": "a"}}]})
    assert main(["accounting", str(here.run)]) == 2
    assert "unknown key smart_meters.0.units: did you mean 'unit'?" in capsys.readouterr().err


def test_accounting_file_locked_by_another_process_is_skipped(tools: Callable[..., Tools]) -> None:
    here = tools()
    start = waiting_for_leftover_jobs.SlurmInvocation(
        name="mine", host="a", process=1, started=waiting_for_leftover_jobs.utc_timestamp()
    )  # its cluster is not known
    start.write(here.run)
    folder = here.run / layout.ACCOUNTING
    (folder / ".partial-login1.7-7.json").symlink_to(folder / "gone")  # listed, and has its name by now
    assert accounting.collect_accounting(here.run) == 1
    assert (folder / "7.json").exists()


def test_damaged_accounting_file_does_not_affect_others(tools: Callable[..., Tools]) -> None:
    here = tools()
    here.ear()
    accounting.collect_accounting(here.run)
    (here.run / layout.ACCOUNTING / "far.8.json").write_text("{")
    external_readings = collect_external_readings(here.run)
    assert len(external_readings) == 2 and "far.8.json is damaged: delete it" in external_readings.problems[0]
