"""The report's table of planned and measured training figures; the figures are those of the small run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.energy.run_energy_report_reader import AttemptEnergy
from pipeline.report.training_section import compare_with_plan
from tests.report.example import Run
from tests.report.test_page import made, outline

PLANNED = {
    "parameters": 3_412_224,
    "tokens": 250_000,
    "step_seconds": 2.0,
    "tokens_per_second_per_device": 1_000.0,
    "utilization_share": 0.5,
    "model_state_bytes_per_device": 500_000_000,
    "gathered_bytes_per_device": 100_000_000,
    "activation_bytes_per_device": 400_000_000,
    "activation_bytes_with_recomputation": 100_000_000,
    "seconds": 1_845.0,
    "low_seconds": 1_200.0,
    "high_seconds": 4_000.0,
    "energy_joules": 1_250_000.0,
}


def table(run_folder: Run, **changes: float | None) -> str:
    """Return the text of the table with other planned figures."""
    plan = run_folder.read("plan/plan.json")
    plan["models"]["base"] = {**PLANNED, **changes}
    run_folder.write("plan/plan.json", plan)
    text = outline(made(run_folder)["page"]).text
    return text.split("Plan (estimated) and result")[1].split("Segments of the training")[0]


def test_each_planned_figure_is_next_to_the_measured_one(run_folder: Run) -> None:
    text = table(run_folder)
    assert "Parameters 3,412,224 3,412,224 1" in text
    # The plan's interval is 1,200 to 4,000 of 1,845 s, so 1.3 to 4.336 of 2 s.
    assert "Time of a step, median 2 s (1.3 s to 4.34 s) 4 s 2.000 ✓ yes" in text
    # Two segments of 1,230 s and one that was killed after the same time.
    assert "startup and lost ones included 30 min 45 s 1 h 01 min 2.000 –" in text
    # Two of 1,000,000 J, and half a million of the one that was killed.
    assert "before PUE 0.347 kWh 0.694 kWh 90 % measured, 10 % estimated 2.000 –" in text


def test_time_outside_its_interval_is_marked(run_folder: Run) -> None:
    assert "4 s 2.000 ✗ no" in table(run_folder, high_seconds=3_600.0)
    assert "4 s 2.000 ✗ no" in table(run_folder, low_seconds=3_700.0, high_seconds=3_800.0)


def test_unplanned_figure_has_no_row_and_unmeasured_figure_no_ratio(run_folder: Run) -> None:
    text = table(run_folder, seconds=None, low_seconds=None, high_seconds=None, energy_joules=None)
    assert "lost ones" not in text and "Time of a step, median 2 s 4 s 2.000 –" in text and "Electricity" not in text
    assert "of a device, median 1,000 " in text


def test_device_throughput_is_the_total_divided_by_devices(run_folder: Run) -> None:
    for step in ("250", "500"):
        path = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(path)
        run_folder.write(path, {**record, "counts": {**record["counts"], "world_size": 4}})
    assert "Tokens per second of a device, median 1,000 1,301 1.301" in table(run_folder)  # of 5,204


def test_electricity_with_unknown_jobs_is_not_compared_with_the_plan() -> None:
    keys = ("name", "processes", "tokens_per_second", "recomputation", "parameters", "own_tokens", "device")
    model = {**dict.fromkeys((*keys, "model_flops_utilization", "memory_bytes")), "name": "base"}
    job = {"step": "pretrain.segment", "instance": {"model": "base"}, "fate": "finished"}
    known, unknown = AttemptEnergy(**job, joules=5.0, meters=("a meter",)), AttemptEnergy(**job)
    for jobs, expected in (([known, known], 10.0), ([known, unknown], None), ([], None)):
        accounting: Any = SimpleNamespace(jobs=dict(enumerate(jobs)))
        reader: Any = SimpleNamespace(attempts=[])
        (row,) = compare_with_plan(reader, accounting, model, [], {"energy_joules": 4.0})
        assert row.measured == expected


@pytest.mark.parametrize(("device", "words"), [("CPU", "1.00 GB – –"), ("NVIDIA H100", "1.00 GB 512 MB 0.512")])
def test_memory_is_compared_only_for_devices(run_folder: Run, device: str, words: str) -> None:
    for step in ("250", "500"):
        path = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(path)
        run_folder.write(path, {**record, "counts": {**record["counts"], "device": device}})
    assert f"Peak memory of a device {words}" in table(run_folder)


def test_unplanned_model_has_no_table(run_folder: Run) -> None:
    run_folder.write("plan/plan.json", {**run_folder.read("plan/plan.json"), "models": {}})
    assert "Plan (estimated) and result" not in outline(made(run_folder)["page"]).text
