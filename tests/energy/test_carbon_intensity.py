"""Carbon intensity over time: valid tables, and the electricity of each interval, by a second way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.energy.attribution.job_energy_attribution import RunAttribution
from pipeline.energy.carbon_intensity import IntensitySeries, read_intensity_series
from pipeline.energy.run_energy_report_reader import CarbonIntensity, IntensityPeriod
from pipeline.energy.settings import CarbonIntensitySeries
from tests.energy.accounts import job, line, made, reading

HOUR = 3600.0
T0 = 1_772_323_200.0  # 2026-03-01 00:00 UTC
SETTINGS = {"path": "grid.csv", "grams_per_kwh": "grams", "place": "Utopia", "source": "a table"}
EXPORT = """Datetime (UTC),Country,Carbon intensity gCO₂eq/kWh (Life cycle)
2026-03-01 00:00:00,Utopia,250.5
2026-03-01 01:00:00,Utopia,200
2026-03-01 02:00:00,Utopia,
2026-03-01 03:00:00,Utopia,100
2026-03-01 07:00:00,Utopia,300
"""


def read(folder: Path, text: str, **columns: str) -> IntensitySeries:
    path = folder / "grid.csv"
    path.write_text(text, encoding="utf-8")
    return read_intensity_series(CarbonIntensitySeries.model_validate({**SETTINGS, **columns}), path)


def test_exported_row_is_valid_until_the_next_and_gaps_are_unknown(tmp_path: Path) -> None:
    columns = {"time": "Datetime (UTC)", "grams_per_kwh": "Carbon intensity gCO₂eq/kWh (Life cycle)"}
    result = read(tmp_path, EXPORT, **columns)
    assert [moment - T0 for moment in result.moments] == [hour * HOUR for hour in (0, 1, 2, 3, 4, 7, 8)]
    assert result.grams_per_kwh == [250.5, 200, None, 100, None, 300] and result.problems == []
    assert result.sha256 == hash_file(tmp_path / "grid.csv") and result.name == "grid.csv"


@pytest.mark.parametrize(
    "times",
    [
        ("2026-03-01T01:00:00+01:00", "2026-03-01T02:00:00+01:00"),
        ("2026-03-01T00:00Z", "2026-03-01T01:00Z"),
        ("1772323200", "1772326800"),
    ],
)
def test_times_in_any_zone_are_converted_to_utc(tmp_path: Path, times: tuple[str, str]) -> None:
    result = read(tmp_path, f"time;grams\n{times[0]};0,5\n{times[1]};1999\n")
    assert result.moments == [T0, T0 + HOUR, T0 + 2 * HOUR] and result.grams_per_kwh == [0.5, 1999]


ROW, NEXT = "2026-03-01T00:00Z,100\n", "2026-03-01T01:00Z,100\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "grid.csv has no header with the names of its columns"),
        ("time,grams\n", "grid.csv has fewer than two rows"),
        (f"time,grams\n{ROW}", "grid.csv has fewer than two rows"),
        (f"time,gram\n{ROW}{NEXT}", r"grid.csv has no column grams: is it 'gram' there\?"),
        (f"at,grams\n{ROW}{NEXT}", "grid.csv has no column time"),
        (f"time,grams\n{ROW}2026-03-01 01:00,9\n", "line 3: time is '2026-03-01 01:00', without a time zone"),
        (f"time,grams\n{ROW}01.03.2026 01:00,9\n", "line 3: time is '01.03.2026 01:00', which is no time"),
        (f"time,grams\n{NEXT}{ROW}", "line 3: time is '2026-03-01T00:00Z', which is not after the time before it"),
        (f"time,grams\n{ROW}{ROW}", "line 3: .* the rows of one grid alone"),
        (f"time,grams\n{ROW}2026-03-01T01:00Z,-1\n", "line 3: grams is -1, which is less than nothing"),
        (f"time,grams\n{ROW}2026-03-01T01:00Z,267622\n", "line 3: grams is 267,600, .* more than any grid emits"),
        (f"time,grams\n{ROW}2026-03-01T01:00Z,n/e\n", "line 3: grams is 'n/e', which is no number"),
    ],
)
def test_invalid_carbon_table_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_column_with_a_utc_offset_is_not_utc(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a time zone"):
        read(tmp_path, "time (UTC+1),grams\n2026-03-01 00:00,1\n2026-03-01 01:00,1\n", time="time (UTC+1)")


def test_truncated_row_is_a_reported_gap(tmp_path: Path) -> None:
    rows = "".join(f"2026-03-01T0{hour}:00Z,{hour}\n" for hour in range(6))
    result = read(tmp_path, "time,grams\n" + rows.replace("03:00Z,3", "03:00Z"))
    assert result.grams_per_kwh == [0, 1, 2, None, 4, 5]
    assert result.problems[0].endswith(
        "line 5: the row is truncated (1 cells of 2): it is not counted; write the file again"
    )


Power = tuple[str, float, float, float]  # node, start and end in seconds after T0, watts


def attribute_powers(powers: list[Power]) -> RunAttribution:
    """Return the attribution of nodes with these constant powers, with a job each."""
    return made(
        *(
            job(
                f"j{number}",
                line(T0 + started, T0 + ended, 1.0, reading("node", watts * (ended - started)), node=node),
            )
            for number, (node, started, ended, watts) in enumerate(powers)
        )
    )


def by_the_second(powers: list[Power], hours: list[float]) -> list[float]:
    """Return the joules of each hour, added up second by second."""
    joules = [0.0] * len(hours)
    for _, started, ended, watts in powers:
        for second in range(int(started), int(ended)):
            joules[int(second // HOUR)] += watts
    return joules


NODES = st.lists(
    st.tuples(st.integers(0, 3 * 3600), st.integers(10, 4000), st.floats(1.0, 5000.0)), min_size=1, max_size=4
).map(lambda rows: [(f"n{n}", float(start), float(start + took), watts) for n, (start, took, watts) in enumerate(rows)])
GRAMS = st.lists(st.floats(0.0, 2000.0), min_size=6, max_size=6)


def mean_of(attribution: RunAttribution, moments: list[float], grams: list[float | None]) -> CarbonIntensity:
    joules = attribution.joules_per_period(moments)
    return IntensitySeries("grid.csv", "", moments, grams, []).assign_joules(joules)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(powers=NODES, grams=GRAMS)
def test_grams_follow_the_intensity_per_second_and_joules_the_attribution(
    powers: list[Power], grams: list[float]
) -> None:
    attribution, moments = attribute_powers(powers), [T0 + hour * HOUR for hour in range(7)]
    result, joules = mean_of(attribution, moments, [*grams]), by_the_second(powers, grams)
    assert result.joules_with_known_intensity == pytest.approx(attribution.total().joules)
    assert result.joules_with_known_intensity * result.mean_grams_per_kwh == pytest.approx(
        sum(one * intensity for one, intensity in zip(joules, grams, strict=True)), rel=1e-9, abs=1e-6
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(powers=NODES, grams=GRAMS, hour=st.integers(0, 5), where=st.floats(0.01, 0.99))
def test_mean_does_not_depend_on_interval_splits_or_node_order(
    powers: list[Power], grams: list[float], hour: int, where: float
) -> None:
    moments = [T0 + hour * HOUR for hour in range(7)]
    cut = sorted([*moments, T0 + (hour + where) * HOUR])
    attribution = attribute_powers(powers)
    mean = mean_of(attribution, moments, [*grams]).mean_grams_per_kwh
    assert mean_of(attribution, cut, [*grams[: hour + 1], *grams[hour:]]).mean_grams_per_kwh == pytest.approx(mean)
    assert mean_of(attribute_powers(powers[::-1]), moments, [*grams]).mean_grams_per_kwh == pytest.approx(mean)
    assert mean_of(attribution, moments, [267.622] * 6).mean_grams_per_kwh == pytest.approx(267.622)
    assert min(grams) <= mean * (1 + 1e-12) and mean <= max(grams) * (1 + 1e-12)


def test_long_run_keeps_hourly_joules_that_the_thinned_timeline_lacks() -> None:
    # 60 days by the hour, alternating 100 W and 1,000 W; the report's timeline has 400 entries of 3.6 h
    powers = [("n1", hour * HOUR, (hour + 1) * HOUR, 100.0 if hour % 2 else 1000.0) for hour in range(60 * 24)]
    attribution = made(job("j", *(line(T0 + s, T0 + e, 1.0, reading("node", w * (e - s))) for _, s, e, w in powers)))
    moments = [T0 + hour * HOUR for hour in range(60 * 24 + 1)]
    result = attribution.joules_per_period(moments)
    assert result == pytest.approx([watts * HOUR for *_, watts in powers])
    assert len(attribution.timeline("n1")) == 400 < len(result)
    # if the grid has 0 g at high power, the mean is that of the low hours: 100 of 1,100 parts
    clean = mean_of(attribution, moments, [500.0 if hour % 2 else 0.0 for hour in range(60 * 24)])
    assert clean.mean_grams_per_kwh == pytest.approx(500 * 100 / 1100)


def test_time_outside_the_table_and_in_gaps_is_not_covered() -> None:
    attribution = attribute_powers([("n1", 0.0, 4 * HOUR, 100.0)])
    result = mean_of(attribution, [T0 + HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR, T0 + 9 * HOUR], [200.0, None, 400.0])
    assert [(stretch.grams_per_kwh, stretch.joules) for stretch in result.stretches] == [
        (200.0, pytest.approx(100 * HOUR)),
        (None, pytest.approx(100 * HOUR)),
        (400.0, pytest.approx(100 * HOUR)),
    ]
    assert result.joules_with_known_intensity == pytest.approx(
        attribution.total().joules / 2
    ) and result.mean_grams_per_kwh == pytest.approx(300)


def test_table_of_another_year_covers_nothing() -> None:
    attribution = attribute_powers([("n1", 0.0, HOUR, 100.0)])
    result = mean_of(attribution, [0.0, HOUR, 2 * HOUR], [200.0, 300.0])
    assert (result.stretches, result.joules_with_known_intensity, result.mean_grams_per_kwh) == ([], 0.0, 0.0)
    unknown = CarbonIntensity(
        name="", sha256="", stretches=[IntensityPeriod(started=0, ended=1, grams_per_kwh=None, joules=5.0)]
    )
    assert (unknown.joules_with_known_intensity, unknown.mean_grams_per_kwh) == (0.0, 0.0)


def test_intervals_are_consecutive(tmp_path: Path) -> None:
    result = read(tmp_path, f"time,grams\n{ROW}{NEXT}2026-03-01T02:00Z,1\n2026-03-02T00:00Z,1\n")
    assert all(first < second for first, second in pairwise(result.moments))
    assert len(result.grams_per_kwh) == len(result.moments) - 1
