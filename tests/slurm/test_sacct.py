"""Parsed sacct output: all allocations of a job, their causes, and unmeasured energy."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

import pytest

from pipeline.core.errors import InputError
from pipeline.slurm import sacct
from pipeline.slurm.accounting import summarize_job_cost
from pipeline.slurm.job_energy import JobEnergy
from pipeline.slurm.sacct import FIELDS, parse_joules, parse_sacct

NO_ENERGY = JobEnergy([], [], True)


def row(**known: str) -> str:
    """Return a row as sacct prints it."""
    usual = {"State": "COMPLETED", "ExitCode": "0:0", "ElapsedRaw": "10", "NNodes": "1", "Start": "100", "End": "110"}
    return "|".join({**dict.fromkeys(FIELDS, ""), **usual, **known}[field] for field in FIELDS)


def job(*rows: str) -> sacct.AccountedJob:
    """Return the one job of some rows."""
    (result,) = parse_sacct("\n".join(rows)).values()
    return result


REQUEUED = [
    row(JobIDRaw="7", Comment="rule_a", State="REQUEUED", TotalCPU="00:04.500", AllocTRES="cpu=2,mem=1000M,node=1"),
    row(JobIDRaw="7.batch", MaxRSS="100000K", NTasks="1"),
    row(JobIDRaw="7", Comment="rule_a", ElapsedRaw="20", TotalCPU="01:00", CPUTimeRAW="40", ConsumedEnergyRaw="900"),
    row(JobIDRaw="7.batch", MaxRSS="0.5G", NTasks="1"),
    row(JobIDRaw="7.extern", MaxRSS="1M", NTasks="1"),
    row(JobIDRaw="7.0", MaxRSS="200M", NTasks="2", TRESUsageInAve="cpu=00:00:01,gres/gpuutil=37,mem=1M"),
]


def test_all_allocations_of_a_job_are_summed() -> None:
    first, second = job(*REQUEUED).allocations
    assert (first.cause, second.cause) == ("requeued", "finished")
    assert not first.is_over and second.is_over
    assert first.peak_memory_bytes == 100_000 * 1024 and first.requested_memory_bytes == 1000 << 20
    assert second.peak_memory_bytes == (512 << 20) + 2 * (200 << 20)
    assert second.gpu_utilization == 0.37
    total = summarize_job_cost(None, job(*REQUEUED), NO_ENERGY, None)["total"]
    assert (total["allocations"], total["elapsed_seconds"], total["cpu_seconds"]) == (2, 30.0, 64.5)
    assert (total["slurm_energy_joules"], total["slurm_energy_allocations"]) == (900.0, 1)


def test_billed_units_are_the_sum_of_all_allocations_or_unknown() -> None:
    rows = [row(JobIDRaw="7", AllocTRES=f"billing={units},cpu=24") for units in (24, 48)]
    assert summarize_job_cost(None, job(*rows), NO_ENERGY, None)["total"]["billed_unit_seconds"] == 720
    unknown = row(JobIDRaw="7", AllocTRES="cpu=24")
    assert summarize_job_cost(None, job(rows[0], unknown), NO_ENERGY, None)["total"]["billed_unit_seconds"] is None


@pytest.mark.parametrize("message", ["", "0", "18446744073709551614", "9223372036854775808"])
def test_unmeasured_energy_is_never_a_number(message: str) -> None:
    result = job(row(JobIDRaw="1", ConsumedEnergyRaw=message))
    assert result.allocations[0].energy_joules is None
    assert summarize_job_cost(None, result, NO_ENERGY, None)["total"]["slurm_energy_joules"] is None
    assert parse_joules(message) is None


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("gres/gpu:a100=4", 4), ("gres/gpu:a100=4,gres/gpu=4", 4), ("gres/gpu:a100_3g.20gb=2,gres/gpu=2", 0), ("", 0)],
)
def test_gpus_of_an_allocation_are_counted_once(tres: str, gpus: int) -> None:
    result = job(row(JobIDRaw="1", AllocTRES=f"billing=2,cpu=2,{tres},mem=4096M,node=1", TotalCPU="INVALID"))
    total = summarize_job_cost(None, result, NO_ENERGY, None)["total"]
    assert (total["gpu_seconds"], total["cpu_seconds"]) == (10 * gpus, 0)
    assert result.allocations[0].requested_memory_bytes == 4 << 30


def test_allocation_without_nodes_has_no_node_list() -> None:
    lists = {"None assigned": None, "(null)": None, "": None, "node[1-2]": "node[1-2]"}
    assert {text: job(row(JobIDRaw="1", NodeList=text)).allocations[0].node_list for text in lists} == lists


@pytest.mark.parametrize(
    ("state", "peak", "cause"),
    [
        ("FAILED", "95M", "memory"),
        ("FAILED", "94M", "failed"),
        ("FAILED", "", "failed"),
        ("OUT_OF_MEMORY", "1M", "memory"),
        ("TIMEOUT", "99M", "time"),
        ("PREEMPTED", "99M", "preempted"),
        ("NODE_FAIL", "99M", "node"),
        ("CANCELLED by 1000", "99M", "cancelled"),
        ("COMPLETED", "99M", "finished"),
    ],
)
def test_cause_of_a_job_end(state: str, peak: str, cause: str) -> None:
    step = row(JobIDRaw="1.0", MaxRSS=peak, NTasks="1")
    result = job(row(JobIDRaw="1", State=state, AllocTRES="cpu=1,mem=100M"), step).allocations[0]
    assert result.cause == cause
    assert "1000" not in result.state, "the user number is private"


def test_pending_or_running_job_has_not_ended() -> None:
    states = {"PENDING": "Unknown", "RUNNING": "Unknown", "REQUEUED": "110", "COMPLETED": "110", "FAILED": "110"}
    over = [job(row(JobIDRaw="1", State=state, End=end)).allocations[0].is_over for state, end in states.items()]
    assert over == [False, False, False, True, True]


@pytest.mark.parametrize("comment", ["rule_a|b", "|", "rule_a\nb\u2028c", "rule_a\n|12", "\n"])
def test_edited_comment_does_not_stop_accounting(comment: str) -> None:
    rows = [row(JobIDRaw="1", Comment=comment, Reason="Dependency"), row(JobIDRaw="1.batch"), row(JobIDRaw="2")]
    result = parse_sacct("\n".join([*rows, ""]))
    assert {number: known.comment for number, known in result.items()} == {"1": comment, "2": None}
    assert result["1"].allocations[0].reason == "Dependency"


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (
            "sacct: error: slurm_persist_conn_open: failed\nsacct: error: Problem talking to the database\n",
            "Problem talk",
        ),
        ("", "exit code 1"),
    ],
)
def test_unresponsive_accounting_is_one_sentence_with_its_last_cause(
    stderr: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess(["sacct"], 1, "", stderr)
    monkeypatch.setattr(sacct, "run_slurm_command", lambda *words, **variables: done)
    with pytest.raises(InputError, match=rf"^Slurm's accounting does not answer \({cause}.*\): try again later$"):
        sacct.query_sacct(["x"], datetime.now(UTC))


def test_invalid_sacct_output_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        InputError, match=r"sacct has printed 'slurmdbd: error.*not a row of 20 fields: try again later"
    ):
        parse_sacct("slurmdbd: error: Connection refused")
    with pytest.raises(InputError, match="not a row of"):
        parse_sacct(row(JobIDRaw="1")[:30])
