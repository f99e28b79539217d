"""The sums of the attribution and their JSON, against hand-computed values."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from pipeline.energy.attribution.node_attribution import EnergyAmount
from tests.energy.accounts import MODEL, attribute, job, line, made, reading


def test_errors_add_linearly_within_a_source_and_in_quadrature_across_sources() -> None:
    one = EnergyAmount.from_joules("measured", 100, {"a": (-3, 3), "b": (-4, 4)})
    assert (one.low, one.high) == pytest.approx((95, 105))
    two = EnergyAmount.sum((one, EnergyAmount.from_joules("estimated", 100, {"a": (-3, 3)})))
    assert two.high - 200 == pytest.approx(math.hypot(6, 4))
    assert (two.measured, two.estimated) == (100, 100)


def test_fitted_model_errors_are_independent_and_default_model_errors_correlated() -> None:
    jobs = [job(name, line(0, 10, 20, node=name)) for name in ("n1", "n2", "n3", "n4")]
    total = made(*jobs).total()
    assert total.high - total.joules == pytest.approx(2 * 1.96 * 120), "√4 times that of one"
    wide = attribute(jobs, [], MODEL.model_copy(update={"relative_error": 0.6})).total()
    assert wide.high - wide.joules == pytest.approx(4 * 1.96 * 720)


def test_power_models_may_differ_by_node() -> None:
    models = {"n1": MODEL, "n2": MODEL.model_copy(update={"idle_watts": 200.0})}
    jobs = [job(name, line(0, 10, 20, node=name)) for name in models]
    for given in (models, models.get):
        result = attribute(jobs, [], given)
        assert (result.of_job("n1").joules, result.of_job("n2").joules) == pytest.approx((1200, 2200))
    assert set(result.as_json()["model"]) == {"n1", "n2"}


def test_energy_of_a_training_step() -> None:
    a = job("a", line(0, 10, 20, reading("node", 1000)), line(10, 20, 20, reading("node", 2000)))
    b = job("b", line(0, 20, 40, reading("node", 600, meter="rapl"), node="n2"))
    result = made(a, b)
    started, ended = np.array([8.0, 0.0, 15.0]), np.array([11.0, 20.0, 25.0])
    assert result.joules_between(["a"], started, ended) == pytest.approx([400, 3000, math.nan], nan_ok=True)
    assert result.joules_between(["a", "b"], started[:2], ended[:2]) == pytest.approx([400 + 90, 3600])
    silent = made(job("a", line(0, 20, 20), line(0, 12, 12, node="n2")))
    some = silent.joules_between(["a"], np.array([2.0, 14.0]), np.array([10.0, 16.0]))
    assert some[0] > 0 and np.isnan(some[1]), "one of its nodes stops reporting"
    apart = made(job("a", line(0, 6, 12), line(6, 12, 12, node="n2")))
    assert np.isnan(apart.joules_between(["a"], np.array([0.0]), np.array([12.0]))), "each node for a half of it"
    assert np.isnan(result.joules_between(["a", "c"], started - 100, ended - 100)).all(), "before any job"


def test_json_adds_up_and_does_not_depend_on_order() -> None:
    jobs = [job(name, line(at, at + 9, 20, reading("node", 1000))) for at, name in enumerate("abc")]
    jobs.append(job("snakemake.1", line(0, 100, 61), fate="snakemake"))
    attributed = attribute(jobs, [], MODEL).as_json()
    assert json.dumps(attributed) == json.dumps(attribute(jobs[::-1], [], MODEL).as_json())
    parts = [*attributed["steps"].values(), attributed["idle"], attributed["snakemake"]]
    assert sum(part["joules"] for part in parts) == pytest.approx(attributed["total"]["joules"], abs=0.1)
    assert set(attributed["coverage"]) == {"node_seconds", "measured_node_seconds"}
    labels = ("measured_joules", "estimated_joules", "stated_joules")
    assert sum(attributed["total"][label] for label in labels) == pytest.approx(attributed["total"]["joules"], abs=0.1)


def test_thinned_time_line_keeps_the_energy() -> None:
    lines = [line(at, at + 1, 1 + at % 3, reading("node", 100 + at % 50)) for at in range(5000)]
    result = made(job("a", *lines))
    entries = result.as_json()["timeline"]
    assert 300 < len(entries) <= 400
    joules = sum(entry["jobs"]["a"] for entry in entries)
    assert joules == pytest.approx(result.of_job("a").joules, rel=1e-6)


@pytest.mark.slow
def test_many_jobs_are_attributed_within_seconds() -> None:
    """A tenth of 2,000 jobs × 500 intervals, on one node, 20 at a time."""
    jobs = []
    for number in range(200):
        start = number // 20 * 5000.0 + number % 20 * 0.37
        lines = [
            line(start + 10 * at, start + 10 * at + 10, 3, reading("node", 900), reading("package", 400))
            for at in range(500)
        ]
        jobs.append(job(f"j{number}", *lines))
    began = time.process_time()
    result = attribute(jobs, [], MODEL)
    assert time.process_time() - began < 10
    assert result.total().joules == pytest.approx(50_000 * 90, rel=0.01)
