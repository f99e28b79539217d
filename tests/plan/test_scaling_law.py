"""The law's form: what it expects, where it was not fitted, and how it splits compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.optimize import minimize_scalar

from pipeline.core.errors import InputError
from pipeline.plan.scaling_law import ScalingLaw

LAW = ScalingLaw(*(2.0, 400.0, 1000.0, 0.5, 0.25), unit="nats per token", parameters=(1e6, 1e8), tokens=(1e8, 1e10))


def test_the_loss_is_the_sum_of_what_cannot_be_learned_and_what_parameters_and_tokens_leave() -> None:
    assert LAW.loss(1e4, 1e8) == pytest.approx(2.0 + 400 / 100 + 1000 / 100)
    assert LAW.loss(1e30, 1e60) == pytest.approx(2.0)


def test_compute_is_split_as_a_search_along_equal_compute_finds_it() -> None:
    flops = 6e17
    parameters, tokens = LAW.compute_optimal(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    found = minimize_scalar(lambda n: LAW.loss(2.0**n, flops / 6 / 2.0**n), bounds=(10, 50), method="bounded")
    assert parameters == pytest.approx(2.0**found.x, rel=1e-3)
    assert LAW.loss(parameters, tokens) == pytest.approx(found.fun, rel=1e-9)


def test_what_lies_outside_of_the_fitted_range_is_told_with_its_factor_and_the_ends_are_within() -> None:
    assert LAW.outside(1e6, 1e8) == LAW.outside(1e8, 1e10) == []
    assert LAW.outside(5e8, 1e9) == ["parameters 5 x above"]
    assert LAW.outside(1e7, 4e7) == ["tokens 2.5 x below"]
    assert len(LAW.outside(1e9, 1e11)) == 2
    anywhere = ScalingLaw(2.0, 400.0, 1000.0, 0.5, 0.25, "bits per byte")
    assert anywhere.outside(1, 1e20) == [], "no range is stated"


@pytest.mark.parametrize(("exponent", "noun"), [("alpha", "parameters"), ("beta", "tokens")])
def test_a_law_that_is_flat_has_no_best_split(exponent: str, noun: str) -> None:
    with pytest.raises(InputError, match=f"does not fall with {noun}"):
        replace(LAW, **{exponent: 1e-9}).compute_optimal(1e15)
