"""Energy has an interval and a label, in any sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.energy.run_energy_report_reader import (
    AttemptEnergy,
    EnergyAccounting,
    EnergyFigure,
    read_energy_accounting,
    sum_energy,
)

KWH = 3.6e6


def figure(joules: float, measured: float = 0.0, stated: float = 0.0, **ends: float) -> EnergyFigure:
    low, high = ends.get("low", joules), ends.get("high", joules)
    return EnergyFigure(
        joules=joules,
        low_joules=low,
        high_joules=high,
        measured_joules=measured,
        estimated_joules=joules - measured - stated,
        stated_joules=stated,
        meters=("a meter",),
    )


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (
            figure(12.3 * KWH, 9.84 * KWH, low=11.9 * KWH, high=12.8 * KWH),
            "12.3 kWh (11.9 to 12.8; 80 % measured, 20 % estimated)",
        ),
        (figure(3600, 3600), "1.00 Wh (measured)"),
        (figure(36, 36, low=35.9999, high=36.0001), "0.0100 Wh (measured)"),
        (figure(35, 35), "9.72 mWh (measured)"),
        (figure(0.36, 0.36), "0.100 mWh (measured)"),
        (figure(2e10, 0, 2e10, low=1e10, high=3e10), "5,556 kWh (2,778 to 8,333; stated)"),
        (figure(2e11, 1e11, 1e11), "55.6 MWh (50 % measured, 50 % stated)"),
        (figure(1e12, 999e9), "278 MWh (>99 % measured, <1 % estimated)"),
        (figure(1e14, 1e14), "27.8 GWh (measured)"),
        (EnergyFigure(), "not measured"),
        (EnergyFigure(meters=("rapl, measured: counter",)), "0 kWh (measured)"),
    ],
)
def test_energy_text_has_interval_and_label(energy: EnergyFigure, expected: str) -> None:
    assert energy.text() == expected


def test_tiny_lower_bound_has_its_own_unit() -> None:
    assert figure(3600, 0, low=1.0, high=7200).interval == "0.278 mWh to 2.00 Wh"
    assert figure(3600, 0, low=360, high=7200).interval == "0.100 to 2.00 Wh"
    assert figure(3600, 0, low=0, high=7200).interval == "0 to 2.00 Wh"


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (figure(4000, 4000), "4.00 kJ (measured)"),
        (figure(0.25, 0, low=0.2, high=0.3), "250 mJ (200 to 300; estimated)"),
        (figure(5e-5, 5e-5), "50.0 µJ (measured)"),
    ],
)
def test_small_amounts_are_formatted_in_joules(energy: EnergyFigure, expected: str) -> None:
    assert energy.text_in_joules == expected


parts = st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9))


@given(st.lists(parts, min_size=1, max_size=20))
def test_labels_are_kept_in_sums(amounts: list[tuple[float, float, float]]) -> None:
    figures = [figure(sum(amount), amount[0], amount[2]) for amount in amounts]
    total = sum_energy([*figures, EnergyFigure()])
    assert total.joules == pytest.approx(sum(map(sum, amounts)))
    assert total.measured_joules == pytest.approx(sum(amount[0] for amount in amounts))
    assert total.stated_joules == pytest.approx(sum(amount[2] for amount in amounts))
    assert total.measured_joules + total.estimated_joules + total.stated_joules == pytest.approx(total.joules, abs=1e-3)


def test_unknown_energy_adds_nothing_and_stays_unknown() -> None:
    assert not sum_energy([EnergyFigure(), EnergyFigure()]).is_known and sum_energy([]).text() == "not measured"
    assert not EnergyFigure().multiply(3).is_known
    assert figure(10, 10, low=8, high=12).multiply(0.5).text() == figure(5, 5, low=4, high=6).text()


def make_accounting(**jobs: AttemptEnergy) -> EnergyAccounting:
    nothing = EnergyFigure()
    return EnergyAccounting(
        total=nothing,
        finished=nothing,
        lost=nothing,
        idle=nothing,
        snakemake=nothing,
        steps={},
        jobs=jobs,
        components={},
        nodes={},
    )


def test_jobs_are_found_by_attempt_step_and_instance() -> None:
    def job(joules: float, step: str, **instance: str) -> AttemptEnergy:
        return AttemptEnergy(joules=joules, step=step, instance=instance, fate="lost")

    known = make_accounting(
        a=job(1, "corpus.filter", corpus="main", source="x"),
        b=job(2, "corpus.filter", corpus="other"),
        c=job(4, "corpus.statistics", corpus="main"),
        d=job(8, "corpusses.filter", corpus="main"),
    )
    assert known.attempt_energy("a.json").joules == known.attempt_energy("a").joules == 1
    assert not known.attempt_energy("e").is_known and not known.attempt_energy(None).is_known
    assert known.job_energy("corpus.", corpus="main").joules == 5
    assert known.job_energy("corpus.filter").joules == 3


def test_invalid_energy_accounting_error_names_file_and_field(tmp_path: Path) -> None:
    assert read_energy_accounting(tmp_path) is None
    (tmp_path / "report").mkdir()
    for text, field in (('{"total": {"joules": "many"}}', "the field total.joules"), ("{", "Invalid JSON")):
        (tmp_path / "report/energy.json").write_text(text)
        with pytest.raises(InputError, match=rf"^report/energy\.json is no energy accounting: .*{field}"):
            read_energy_accounting(tmp_path)
