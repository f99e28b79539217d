"""Scaling laws: predictions, extrapolation, and compute-optimal splits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy.optimize import minimize_scalar

from pipeline.core.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.estimate import FORMULAS as PLANNED
from pipeline.plan.scaling_laws import (
    BESIROGLU,
    BESIROGLU_ERRORS,
    FORMULAS,
    HOFFMANN,
    MUENNIGHOFF,
    PUBLISHED_LAWS,
    ScalingLaw,
    predict_by_published_laws,
)

LAW = ScalingLaw(*(2.0, 400.0, 1000.0, 0.5, 0.25), unit="nats per token", parameters=(1e6, 1e8), tokens=(1e8, 1e10))


def test_loss_is_irreducible_plus_parameter_and_token_terms() -> None:
    assert LAW.loss(1e4, 1e8) == pytest.approx(2.0 + 400 / 100 + 1000 / 100)
    assert LAW.loss(1e30, 1e60) == pytest.approx(2.0)


def test_optimal_compute_split_equals_a_numeric_search() -> None:
    flops = 6e17
    parameters, tokens = LAW.compute_optimal(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    result = minimize_scalar(lambda n: LAW.loss(2.0**n, flops / 6 / 2.0**n), bounds=(10, 50), method="bounded")
    assert parameters == pytest.approx(2.0**result.x, rel=1e-3)
    assert LAW.loss(parameters, tokens) == pytest.approx(result.fun, rel=1e-9)


def test_extrapolation_is_reported_with_its_factor_and_ends_are_included() -> None:
    assert LAW.describe_extrapolation(1e6, 1e8) == LAW.describe_extrapolation(1e8, 1e10) == []
    assert LAW.describe_extrapolation(5e8, 1e9) == ["parameters 5 x above"]
    assert LAW.describe_extrapolation(1e7, 4e7) == ["tokens 2.5 x below"]
    assert len(LAW.describe_extrapolation(1e9, 1e11)) == 2
    anywhere = ScalingLaw(2.0, 400.0, 1000.0, 0.5, 0.25, "bits per byte")
    assert anywhere.describe_extrapolation(1, 1e20) == [], "no range is stated"


@pytest.mark.parametrize(("exponent", "noun"), [("alpha", "parameters"), ("beta", "tokens")])
def test_flat_law_has_no_optimal_split(exponent: str, noun: str) -> None:
    with pytest.raises(InputError, match=f"does not fall with more {noun}"):
        replace(LAW, **{exponent: 1e-9}).compute_optimal(1e15)


SHAPE = Architecture(layers=32, width=4096, heads=32, key_value_heads=8, feed_forward_width=14336)
VOCABULARY = 128_256


def test_each_law_reproduces_its_published_results() -> None:
    # Hoffmann et al. 2022, section 3.4 and figure 4: Chinchilla's compute at about 40 billion parameters.
    parameters, _ = HOFFMANN.compute_optimal(5.76e23)
    assert 3e10 < parameters < 4.5e10
    # Besiroglu et al. 2024: about 20 tokens for each parameter at Chinchilla's compute, and N grows with C to 0.5126.
    parameters, tokens = BESIROGLU.compute_optimal(5.76e23)
    assert 15 < tokens / parameters < 25
    larger, _ = BESIROGLU.compute_optimal(5.76e24)
    assert math.log10(larger / parameters) == pytest.approx(0.5126, abs=2e-4)
    # Muennighoff et al. 2023: one exponent, so N and D grow equally.
    more, _ = MUENNIGHOFF.compute_optimal(4e21)
    assert more == pytest.approx(2 * MUENNIGHOFF.compute_optimal(1e21)[0])


def test_chinchilla_loss_is_between_the_laws_and_their_errors() -> None:
    tokens = 160_000_000_000
    predicted = predict_by_published_laws(SHAPE, VOCABULARY, tokens)
    low, loss, high = (predicted[f"{end}expected_loss_nats_per_token"] for end in ("low_", "", "high_"))
    losses = sorted(law.loss(parameter_count(SHAPE, VOCABULARY), tokens) for law, _ in PUBLISHED_LAWS)
    assert loss == losses[1] == pytest.approx(2.16, abs=0.01), "the middle one"
    assert low < losses[0] and losses[2] <= high
    assert 0.045 < loss - low < 0.07, "twice the published error of E, 0.0257, in the middle of the runs"
    assert predicted["expected_loss_outside_range"] == []
    assert predict_by_published_laws(SHAPE, VOCABULARY, tokens) == predicted, "the draws have a seed"


def test_interval_grows_outside_the_fitted_runs_and_the_range_is_named() -> None:
    small = Architecture(layers=2, width=256, heads=4, key_value_heads=4)
    within, without = (
        predict_by_published_laws(SHAPE, VOCABULARY, 10**11),
        predict_by_published_laws(small, 4096, 10**9),
    )
    reach = [
        predicted["high_expected_loss_nats_per_token"] - predicted["low_expected_loss_nats_per_token"]
        for predicted in (within, without)
    ]
    assert reach[1] > 3 * reach[0]
    assert [words.split()[0] for words in without["expected_loss_outside_range"]] == ["parameters"]


def test_predictions_below_a_uniform_guess_are_omitted() -> None:
    tiny = Architecture(layers=2, width=32, heads=4, key_value_heads=2)
    predicted = predict_by_published_laws(tiny, 600, 10**5)  # about 40 nats by the laws
    assert [predicted[f"{end}expected_loss_nats_per_token"] for end in ("low_", "", "high_")] == [None] * 3
    assert len(predicted["expected_loss_outside_range"]) == 2


def test_step_law_excludes_embedding_parameters() -> None:
    # By hand, with logarithms to the base 10: log 1.79 - 0.713 x 9.8438 + 0.307 x 11 and log 0.58 + 0.571 x 11.
    predicted = predict_by_published_laws(SHAPE, VOCABULARY, 10**11)
    assert math.log10(parameter_count(SHAPE, 0)) == pytest.approx(9.8438, abs=1e-4)
    assert math.log10(predicted["step_law_learning_rate"]) == pytest.approx(0.2529 - 7.0186 + 3.377, abs=1e-3)
    assert math.log10(predicted["step_law_batch_tokens"]) == pytest.approx(-0.2366 + 6.281, abs=1e-3)
    larger = Architecture(**{**SHAPE.model_dump(exclude_none=True), "layers": 64})
    assert (
        predict_by_published_laws(larger, VOCABULARY, 10**11)["step_law_batch_tokens"]
        == predicted["step_law_batch_tokens"]
    )
    assert (
        predict_by_published_laws(SHAPE, 4096, 10**11)["step_law_learning_rate"] == predicted["step_law_learning_rate"]
    )


def test_every_figure_has_its_formula_in_the_plan() -> None:
    assert (
        set(predict_by_published_laws(SHAPE, VOCABULARY, 10**11)) == set(FORMULAS)
        and FORMULAS.items() <= PLANNED.items()
    )


def test_errors_of_alpha_and_beta_reproduce_those_of_A_and_B() -> None:
    # A / middle^alpha is constant, so log A changes by log middle per unit of alpha; Besiroglu et al. 2024, table 1.
    for letter, error, (low, high), published in (
        ("A", BESIROGLU_ERRORS.alpha, BESIROGLU.parameters, 124.58),
        ("B", BESIROGLU_ERRORS.beta, BESIROGLU.tokens, 1293.23),
    ):
        follows = getattr(BESIROGLU, letter) * error * (math.log(low) + math.log(high)) / 2
        assert follows == pytest.approx(published, rel=0.25)
