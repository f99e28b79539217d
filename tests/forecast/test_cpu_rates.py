"""A rate has a source: the records of a run, or the benchmark; unmeasured rates are absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.job_records import Record
from pipeline.forecast import corpus_size_and_time
from pipeline.forecast.corpus_size_and_time import (
    BENCHMARK_RATES,
    BENCHMARK_SOURCE,
    JOIN_SHARES,
    CpuRate,
    find_cpu_rates,
    fit_cpu_rates,
)

STEPS = {"corpus.filter": (2.0, 0.25), "corpus.signatures": (1.0, 0.1)}  # start, seconds for a megabyte


def records(sizes: list[int], **changes: Any) -> list[dict[str, Any]]:
    """Return records of two steps on units of the given megabytes, and of a step that has one job."""
    common = {"settings": {}, "command": [], "inputs": [], "outputs": [], "code_version": "", "environment_version": ""}
    common |= {"started": "", "ended": "", "wall_seconds": 1.0, "peak_memory_bytes": 1, "host": "knoop"}
    results = [
        {**common, "step": step, "instance": {"corpus": "main", "source": "s", "unit": str(unit)}}
        | {"cpu_seconds": start + each * size, "counts": {"bytes_in": size * 10**6}, **changes}
        for step, (start, each) in STEPS.items()
        for unit, size in enumerate(sizes)
    ]
    alone = {"step": "corpus.statistics", "instance": {"corpus": "main"}, "cpu_seconds": 9.0}
    hashed = {"step": "sources.fingerprint", "instance": {"source": "s", "unit": "0"}, "cpu_seconds": 9.0}
    return [*results, {**common, **alone}, {**common, **hashed}]


def read(results: list[dict[str, Any]]) -> list[Record]:
    return [Record.parse(json.dumps(one)) for one in results]


def test_startup_time_and_slope_are_separated() -> None:
    rates = fit_cpu_rates(read(records([1, 4, 7, 12])))
    assert rates.keys() == STEPS.keys()
    for step, (start, each) in STEPS.items():
        assert rates[step] == pytest.approx((start, each, each, 0))
    uneven = records([2, 10, 10])
    uneven[2]["cpu_seconds"] += 1.0  # one of the two large units of the filter
    low, high = fit_cpu_rates(read(uneven))["corpus.filter"][1:3]
    assert high - low == pytest.approx(0.1) and low < 0.3 < high


@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ([5, 6], {}),
        ([1, 2, 3], {}),
        ([5, 5, 5], {}),
        ([5, 6, 7], {"taken_over_from": {"record": "x", "attempt": None}}),
    ],
)
def test_too_few_measurements_give_no_rate(sizes: list[int], changes: dict[str, Any]) -> None:
    assert fit_cpu_rates(read(records(sizes, **changes))) == {}


def test_job_time_is_startup_plus_work() -> None:
    assert CpuRate(2.0, 0.1, 0.3).cpu_seconds(10e6) == pytest.approx((3.0, 5.0))
    assert CpuRate(2.0, 5.0, 5.0, of_documents=True).cpu_seconds(200_000) == pytest.approx((3.0, 3.0))


def test_first_run_with_enough_measurements_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        corpus_size_and_time, "BENCHMARK_RATES", {"corpus.matches": CpuRate(1, 2, 3), "corpus.filter": CpuRate(9, 9, 9)}
    )
    assert find_cpu_rates([tmp_path / "none"]) == (corpus_size_and_time.BENCHMARK_RATES, BENCHMARK_SOURCE)
    for run, sizes in (("small", [1, 1]), ("large", [3, 6, 9])):
        folder = tmp_path / run / "provenance/records"
        folder.mkdir(parents=True)
        for number, record in enumerate(records(sizes)):
            (folder / f"{number}.json").write_text(json.dumps(record))
    rates, by = find_cpu_rates([tmp_path / run for run in ("none", "small", "large")])
    assert rates["corpus.matches"] == CpuRate(1, 2, 3) and rates["corpus.filter"] == pytest.approx((2.0, 0.25, 0.25, 0))
    assert by.startswith(
        f"corpus.filter, corpus.signatures by the records of {tmp_path}/large (on knoop), other steps by"
    )


def test_benchmark_rates_belong_to_existing_steps() -> None:
    from pipeline.workflow.steps import STEPS as ALL

    assert BENCHMARK_RATES.keys() - {JOIN_SHARES} <= ALL.keys() and "AMD EPYC" in BENCHMARK_SOURCE
    assert all(0 <= rate.low_seconds <= rate.high_seconds for rate in BENCHMARK_RATES.values())
