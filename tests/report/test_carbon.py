"""Carbon by hourly and yearly intensity, and device cost: against hand-computed values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hashing import hash_file
from pipeline.energy.settings import CarbonIntensitySeries
from pipeline.report import energy_accounting as account_of_energy
from tests.report.example import Run
from tests.report.test_page import made, outline

SERIES = CarbonIntensitySeries(path="grid.csv", grams_per_kwh="grams", place="Utopia", source="its operator")
# 100 g/kWh from 7 to 8 o'clock, when one segment and the killed attempt used 1,500,000 J; 300 g/kWh from 8 to 9, when
# the other used 1,000,000 J; 200 g/kWh when 7 jobs of 10,000 J and the failed one of 5,000 J ran. Idle nodes and
# Snakemake, 25,000 of 2,600,000 J, have no time in the example's timeline.
GRAMS = {hour: 200 for hour in range(10)} | {7: 100, 8: 300}
OF_HOURS = 1_500_000 * 100 + 1_000_000 * 300 + 75_000 * 200
YEARLY = 267.622


def table(grams: dict[int, Any]) -> str:
    return "time,grams\n" + "".join(f"2026-03-01T{hour:02d}:00Z,{value}\n" for hour, value in grams.items())


def report_text(run_folder: Run, text: str | None, **changes: Any) -> str:
    if text is not None:
        run_folder.write("grid.csv", text)
    return outline(made(run_folder, carbon_intensity_series=SERIES, **changes)["page"]).text


def test_grams_follow_the_hourly_series_and_are_next_to_the_yearly_average(run_folder: Run) -> None:
    text = report_text(run_folder, table(GRAMS))
    grams = (OF_HOURS + 25_000 * YEARLY) / 3.6e6 * 1.2
    assert grams == pytest.approx(157.23, abs=0.01)
    # the interval of the energy, 2,455,000 to 2,745,000 J of 2,600,000 J
    assert (
        "location-based 157 g (148 to 166) at 180.6 g/kWh, the mean over time weighted by electricity: Utopia, " in text
    )
    sha = hash_file(run_folder.root / "grid.csv")[:16]
    assert f"2026-03-01 01:00 to 09:00 UTC; source: its operator; grid.csv, sha256 {sha}" in text
    assert "0.96 % of the electricity was used at a time of which" in text
    assert "says nothing and is at the yearly average; estimated" in text
    assert (
        "by the yearly average alone 232 g (219 to 245) at 267.6 g/kWh: Netherlands, 2023; source: codecarbon; by the "
        "table it is 32.21 % less; estimated" in text
    )
    assert "157 g of CO₂ equivalent (estimated, 148 to 166)" in text, "the overview"
    assert "emits on average 157 g (148 to 166) of carbon dioxide equivalent (grid: Utopia)" in text
    card = (run_folder.root / "report/model-card.md").read_text()
    assert "emissions: 157.2\n" in card and "| 157 g (148 to 166) | at 180.6 g/kWh" in card


def test_constant_series_equals_the_yearly_average(run_folder: Run) -> None:
    constant = dict.fromkeys(range(10), YEARLY)
    for yearly in (YEARLY, None):
        run_folder.write("grid.csv", table(constant))
        arguments = made(run_folder, carbon_intensity_series=SERIES, carbon_intensity_grams_per_kwh=yearly)
        result = json.loads(arguments["energy"].read_text())["intensity"]["stretches"]
        assert sum(one["joules"] for one in result) == pytest.approx(2_575_000)
    text = report_text(run_folder, table(constant))
    assert "location-based 232 g (219 to 245) at 267.6 g/kWh, the mean over time" in text
    assert "by the yearly average alone 232 g (219 to 245) at 267.6 g/kWh" in text and "0.00 % more" in text


def test_uncovered_time_without_a_yearly_average_is_not_computed(run_folder: Run) -> None:
    text = report_text(run_folder, table(GRAMS), carbon_intensity_grams_per_kwh=None)
    assert "location-based not computed 0.96 % of the electricity was used at a time of which" in text
    assert "says nothing, and no yearly average is configured" in text
    assert "location-based, of 99.04 % of the electricity 155 g (146 to 164) at 180.6 g/kWh" in text  # OF_HOURS alone
    assert "CO₂" not in text.partition("1. Summary")[0], "no figure in the overview"
    assert "by the yearly average alone" not in text and "emits on average" not in text
    assert "co2_eq_emissions" not in (run_folder.root / "report/model-card.md").read_text()


def test_complete_table_needs_no_yearly_average(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = account_of_energy._compute_accounting

    def without_idle(*given: Any) -> dict[str, Any]:
        result = original(*given)
        scaled = {key: value * 2_575 / 2_600 for key, value in result["total"].items() if key != "meters"}
        return {**result, "total": {**scaled, "meters": result["total"]["meters"]}}

    monkeypatch.setattr(account_of_energy, "_compute_accounting", without_idle)
    text = report_text(run_folder, table(GRAMS), carbon_intensity_grams_per_kwh=None)
    assert "location-based 155 g (146 to 164) at 180.6 g/kWh" in text and "was used at a time" not in text


def test_gap_during_the_run_is_reported_and_uses_the_yearly_average(run_folder: Run) -> None:
    holes = {hour: grams for hour, grams in GRAMS.items() if hour != 8} | {12: 200}
    text = report_text(run_folder, table(holes))
    grid = run_folder.root / "grid.csv"
    assert f"{grid.name} has a gap while the run used electricity, 2026-03-01 08:00 to 09:00 UTC: complete it" in text
    grams = (1_500_000 * 100 + 75_000 * 200 + 1_025_000 * YEARLY) / 3.6e6 * 1.2
    assert f"location-based {grams:.0f} g" in text and "39.42 % of the electricity was used" in text
    empty = report_text(run_folder, table({**GRAMS, 5: "", 8: ""}))
    assert "2026-03-01 05:00 to 06:00 UTC, and 1 more: complete it" in empty


def test_gap_outside_the_run_is_ignored(run_folder: Run) -> None:
    assert "has a gap" not in report_text(run_folder, table({**GRAMS, 20: 200, 21: 200}))


def test_table_of_another_time_covers_nothing(run_folder: Run) -> None:
    other = table(GRAMS).replace("2026", "2025")
    text = report_text(run_folder, other)
    assert "grid.csv says nothing of the time of the run; 100.00 % of the electricity" in text
    assert "location-based 232 g" in text and "emits on average 232 g" in text and "(grid: Netherlands, 2023)" in text
    alone = report_text(run_folder, other, carbon_intensity_grams_per_kwh=None)
    assert "location-based, of 0.00 % of the electricity not computed" in alone


@pytest.mark.parametrize("intensity", [None, {"name": "grid.csv", "sha256": "0", "stretches": []}])
def test_unknown_energy_gives_no_grams(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch, intensity: dict[str, Any] | None
) -> None:
    def nothing(jobs: Any, *_: object) -> dict[str, Any]:
        return {**account_of_energy.empty_accounting(jobs), "intensity": intensity}

    monkeypatch.setattr(account_of_energy, "_compute_accounting", nothing)
    text = report_text(run_folder, table(GRAMS))
    assert "location-based not measured" in text and "Electricity: not measured" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not known: there is no file grid.csv yet: put it there and start again, which makes the report"),
        ("", "has no header with the names of its columns"),
        ("time,gramme\n2026-03-01T00:00Z,1\n", "has no column grams: is it 'gramme' there?"),
        ("time,grams\n2026-03-01T00:00,1\n", "line 2: time is '2026-03-01T00:00', without a time zone"),
        ("time,grams\n2026-03-01T00:00Z,-5\n", "line 2: grams is -5, which is less than nothing"),
    ],
)
def test_invalid_carbon_table_is_a_problem_and_the_report_is_written(
    run_folder: Run, text: str | None, words: str
) -> None:
    page = report_text(run_folder, text)
    assert f"The grid's carbon intensity over time is not known: {'' if text is None else str(run_folder.root)}" in page
    assert words in page and "location-based 232 g (219 to 245) at 267.6 g/kWh: Netherlands, 2023" in page
    assert "(grid: Netherlands, 2023)" in page and "Utopia" not in page.split("9. Jobs")[0]
    bare = report_text(run_folder, text, carbon_intensity_grams_per_kwh=None)
    assert "not computed none is known over time, and no yearly average of the carbon intensity is configured" in bare


def test_hostile_place_name_is_escaped(run_folder: Run) -> None:
    hostile = SERIES.model_copy(update={"place": "<script>alert(1)</script>", "source": "<img src=x>"})
    run_folder.write("grid.csv", table(GRAMS))
    arguments = made(run_folder, carbon_intensity_series=hostile)
    for name in ("page", "model_card"):
        text = Path(arguments[name]).read_text()
        assert text.count("<script") <= 1 and "<img" not in text, "the page has one script of its own"


def test_device_cost_is_device_hours_times_the_platform_price(run_folder: Run) -> None:
    # 2 segments and the killed attempt, of 1,230 s on 4 processes each
    text = outline(made(run_folder, price_euros_per_device_hour=2.5, price_source="a price list")["page"]).text
    hours = 3 * 1230 * 4 / 3600
    assert (hours, hours * 2.5) == (4.1, 10.25)
    assert (
        "Price of the devices 10.2 euros at 2.500 euros per device hour: 4.100 device hours of trainings and "
        "evaluations, 1.367 of them of lost attempts; source: a price list; estimated" in text
    )
    assert (
        "source: stated in the file of the platform local"
        in outline(made(run_folder, price_euros_per_device_hour=2.5)["page"]).text
    )
    assert "Price of the devices not computed the platform states no price" in outline(made(run_folder)["page"]).text


def test_evaluation_uses_one_device(run_folder: Run) -> None:
    run_folder.record("evaluate.suites", {"model": "base", "step": "500"}, 9)
    text = outline(made(run_folder, price_euros_per_device_hour=1.0)["page"]).text
    assert "Price of the devices 4.44 euros" in text and "4.442 device hours" in text  # 4.1 h and 1,230 s


def test_training_without_a_finished_segment_is_excluded_from_the_price(run_folder: Run) -> None:
    killed = run_folder.read("provenance/attempts/pretrain.segment.base.500.20260301T0730.7.json")
    other = {**killed, "attempt": "pretrain.segment.other.9.20260301T0731.8.json"}
    instance, seen = {"model": "other", "step": "9"}, killed["last_seen"]
    run_folder.attempt("other", {**other, "instance": instance}, "failed", last_seen=seen)
    text = outline(made(run_folder, price_euros_per_device_hour=1.0)["page"]).text
    assert "4.100 device hours" in text
    assert "of lost attempts; without 1 attempts at trainings of which no segment was finished; source" in text
