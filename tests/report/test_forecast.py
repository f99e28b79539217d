"""The report's table of forecast and measured values; the accounting is that of the small run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.report import energy_accounting as account_of_energy
from tests.report.account_example import make_accounting
from tests.report.example import Run
from tests.report.test_page import made, outline


def make_forecast(seconds: tuple[float, float, float], joules: tuple[float, float, float]) -> dict[str, Any]:
    names = [f"{end}{key}" for key in ("seconds", "joules") for end in ("", "low_", "high_")]
    return {"work": 1000, "unit": "bytes of raw text", **dict(zip(names, (*seconds, *joules), strict=True))}


# Two jobs of corpus.deduplicate took 1,230 s and 10,000 J each, two segments 1,230 s and 1,000,000 J each.
STEPS = {
    "corpus.deduplicate": make_forecast((2000, 1000, 3000), (18_000, 9_000, 36_000)),
    "pretrain.segment": make_forecast((2000, 1000, 2400), (3_000_000, 2_500_000, 3_600_000)),
}
CHAIN = make_forecast((4000, 3000, 5000), (3_018_000, 2_010_000, 4_000_000))


def plan(run_folder: Run, **parts: Any) -> None:
    calibration = [{"folder": "results/<b>pilot</b>", "platform": "local", "known": "measured"}]
    content = run_folder.read("plan/plan.json")
    forecast = {"label": "estimated", "scope": "Of <i>jobs</i>.", "calibration": calibration, "notes": ["Ran there."]}
    content["forecast"] = {**forecast, "steps": STEPS, "chain": CHAIN, **parts}
    run_folder.write("plan/plan.json", content)


def text(run_folder: Run) -> str:
    return outline(made(run_folder)["page"]).text


def test_each_step_and_the_total_show_whether_the_interval_covers(run_folder: Run) -> None:
    plan(run_folder)
    page = text(run_folder)
    known = "60 % measured, 40 % estimated"
    assert (
        f"corpus.deduplicate 5.00 Wh 2.50 to 10.0 Wh 5.56 Wh ✓ inside {known} 33 min 20 s 16 min 40 s to 50 min 00 s "
        "41 min 00 s ✓ inside"
    ) in page
    assert "pretrain.segment 0.833 kWh 0.694 to 1.00 kWh 0.556 kWh ✗ below 90 % measured, 10 % estimated" in page
    assert "41 min 00 s ✗ above" in page, "2,460 s of segments, at most 2,400 s were predicted"
    # 20,000 J and 2,000,000 J, without lost energy; 4,920 s
    assert "all of these 0.838 kWh 0.558 to 1.11 kWh 0.561 kWh ✓ inside" in page and "1 h 22 min ✓ inside" in page
    assert "results/<b>pilot</b> (platform local; energy measured)" in page and "Ran there." in page


def test_missing_forecast_has_a_reason_and_missing_measurement_no_verdict(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(run_folder, steps={"corpus.deduplicate": {"refused": "all of one size"}}, chain={"refused": "none"})
    page = text(run_folder)
    assert "corpus.deduplicate all of one size 5.56 Wh –" in page and "all of these" not in page
    plan(run_folder)
    monkeypatch.setattr(
        account_of_energy, "_compute_accounting", lambda jobs, *_: account_of_energy.empty_accounting(jobs)
    )
    page = text(run_folder)
    assert "corpus.deduplicate 5.00 Wh 2.50 to 10.0 Wh not measured – not measured 33 min" in page
    assert "all of these 0.838 kWh 0.558 to 1.11 kWh not measured –" in page


def test_job_with_unknown_energy_leaves_the_step_without_a_verdict(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_unknown(jobs: Any, *rest: object) -> dict[str, Any]:
        whole = make_accounting(jobs, *rest)
        job = next(job for job in whole["jobs"].values() if job["step"] == "corpus.deduplicate")
        job |= {key: 0.0 for key in job if key.endswith("joules")} | {"meters": []}
        return whole

    monkeypatch.setattr(account_of_energy, "_compute_accounting", one_unknown)
    plan(run_folder)
    assert "corpus.deduplicate 5.00 Wh 2.50 to 10.0 Wh not measured –" in text(run_folder)


def test_plan_without_a_forecast_has_no_table_and_an_invalid_one_is_named(run_folder: Run) -> None:
    assert "What was forecast" not in text(run_folder)
    plan(run_folder, steps=json.loads('{"corpus.filter": {"joules": "many"}}'))
    with pytest.raises(InputError, match=r"plan/plan.json: the field forecast.steps.corpus.filter.joules"):
        made(run_folder)
