"""Slurm energies: in all sacct formats, trusted as far as the plugin allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.energy.external_meters.slurm_energy import (
    AllocationEnergy,
    parse_energy_plugin,
    parse_joules,
    read_slurm_energy,
)
from pipeline.energy.readings import Reading
from pipeline.slurm import sacct

HERE = Path(__file__).parent
PUBLIC: list[dict[str, Any]] = json.loads((HERE / "sacct_public.json").read_text())
WATTS = {"node1": 700, "node2": 1900, "node[1-2]": 2600}  # of the counters while sacct's output was recorded


def reading(message: str, plugin: str | None, *nodes: str, ended: float = 1100) -> Reading:
    """Return the first node's reading of an allocation."""
    return read_slurm_energy(AllocationEnergy("7", nodes or ("n1",), 1000, ended, message), plugin)[0].readings[0]


def test_energies_are_parsed_in_all_sacct_formats() -> None:
    """1.2K and 900M are ConsumedEnergy, which sacct divides by thousands; the number near 2**64 is its NO_VAL64."""
    message = ["900", "1.2K", "900M", "2G", "0", "", "18446744073709551614", "-5", "12 J", "1.2Ki"]
    assert [parse_joules(text) for text in message] == [900, 1200, 9e8, 2e9, None, None, None, None, None, None]


def test_energy_plugin_is_parsed_from_scontrol() -> None:
    text = (
        "AccountingStorageTRES   = cpu\nAcctGatherEnergyType    = acct_gather_energy/{}\nAcctGatherNodeFreq = 0 sec\n"
    )
    assert [parse_energy_plugin(text.format(name)) for name in ("ipmi", "none")] == ["ipmi", "none"]
    assert parse_energy_plugin("AcctGatherEnergyType = acct_gather_energy/xcc,acct_gather_energy/gpu") == "xcc,gpu"
    assert (
        parse_energy_plugin("AcctGatherEnergyType    = (null)") == "none"
        and parse_energy_plugin("slurm_load_ctl_conf error") is None
    )


@pytest.mark.parametrize("plugin", ["ipmi", "xcc", "pm_counters"])
def test_node_meter_plugin_is_measured(plugin: str) -> None:
    result = reading("30000", plugin)
    assert (result.joules, result.label, result.component, result.problem) == (30_000, "measured", "node", None)
    assert result.plugin == f"acct_gather_energy/{plugin}"


def test_slurm_rapl_covers_processors_and_is_never_measured() -> None:
    result = reading("30000", "rapl")
    assert (result.joules, result.label, result.component) == (30_000, "stated", "package")
    assert result.problem is not None and "stated until another meter agrees" in result.problem


@pytest.mark.parametrize(
    ("message", "plugin", "why"),
    [
        ("30000", "none", "has no meter"),
        ("0", "ipmi", "says '0'"),
        ("", "ipmi", "says nothing"),
        ("18446744073709551614", "xcc", "was not measured"),
        ("900M", "ipmi", "more than the hardware can take"),
    ],
)
def test_unmeasured_energy_has_no_joules_and_a_reason(message: str, plugin: str, why: str) -> None:
    result = reading(message, plugin)
    assert result.joules is None and result.problem is not None and why in result.problem


def test_joint_energy_of_several_nodes_is_shared_and_stated() -> None:
    external_readings = read_slurm_energy(AllocationEnergy("7", ["n1", "n2"], 1000, 1100, "60000", True), "ipmi")
    assert [(external_reading.node, external_reading.readings[0].joules) for external_reading in external_readings] == [
        ("n1", 30_000),
        ("n2", 30_000),
    ]
    assert {external_reading.readings[0].label for external_reading in external_readings} == {
        "stated"
    } and external_readings[0].whole_node is True
    assert "equal share" in str(external_readings[0].readings[0].problem)


def test_unknown_plugin_and_reversed_times_are_reported() -> None:
    assert reading("30000", None).label == "stated" and "nobody knows which plugin" in str(reading("1", None).problem)
    back = reading("30000", "ipmi", ended=900)
    assert back.joules is None and "ends before it starts" in str(back.problem)


def recorded(name: str) -> dict[str, list[sacct.AccountedAllocation]]:
    """Return the allocations of each recorded job; SOURCES.md describes how sacct's output was recorded."""
    jobs = sacct.parse_sacct((HERE / name).read_text()).values()
    return {job.comment or "running": job.allocations for job in jobs}


@pytest.mark.parametrize("name", ["sacct_plain.txt", "sacct_contain.txt"])
def test_slurm_energy_equals_the_counters(name: str) -> None:
    jobs = recorded(name)
    assert len(jobs) == 10 and [part.cause for part in jobs["requeued"]] == ["requeued", "finished"]
    (running,) = jobs.pop("running")
    assert running.energy_joules is None and not running.is_over
    for job, allocations in jobs.items():
        for part in allocations:
            assert part.energy_joules is not None, job
            seconds = part.energy_joules / WATTS[part.node_list or ""]
            assert seconds == pytest.approx(part.elapsed_seconds, abs=1.0), f"{job}: whole seconds only"


def test_allocation_row_is_not_the_sum_of_its_steps() -> None:
    rows = [line.split("|") for line in (HERE / "sacct_plain.txt").read_text().splitlines()]
    own = {row[1]: row[sacct.FIELDS.index("ConsumedEnergyRaw")] for row in rows if row[1]}
    parsed = {job: allocations[0].energy_joules for job, allocations in recorded("sacct_plain.txt").items()}
    assert (own["no_step"], parsed["no_step"]) == ("", 4205), "srun was not called"
    assert (own["side_by_side"], parsed["side_by_side"]) == ("22828", 11_609), "two steps, each of the whole node"
    assert (own["one_after_the_other"], parsed["one_after_the_other"]) == ("11431", 17_417), (
        "not the energy between them"
    )
    assert (own["two_nodes"], parsed["two_nodes"]) == ("15709", 15_709)


def test_parallel_steps_on_several_nodes_are_not_measured() -> None:
    def step(number: str, nodes: str, start: int, energy: str, count: str = "2") -> str:
        known = {"JobIDRaw": number, "NNodes": count, "NodeList": nodes, "Start": f"{start}", "End": f"{start + 10}"}
        known |= {"State": "COMPLETED", "ExitCode": "0:0", "ElapsedRaw": "10", "ConsumedEnergyRaw": energy}
        return "|".join({**dict.fromkeys(sacct.FIELDS, ""), **known}[field] for field in sacct.FIELDS)

    def parse_steps(*steps: str) -> sacct.AccountedAllocation:
        return sacct.parse_sacct("\n".join([step("7", "n[1-2]", 100, "9000"), *steps]))["7"].allocations[0]

    parallel = parse_steps(step("7.0", "n[1-2]", 100, "5000"), step("7.1", "n2", 105, "4000", "1"))
    assert parallel.energy_joules is None and "9000 for parallel steps" in parallel.energy_said
    later = parse_steps(step("7.0", "n[1-2]", 100, "5000"), step("7.1", "n2", 110, "4000", "1"))
    elsewhere = parse_steps(step("7.0", "n1", 100, "5000", "1"), step("7.1", "n2", 100, "4000", "1"))
    assert later.energy_joules == elsewhere.energy_joules == 9000
    batch = parse_steps(step("7.batch", "n1", 100, "3000", "1"), step("7.0", "n[1-2]", 100, "9000"))
    assert batch.energy_joules == 9000, "the batch script runs only on the first node"


@pytest.mark.parametrize("job", PUBLIC, ids=lambda job: job["site"])
def test_recorded_rows_of_other_clusters_count_once(job: dict[str, Any]) -> None:
    def row(name: str, message: str) -> str:
        nodes = 1 if name == "batch" else job["nodes"] or 2
        known = {"JobIDRaw": f"7.{name}".rstrip("."), "NNodes": f"{nodes}", "NodeList": f"n[1-{nodes}]"}
        known |= {"ElapsedRaw": f"{job['seconds']}", "ExitCode": "0:0", "State": "COMPLETED"}
        known |= {"Start": "1000", "End": f"{1000 + job['seconds']}", "ConsumedEnergyRaw": message}
        return "|".join({**dict.fromkeys(sacct.FIELDS, ""), **known}[field] for field in sacct.FIELDS)

    message = {name: parse_joules(energy) or 0.0 for name, energy in job["rows"].items()}
    steps = sum(joules for name, joules in message.items() if name not in ("", "batch", "extern"))
    if job["row_is"] == "extern":
        assert message[""] == message["extern"]
    elif steps:
        assert message[""] == pytest.approx(message["extern"] + steps, rel=0.01), "an older Slurm summed them"
    (result,) = sacct.parse_sacct("\n".join(row(name, energy) for name, energy in job["rows"].items())).values()
    assert result.allocations[0].energy_joules == job["joules"]
