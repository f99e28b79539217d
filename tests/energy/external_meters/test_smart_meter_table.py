"""Tables of smart meters and power distribution units: counters, powers, and their faults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.meter_tables import ExternalReadings
from pipeline.energy.external_meters.smart_meter_table import read_smart_meter
from pipeline.energy.settings import Energy, SmartMeter


def read(text: str, unit: str = "kWh", nodes: Any = None, **more: Any) -> ExternalReadings:
    """Return the external readings of a table."""
    window = {key: more.pop(key) for key in ("since", "until") if key in more}
    settings = {"path": "pdu.csv", "unit": unit, "nodes": nodes or {"n1": "outlet 1"}, **more}
    return read_smart_meter(SmartMeter.model_validate(settings), text, **window)


def joules(external_readings: ExternalReadings) -> list[float | None]:
    """Return the joules of all external readings."""
    return [
        None if j is None else pytest.approx(j)
        for external_reading in external_readings
        for r in external_reading.readings
        for j in [r.joules]
    ]


COUNTER = """time;outlet 1;outlet 2
2026-06-09T06:00:00+02:00;100,00;50,00
2026-06-09T06:10:00+02:00;100,05;50,10
2026-06-09T06:20:00+02:00;100,10;50,15
"""


def test_kilowatt_hour_counter_gives_joules_between_rows() -> None:
    external_readings = read(COUNTER)
    assert joules(external_readings) == [0.05 * 3.6e6, 0.05 * 3.6e6] and external_readings.problems == []
    (reading,) = external_readings[0].readings
    assert (reading.component, reading.label, reading.method) == ("node", "measured", "counter")
    assert (reading.meter, reading.plugin) == ("smart_meter", "pdu.csv") and external_readings[0].job is None
    assert (
        external_readings[0].ended - external_readings[0].started == 600 and external_readings[0].started == 1780977600
    )


def test_node_with_two_supplies_has_their_sum() -> None:
    assert joules(read(COUNTER, nodes={"n1": ["outlet 1", "outlet 2"]})) == [0.15 * 3.6e6, 0.1 * 3.6e6]


def test_powers_are_integrated_by_the_trapezoidal_rule() -> None:
    text = "time,outlet 1\n1000000000,300\n1000000060,500\n1000000120,500\n"
    assert joules(read(text, "W")) == [400 * 60, 500 * 60]
    assert joules(read(text.replace(",300", ",0.3").replace(",500", ",0.5"), "kW")) == [400 * 60, 500 * 60]


def test_rows_may_name_their_outlet() -> None:
    text = "at,name,watts\n1000000000,a,300\n1000000000,b,100\n1000000060,a,300\n1000000060,b,200\n"
    external_readings = read(text, "W", {"n1": "a", "n2": "b"}, time="at", outlet="name", value="watts")
    assert [(external_reading.node, external_reading.readings[0].joules) for external_reading in external_readings] == [
        ("n1", 18_000),
        ("n2", 9_000),
    ]
    one_after_another = "\n".join(sorted(text.splitlines()[1:], key=lambda row: row.split(",")[1]))
    again = read(
        f"at,name,watts\n{one_after_another}\n", "W", {"n1": "a", "n2": "b"}, time="at", outlet="name", value="watts"
    )
    assert [*again] == [*external_readings]


def test_counter_reset_is_not_measured_and_later_rows_are() -> None:
    external_readings = read(COUNTER + "2026-06-09T06:30:00+02:00;0,01;50,2\n2026-06-09T06:40:00+02:00;0,06;50,3\n")
    assert joules(external_readings) == [180_000, 180_000, None, 180_000]
    assert external_readings.problems == [
        "pdu.csv, line 5: n1 is not measured, since the counter of outlet 1 goes back: it was reset"
    ]


def test_gap_in_powers_is_not_measured_but_a_gap_in_a_counter_is() -> None:
    rows = "".join(f"{1_000_000_000 + 60 * n},300\n" for n in (*range(10), 30, 31))
    external_readings = read(f"time,outlet 1\n{rows}", "W")
    assert joules(external_readings) == [18_000] * 9 + [None, 18_000]
    assert "there is a gap of 1,260 s and rows usually are 60 s apart" in external_readings.problems[0]
    assert joules(read(COUNTER + "2026-06-09T09:20:00+02:00;101,10;51\n"))[-1] == 3.6e6


def test_missing_power_leaves_a_gap_and_a_counter_continues() -> None:
    missing = COUNTER.replace(";100,05;", ";;")
    assert joules(read(missing)) == [0.1 * 3.6e6]
    both = read(missing, nodes={"n1": ["outlet 1", "outlet 2"]})
    assert joules(both) == [0.25 * 3.6e6]
    powers = "time,a,b\n1000000000,300,1\n1000000060,,1\n1000000120,300,1\n1000000180,300,1\n"
    external_readings = read(powers, "W", {"n1": ["a", "b"]})
    assert (
        joules(external_readings) == [None, None, 301 * 60] and "since a says nothing" in external_readings.problems[0]
    )
    wrong = read(COUNTER.replace("100,05", "n/a"))
    assert "line 3: outlet 1 is 'n/a', which is no number" in wrong.problems[0] and joules(wrong) == [0.1 * 3.6e6]


def test_counter_waits_for_its_last_digit_and_a_stuck_counter_is_not_zero() -> None:
    still = "time,outlet 1\n1000000000,5.0\n1000000060,5.0\n1000000120,5.1\n1000000180,5.1\n"
    external_readings = read(still)
    assert joules(external_readings) == [0.1 * 3.6e6, None]
    assert (
        external_readings[0].ended - external_readings[0].started == 120
        and "0 W, and nothing that runs takes none" in external_readings.problems[0]
    )


def test_impossible_unit_error_suggests_a_plausible_unit() -> None:
    external_readings = read(COUNTER.replace("100,0", "100").replace("100,1", "1010"), "kWh")
    assert joules(external_readings)[0] is None
    assert "the unit is more likely Wh than kWh" in external_readings.problems[0]
    assert "more likely W than kW" in read("time,outlet 1\n1000000000,300\n1000000060,300\n", "kW").problems[0]


def test_reversed_clock_or_missing_time_zone_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"pdu\.csv, line 4: its clock goes back by 600 s.*split the file there"):
        read(COUNTER.replace("06:20", "06:00"))
    with pytest.raises(InputError, match="line 3: its clock stops"):
        read(COUNTER.replace("06:10", "06:00"))
    with pytest.raises(InputError, match=r"line 2: time is '2026-06-09T06:00:00', without a time zone"):
        read(COUNTER.replace("+02:00", ""))
    with pytest.raises(InputError, match="line 2: time is 'yesterday', which is no time"):
        read(COUNTER.replace("2026-06-09T06:00:00+02:00", "yesterday"))


def test_duplicate_row_counts_once() -> None:
    external_readings = read(COUNTER + COUNTER.splitlines()[-1] + "\n")
    assert joules(external_readings) == [180_000, 180_000] and external_readings.problems == [
        "pdu.csv, line 5: the same row as in line 4: it counts once"
    ]


def test_missing_columns_and_outlets_are_named() -> None:
    with pytest.raises(InputError, match=r"pdu\.csv has no column outlet 1: is it 'outlet_1' there\?"):
        read(COUNTER.replace("outlet 1", "outlet_1"))
    with pytest.raises(InputError, match="has no column at"):
        read(COUNTER, time="at")
    external_readings = read("time,name,watts\n1000000000,a,300\n", "W", {"n1": "b"}, outlet="name", value="watts")
    assert [*external_readings] == [] and external_readings.problems == [
        "pdu.csv says nothing of the outlet 'b', which is that of n1"
    ]


def test_rows_outside_the_run_are_ignored() -> None:
    assert joules(read(COUNTER, since=1780977600 + 700)) == [180_000]
    assert joules(read(COUNTER, until=1780977600 + 500)) == [180_000]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "MWh"}, "unit"),
        ({"nodes": {}}, "nodes"),
        ({"nodes": {"n1": []}}, "n1 has no column"),
        ({"nodes": {"n1": "a", "n2": "a"}}, "'a' occurs twice"),
        ({"outlet": "name"}, "outlet and value belong together"),
        ({"units": "W"}, "Extra inputs"),
    ],
)
def test_invalid_smart_meter_configuration_is_refused(settings: dict[str, Any], message: str) -> None:
    good = {"path": "pdu.csv", "unit": "kWh", "nodes": {"n1": "a"}}
    assert Energy.model_validate({"smart_meters": [good]}).smart_meters[0].nodes == {"n1": ("a",)}
    with pytest.raises(ValidationError, match=message):
        Energy.model_validate({"smart_meters": [{**good, **settings}]})
