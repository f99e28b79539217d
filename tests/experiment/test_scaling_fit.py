"""The fit recovers the generating law, its intervals cover it, and a held-out run is predicted."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import least_squares

from pipeline.core.errors import InputError
from pipeline.experiment.scaling_fit import HUBER_DELTA, ScalingFit, ScalingPoint, fit_scaling_law
from pipeline.plan.scaling_laws import ScalingLaw

# The parameters of Besiroglu et al. 2024 for the runs of Hoffmann et al. 2022; the points here are simulated.
TRUE = {"E": 1.817, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
LAW = ScalingLaw(**TRUE, unit="nats per token")


def made(count: int, *, noise: float, seed: int, largest: float = 1.6e10) -> list[ScalingPoint]:
    """Return runs of the law, 60 million parameters to the largest, 5 to 100 tokens for each, with log noise."""
    generator = np.random.default_rng(seed)
    parameters = np.geomspace(6e7, largest, count)
    tokens = parameters * np.exp(generator.uniform(math.log(5), math.log(100), count))
    factors = np.exp(noise * generator.standard_normal(count))
    return [
        ScalingPoint(n, d, LAW.loss(n, d) * factor) for n, d, factor in zip(parameters, tokens, factors, strict=True)
    ]


@pytest.fixture(scope="module")
def large() -> ScalingFit:
    return fit_scaling_law(made(240, noise=0.004, seed=1), "nats per token", draws=60)


def test_simulated_law_of_chinchilla_size_is_recovered(large: ScalingFit) -> None:
    law = dataclasses.asdict(large.law)
    for letter, share in {"E": 0.01, "alpha": 0.03, "beta": 0.03, "A": 0.2, "B": 0.2}.items():
        assert law[letter] == pytest.approx(TRUE[letter], rel=share), letter
        low, high = large.interval(letter)
        assert low < TRUE[letter] < high and low < law[letter] < high
    assert law["unit"] == "nats per token"
    assert law["parameters"] == pytest.approx((6e7, 1.6e10))


def test_points_without_noise_recover_the_exact_law() -> None:
    result = fit_scaling_law(made(12, noise=0, seed=2), "bits per byte", draws=2).law
    assert {letter: getattr(result, letter) for letter in TRUE} == pytest.approx(TRUE, rel=1e-3)
    assert result.unit == "bits per byte"


def test_another_optimizer_finds_the_same_minimum(large: ScalingFit) -> None:
    points = made(240, noise=0.004, seed=1)
    N, D, losses = np.array(points).T

    def residuals(result: np.ndarray) -> np.ndarray:
        A, B, E = np.exp(result[:3])
        return np.log(E + A / N ** result[3] + B / D ** result[4]) - np.log(losses)

    # A trust region on the uncentered parameters; its cost is Huber's loss with threshold DELTA.
    start = [math.log(300), math.log(1000), 0.0, 0.3, 0.3]
    other = least_squares(residuals, start, loss="huber", f_scale=HUBER_DELTA, x_scale="jac", max_nfev=2000, xtol=1e-14)
    A, B, E = np.exp(other.x[:3])
    expected = {"E": E, "A": A, "B": B, "alpha": other.x[3], "beta": other.x[4]}
    assert {letter: getattr(large.law, letter) for letter in TRUE} == pytest.approx(expected, rel=1e-4)
    assert large.residuals_N == pytest.approx(-residuals(other.x), abs=1e-6)


def test_failed_run_barely_changes_the_law() -> None:
    points = made(40, noise=0.001, seed=3)
    broken = [*points[:-1], points[-1]._replace(loss=points[-1].loss * 2)]
    one, other = (fit_scaling_law(some, "nats per token", draws=2).law for some in (points, broken))
    assert other.loss(3e9, 6e10) == pytest.approx(one.loss(3e9, 6e10), rel=2e-3)


def test_largest_run_is_predicted_without_it_and_extrapolation_is_reported() -> None:
    *points, largest = made(13, noise=0.003, seed=4)
    scaling_law = fit_scaling_law(points, "nats per token", draws=60)
    predicted = scaling_law.predict(largest.parameters, largest.tokens)
    assert predicted.loss == pytest.approx(largest.loss, rel=0.01)
    assert predicted.low < largest.loss < predicted.high and predicted.high - predicted.low < 0.1 * predicted.loss
    assert predicted.outside[0] == "parameters 1.59 x above"
    assert scaling_law.predict(points[3].parameters, points[3].tokens).outside == []


def test_prediction_interval_includes_the_scatter_of_single_runs() -> None:
    scaling_law = fit_scaling_law(made(60, noise=0.01, seed=5), "nats per token", draws=100)
    predicted = scaling_law.predict(1e9, 2e10)
    reach = math.log(predicted.high / predicted.low) / 2
    assert 0.015 < reach < 0.03, "1.96 standard deviations of 0.01, and a little for the law"


def test_equal_seeds_give_equal_draws_and_other_seeds_other_draws() -> None:
    points = made(12, noise=0.003, seed=6)
    one, again, other = (fit_scaling_law(points, "nats per token", draws=10, seed=seed) for seed in (1, 1, 2))
    assert one.law == again.law == other.law
    assert (one.draws_RP == again.draws_RP).all() and one.predict(1e9, 1e10) == again.predict(1e9, 1e10)
    assert (one.draws_RP != other.draws_RP).any()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (made(5, noise=0, seed=0), "has 5 parameters and needs 6 runs at least: here are 5"),
        ([*made(6, noise=0, seed=0), ScalingPoint(1e9, 1e9, math.nan)], "leave out runs that diverged"),
        ([*made(6, noise=0, seed=0), ScalingPoint(1e9, 0, 2.0)], "leave out runs that diverged"),
        (
            [p._replace(tokens=1e9 * (1 + p.parameters // 1e9 % 2)) for p in made(9, noise=0, seed=0)],
            "2; vary the tokens",
        ),
        (
            [p._replace(parameters=1e9) for p in made(9, noise=0, seed=0)],
            "3 numbers of parameters at least: here are 1",
        ),
    ],
)
def test_points_that_determine_no_law_are_refused(points: list[ScalingPoint], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_scaling_law(points, "nats per token", draws=2)


@pytest.mark.slow
@pytest.mark.parametrize(("ladders", "least"), [(10, 8), pytest.param(40, 33, marks=pytest.mark.thorough)])
def test_interval_covers_the_largest_run_of_most_ladders(ladders: int, least: int) -> None:
    held = 0
    for seed in range(ladders):
        *points, largest = made(16, noise=0.004, seed=100 + seed)
        predicted = fit_scaling_law(points, "nats per token", draws=60).predict(largest.parameters, largest.tokens)
        held += predicted.low <= largest.loss <= predicted.high
    assert held >= least, "of 95 %, fewer than 8 of 10 happen once in 90 times, fewer than 33 of 40 in 2,000"
