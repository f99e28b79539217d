"""The energy section: hand-computed values with interval and label, and none where nothing is known."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.energy.attribution.job_usage_intervals import MeteredJob
from pipeline.energy.readings import MeterInterval, Reading
from pipeline.energy.run_energy_report_reader import EnergyAccounting
from pipeline.report import energy_accounting as account_of_energy
from pipeline.report.footprint import HOME_JOULES_PER_DAY, format_home_equivalent
from pipeline.report.page import run
from tests.report.account_example import make_accounting
from tests.report.example import Run
from tests.report.test_page import made, outline

REAL_ACCOUNT = account_of_energy._compute_accounting
LABELS = "89 % measured, 11 % estimated"


def report_text(run_folder: Run, **changes: Any) -> str:
    return outline(made(run_folder, **changes)["page"]).text


def changed(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> None:
    """Replace parts of the energy accounting."""
    monkeypatch.setattr(account_of_energy, "_compute_accounting", lambda *given: {**make_accounting(*given), **parts})


def test_headline_is_the_total_with_interval_and_labels(run_folder: Run) -> None:
    # 7 jobs of 10,000 J, 2 segments of 1,000,000 J, lost 500,000 J and 5,000 J, idle 20,000 J, Snakemake 5,000 J; of
    # of it estimated 7 x 4,000 + 2 x 100,000 + 50,000 + 2,000 + 8,000 + 2,000 = 290,000 J, ± half of it
    arguments = made(run_folder)
    total = json.loads(arguments["energy"].read_text())["total"]
    assert (total["joules"], total["low_joules"], total["high_joules"]) == (2_600_000, 2_455_000, 2_745_000)
    text = outline(arguments["page"]).text
    assert "0.867 kWh of electricity, including cooling and power supply of the building (" in text
    assert f"({LABELS}, 0.818 to 0.915 kWh)" in text
    assert "of which lost attempts | 0.140 kWh" in arguments["model_card"].read_text()
    assert f"| 0.722 kWh (0.682 to 0.762; {LABELS}) |" in arguments["model_card"].read_text()


def test_steps_idle_and_snakemake_add_up_to_the_total(run_folder: Run) -> None:
    text = report_text(run_folder)
    assert "corpus.deduplicate 2 0 41 min 00 s 1 h 20 min 5.56 Wh 4.44 to 6.67 Wh 60 % measured, 40 % estimated" in text
    assert "corpus.filter 1 1 20 min 30 s 40 min 00 s 1.39 Wh 1.11 to 1.67 Wh 60 % measured" in text
    assert "pretrain.segment 3 1 1 h 01 min 2 h 00 min 0.694 kWh 0.660 to 0.729 kWh 90 % measured" in text
    assert "allocated idle nodes 5.56 Wh" in text and "Snakemake's own process 1.39 Wh" in text
    assert f"total 11 2 3 h 45 min 7 h 20 min 0.722 kWh 0.682 to 0.762 kWh {LABELS}" in text
    text = outline(run_folder.root / "report/jobs.html").text
    assert "energy: total = steps + idle + Snakemake's own, within 1% 0.7222 kWh = 0.7222 kWh ✓ yes" in text


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("idle", {"joules": 60_000.0}),  # 40,000 J of 2,600,000 J too many
        ("snakemake", {"joules": 45_000.0}),
        ("total", {"measured_joules": 2_400_000.0}),
        ("total", {"low_joules": 2_600_001.0}),
    ],
)
def test_inconsistent_energy_sum_is_a_failed_check(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch, part: str, change: dict[str, float]
) -> None:
    assert run(run_folder.settings, **run_folder.arguments())["checks_failed"] == 0

    def wrong(*given: Any) -> dict[str, Any]:
        right = make_accounting(*given)
        return {**right, part: {**right[part], **change}}

    monkeypatch.setattr(account_of_energy, "_compute_accounting", wrong)
    arguments = run_folder.arguments()
    assert run(run_folder.settings, **arguments)["checks_failed"] > 0
    assert "✗ no" in outline(arguments["page"]).text


def test_components_and_nodes_have_their_own_rows(run_folder: Run) -> None:
    text = report_text(run_folder)
    assert "boards (GPUs) 0.486 kWh – measured" in text  # 2 x 700,000 J and 350,000 J
    assert "processors 0.156 kWh – measured" in text  # 42,000 + 500,000 + 3,000 + 12,000 + 3,000 J = 560,000 J
    assert "power supplies 80.6 Wh 40.3 to 121 Wh estimated" in text  # 290,000 J, ± half
    assert "node2 0.694 kWh 0.660 to 0.729 kWh 90 % measured" in text and "node1 27.8 Wh" in text
    assert "Meters saw 90.0 % of the time on nodes: 9.00 of 10.0 hours of nodes." in text


def test_document_token_and_step_energy_is_total_divided_by_count(run_folder: Run) -> None:
    text = report_text(run_folder)
    # corpus: 2 x 10,000 J and the lost 5,000 J, of which 10,000 J estimated, over 2,000 documents read and 1,581 kept
    assert "corpus main 2,000 document read 12.5 J (10.0 to 15.0; 60 % measured, 40 % estimated)" in text
    assert "corpus main 1,581 document kept 15.8 J (12.7 to 19.0;" in text
    assert "token set main 1,600,000 token written 6.25 mJ (5.00 to 7.50;" in text  # 10,000 J
    assert "training of base 500 training step 4.00 kJ (3.80 to 4.20; 90 % measured, 10 % estimated)" in text
    assert "full_shard (base) 500 training step 4.00 kJ (3.80 to 4.20;" in text
    assert "full_shard (base) 2,048,000 token seen 977 mJ (928 to 1,025;" in text


def test_carbon_water_and_cost_follow_the_electricity_and_cite_their_sources(run_folder: Run) -> None:
    text = report_text(run_folder, market_based_grams_per_kwh=0.0, market_based_source="wind")
    # 0.7222 kWh x 1.2 x 267.622 g/kWh = 231.9 g; x 0.5 liters; 0.8667 kWh x 0.2 euros
    assert "location-based 232 g (219 to 245) at 267.6 g/kWh: Netherlands, 2023; source: codecarbon; estimated" in text
    assert "market-based 0 g at 0 g/kWh, by the contract for the electricity; source: wind; estimated" in text
    assert "Water 0.361 liters (0.341 to 0.381) at 0.5000 liters of the site per kWh" in text
    assert "Price of the electricity 0.173 euros (0.164 to 0.183) at 0.2000 euros per kWh" in text
    assert "Electricity of the facility 0.867 kWh (0.818 to 0.915;" in text
    bare = report_text(run_folder, water_liters_per_kwh=None, electricity_euros_per_kwh=None)
    assert "Water not computed the site states no water" in bare
    assert "Price of the electricity not computed the site states no price" in bare


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (0.5 / 24, "an average Dutch home takes from the grid in 30 minutes"),
        (0.124, "an average Dutch home takes from the grid in 3.0 hours"),
        (7.4, "7.4 average Dutch homes take from the grid in a day"),
        (1234.0, "1,234 average Dutch homes take from the grid in a day"),
        (366 * 250.0, "250 average Dutch homes take from the grid in a year"),
    ],
)
def test_electricity_is_expressed_in_homes(days: float, words: str) -> None:
    assert format_home_equivalent(days * HOME_JOULES_PER_DAY) == words
    assert pytest.approx(2550 / 366 * 3.6e6) == HOME_JOULES_PER_DAY


def test_plain_summary_cites_the_source_of_the_home_average(run_folder: Run) -> None:
    text = report_text(run_folder)
    assert "took 0.867 kWh (0.818 to 0.915; 89 % measured, 11 % estimated) of electricity" in text
    assert "That is as much as an average Dutch home takes" in text
    assert "in 3.0 hours." in text and "2,550 kWh" in text and "table 81528NED, 2024, provisional" in text


def test_unknown_energy_is_never_zero(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        account_of_energy, "_compute_accounting", lambda jobs, *_: account_of_energy.empty_accounting(jobs)
    )
    arguments = made(run_folder)
    text, card = outline(arguments["page"]).text, arguments["model_card"].read_text()
    assert "Electricity: not measured" in text and "CO₂" not in text.partition("1. Summary")[0]
    assert "whose energy is not in the sums: corpus.deduplicate 2, corpus.filter 1, pretrain.segment 3," in text
    assert "Dutch home" not in text and "No node had a meter." in text
    for zero in ("0 J", " 0 Wh", " 0 kWh", " 0 g"):
        assert zero not in text.replace(".0 g", "") and zero not in card, zero
    assert "Price of the electricity not measured" in text
    assert "co2_eq_emissions" not in card and "| not measured |" in card


def test_problems_are_in_the_summary_and_in_a_list(run_folder: Run) -> None:
    text = report_text(run_folder)
    assert "The energy is incomplete or in doubt: 1 problem in section 8" in text
    assert "node2: nvml and dcgm differ by 7 % at 07:05 <b>; nvml was taken." in text
    assert "fitted to <i>a table</i>" in text


def test_nodes_of_two_kinds_have_separate_power_models(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"idle_watts": 100.0, "busy_core_watts": 2.0, "relative_error": 0.1, "source": "a data sheet"}
    changed(monkeypatch, model={"node1": one, "node2": {**one, "idle_watts": 250.0}})
    text = report_text(run_folder)
    assert "meter, node node1, estimated: 100 W idle, 2.00 W for each busy core. Source: a data sheet." in text
    assert "Power model without a meter, node node2, estimated: 250 W idle" in text


def test_failed_energy_accounting_leaves_the_rest_of_the_report(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise InputError("eacct.csv has no column TIME_SEC: ask for it again")

    monkeypatch.setattr(account_of_energy, "_compute_accounting", broken)
    text = report_text(run_folder)
    assert "No account of the energy could be made: eacct.csv has no column TIME_SEC" in text
    assert "Electricity: not measured" in text and "Last validation by language" in text


def interval(started: float) -> str:
    reading = Reading(
        component="package", part="package-0", joules=5.0, label="measured", method="counter", meter="rapl"
    )
    return (
        MeterInterval(
            node="node1",
            started=started,
            ended=started + 1,
            job_cpu_seconds=1.0,
            node_cpu_seconds=2.0,
            processors=8,
            job_processors=4,
            job_memory_bytes=10,
            readings=(reading,),
        ).model_dump_json()
        + "\n"
    )


def test_attribution_gets_each_attempt_with_its_outcome_and_readings(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[MeteredJob] = []

    def keep(jobs: list[MeteredJob], *rest: object) -> dict[str, Any]:
        given.extend(jobs)
        return make_accounting([job for job in jobs if job.fate != "snakemake"], *rest)

    monkeypatch.setattr(account_of_energy, "_compute_accounting", keep)
    killed = "pretrain.segment.base.500.20260301T0730.7"
    run_folder.write(f"provenance/readings/{killed}@node1.jsonl", interval(1.0) + interval(2.0))
    run_folder.write(f"provenance/readings/{killed}@node2.jsonl", interval(1.0) + interval(2.0)[:-9])
    run_folder.write("provenance/readings/corpus.filter.main.20260301T0430.9@node1.jsonl", interval(1.0) + '{"a": 1}\n')
    # The last line of an attempt ends at 3: later activity of Snakemake, in this or another invocation, is later.
    run_folder.write("provenance/readings/snakemake.20260301T0000.5@node1.jsonl", interval(1.0) + interval(2.5))
    run_folder.write("provenance/readings/snakemake.20260302T0000.5@node1.jsonl", interval(2.5))
    run_folder.write("provenance/readings/snakemake.20260301T0001.6..tiny@node1.jsonl", interval(2.0))
    run_folder.write("provenance/readings/snakemake.20260301T0001.6.77.a.larger.one@node1.jsonl", interval(1.0))
    run_folder.write("provenance/readings/corpus.gone.1@node1.jsonl", interval(1.0))
    run_folder.write("provenance/readings/report.page.20260301T0900.1@node1.jsonl", interval(1.0))
    own = "provenance/attempts/corpus.filter.main.20260301T0430.9.json"
    run_folder.write(own, {**run_folder.read(own), "snakemake": "snakemake.20260301T0000.5"})
    text = report_text(run_folder)
    uses = {use.name: use for use in given}
    assert uses["corpus.filter.main.20260301T0430.9"].snakemake == "snakemake.20260301T0000.5"
    assert uses[killed].snakemake is None
    assert uses[killed].last_seen == datetime.fromisoformat("2026-03-01T07:50:30+00:00").timestamp()
    assert {use.last_seen for use in uses.values() if use.fate == "finished"} == {None}
    assert (uses[killed].fate, uses[killed].slurm_job, len(uses[killed].intervals)) == ("lost", "4711", 3)
    assert uses[killed].instance == {"model": "base", "step": "500"}
    assert uses["snakemake.20260301T0000.5"].fate == "snakemake" and len(uses) == 13
    assert [one.ended for one in uses["snakemake.20260301T0000.5"].intervals] == [2.0]
    assert uses["snakemake.20260301T0001.6..tiny"].slurm_job is None
    assert "are of the run a.larger.one, not of this one" in text
    assert len(uses["corpus.filter.main.20260301T0430.9"].intervals) == 1, "the line before the broken one"
    assert sum(use.fate == "finished" for use in uses.values()) == 9
    assert (
        "corpus.filter.main.20260301T0430.9@node1.jsonl, line 2" in text
        and "the energy accounting ignores this line" in text
    )
    assert "The readings of corpus.gone.1 belong to no attempt" in text and "report.page.2026" not in text


def test_reused_segment_has_the_energy_of_the_job_that_computed_it(run_folder: Run) -> None:
    """A renamed model: its record is new, and its energy is counted once, and not as lost."""
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    taken = {"record": "pretrain.segment.old.500.json", "attempt": record["attempt"]}
    run_folder.write(path, {**record, "attempt": "later.json", "taken_over_from": taken})
    assert run(run_folder.settings, **run_folder.arguments())["attempts_lost"] == 2
    text = outline(run_folder.root / "report/index.html").text
    assert "total 12 2 " in text and "0.722 kWh 0.682 to 0.762 kWh" in text
    # 2 of 1,000,000 J, as before
    assert "Electricity of its segments 0.556 kWh0.528 to 0.583 kWh; 90 % measured" in text
    assert "pretrain.segment.old.500.json" in outline(run_folder.root / "report/jobs.html").text


def test_records_and_attempts_show_their_own_energy(run_folder: Run) -> None:
    text = report_text(run_folder)
    jobs = outline(run_folder.root / "report/jobs.html").text
    assert "peak memory 812 MB, electricity 2.78 Wh (2.22 to 3.33; 60 % measured, 40 % estimated)." in jobs
    assert "killed 2026-03-01 07:30:00 UTC 2026-03-01 07:50:30 UTC" in text
    assert "20 min 30 s 0.139 kWh (0.132 to 0.146; 90 % measured, 10 % estimated)" in text
    assert "InputError: <b>broken</b> line" in text


def of_node(started: float, ended: float, joules: float, cpu: float, **more: Any) -> str:
    reading = Reading(component="node", joules=joules, label="measured", method="counter", meter="pm_counters")
    fields = {"node": "n1", "processors": 8, "job_processors": 8, "job_memory_bytes": 0, **more}
    interval = MeterInterval(
        started=started, ended=ended, job_cpu_seconds=cpu, node_cpu_seconds=8, readings=(reading,), **fields
    )
    return interval.model_dump_json() + "\n"


def test_step_energy_sums_its_time_on_all_nodes(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_of_energy, "_compute_accounting", REAL_ACCOUNT)
    killed = "pretrain.segment.base.500.20260301T0730.7"
    began = datetime.fromisoformat("2026-03-01T07:30:00+00:00").timestamp()
    # 100 W and 200 W alternating every second, so that a mean over more than a step would be visible
    turns = "".join(of_node(began + at, began + at + 1, 100 + 100 * (at % 2), 8) for at in range(1000))
    run_folder.write(f"provenance/readings/{killed}@n1.jsonl", turns)
    run_folder.write(f"provenance/readings/{killed}@n2.jsonl", of_node(began, began + 500, 25_000, 8, node="n2"))
    # Energy of another lost job at that time, on its own node, does not belong to the training.
    failed = "corpus.filter.main.20260301T0430.9"
    run_folder.write(f"provenance/readings/{failed}@n3.jsonl", of_node(began, began + 1000, 9e6, 8, node="n3"))
    lines = [
        {"step": 1, "ended_unix_seconds": began + 301.0, "seconds": 1.0},  # 100 W + 50 W
        {"step": 2, "ended_unix_seconds": began + 302.0, "seconds": 1.0},  # 200 W + 50 W
        {"step": 3, "ended_unix_seconds": began + 302.5, "seconds": 2.0},  # 50 J + 200 J + 50 J, and 2 s × 50 W
        {"step": 4, "ended_unix_seconds": began + 602.0, "seconds": 1.0},  # 200 W, and 140 W: Slurm holds the other
        {"step": 5, "ended_unix_seconds": began + 1300.0, "seconds": 400.0},  # mostly unmeasured
        {"step": 6, "seconds": 1.0},  # lines of older versions had no time
        {"step": 6, "validation_loss": 2.0},
    ]
    full = [{"loss": 2.0, "tokens_seen": 1, "learning_rate": 0.1, **line} for line in lines]
    run_folder.write("models/base/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in full))
    accounting = json.loads(made(run_folder)["energy"].read_text())
    assert len(accounting["timeline"]) < 900, "it is thinned, and step energy does not use it"
    steps = accounting["training"]["base"]
    assert steps == {"1": 150, "2": 250, "3": 400, "4": pytest.approx(340, abs=0.1)}


def test_training_steps_have_an_energy_chart_unless_from_an_older_version(run_folder: Run) -> None:
    # 1,000,000 J in 1,230 s: 4 s x 813 W = 3,252 J
    page = made(run_folder)["page"]
    assert "Energy, 90 % measured, 10 % estimated. energy: first 3,252, last" in page.read_text(encoding="utf-8")
    lines = [{"step": n, "tokens_seen": n, "loss": 2.0, "learning_rate": 0.1, "energy_joules": 5.0} for n in (1, 2)]
    run_folder.write("models/base/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    page = made(run_folder)["page"]
    assert "J per step" not in page.read_text(encoding="utf-8") and "Energy of a step" not in outline(page).text


def test_energy_comes_only_from_the_accounting(run_folder: Run) -> None:
    """Energy in older records and attempts is ignored."""
    first = made(run_folder)["page"].read_bytes()
    for path in sorted(run_folder.root.glob("provenance/*/*.json")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "energy": {"joules": 1e9, "measured": True}}))
    assert made(run_folder)["page"].read_bytes() == first


def test_hostile_names_are_escaped(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "<script>alert(1)</script>"
    figure = {"joules": 1.0, "low_joules": 1.0, "high_joules": 1.0, "measured_joules": 1.0, "meters": [hostile]}
    moment = {"node": hostile, "started": 1.77e9, "ended": 1.77e9 + 9, "watts": {hostile: 3.0}, "jobs": {}}
    changed(
        monkeypatch,
        steps={hostile: figure},
        components={hostile: figure},
        nodes={hostile: figure},
        meters=[hostile],
        problems=[hostile],
        timeline=[moment],
    )
    arguments = made(run_folder)
    assert arguments["page"].read_text().count("<script") == 1 and hostile in outline(arguments["page"]).text
    assert "<script" not in arguments["model_card"].read_text()
    outline(arguments["page"])


def test_energy_accounting_output_round_trips(run_folder: Run) -> None:
    written = EnergyAccounting.model_validate_json(made(run_folder)["energy"].read_bytes())
    assert written.attempt_energy("pretrain.segment.base.250.20260301T070000000.11.json").joules == 1_000_000
