"""The fit reproduces the authors' predictions of a published ladder, and predicts two models of far more compute.

OLMo's ladder: Bhagia et al. 2024 (Establishing Task Scaling Laws via Compute-Efficient Model Ladders, arXiv
2412.04403), https://github.com/allenai/OLMo-ladder (Apache-2.0), commit 67a3f44, src/scripts/paper/data/ladder-runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import fmean, median

import numpy as np
import pytest
from scipy.optimize import curve_fit

from pipeline.experiment.scaling_fit import ScalingFit, ScalingPoint, fit_scaling_law

# Parameters without the input embedding, tokens, and the losses of `MEASURES`: each the mean of the last five
# evaluations of a run, as in the paper; of the 7B model one is published. MMLU is the mean of its four parts,
# weighted by their questions.
SMALL = (
    (190354176, 3812622336, 3.60517, 1.51891, 0.98271, 1.37993, 1.21071, 1.27299, 1.56521, 1.39707, 1.81431),
    (190354176, 7619477504, 3.49749, 1.42420, 0.94330, 1.30070, 1.09718, 1.23656, 1.52839, 1.36654, 1.72134),
    (190354176, 19041091584, 3.39082, 1.33789, 0.91152, 1.22381, 1.01741, 1.19842, 1.41371, 1.27214, 1.66269),
    (190354176, 38076416000, 3.33785, 1.30404, 0.89456, 1.18335, 1.00379, 1.17745, 1.40567, 1.25865, 1.64599),
    (371262464, 7433355264, 3.39704, 1.36028, 0.91633, 1.21093, 1.01582, 1.19236, 1.42315, 1.28121, 1.67876),
    (371262464, 14858846208, 3.29067, 1.27660, 0.88177, 1.15772, 0.91545, 1.15722, 1.37537, 1.23820, 1.59734),
    (371262464, 37134532608, 3.18874, 1.20435, 0.85271, 1.09728, 0.87610, 1.11443, 1.28059, 1.19612, 1.55197),
    (371262464, 74260414464, 3.13401, 1.17629, 0.83739, 1.07256, 0.85829, 1.09876, 1.22625, 1.17791, 1.53650),
    (758220288, 15178137600, 3.20554, 1.22277, 0.85790, 1.11158, 0.90749, 1.12495, 1.30848, 1.19041, 1.57238),
    (758220288, 30343168000, 3.10480, 1.15718, 0.83296, 1.04882, 0.82080, 1.09291, 1.21190, 1.14578, 1.50325),
    (758220288, 75835637760, 3.00623, 1.09841, 0.80286, 1.00544, 0.77827, 1.04822, 1.14622, 1.11721, 1.45998),
    (758220288, 151658168320, 2.95487, 1.06342, 0.79149, 0.96989, 0.74562, 1.04061, 1.09665, 1.11329, 1.45047),
    (1279395840, 25604653056, 3.06517, 1.13790, 0.81784, 1.04482, 0.81842, 1.07699, 1.21955, 1.13634, 1.51319),
    (1279395840, 51192004608, 2.97213, 1.08294, 0.79465, 1.00113, 0.76079, 1.04595, 1.10251, 1.09956, 1.46946),
    (1279395840, 127955632128, 2.87852, 1.02233, 0.76964, 0.94684, 0.72300, 1.01375, 1.04137, 1.10747, 1.42086),
    (1279395840, 255895535616, 2.83206, 0.98562, 0.75976, 0.90650, 0.68646, 1.00004, 1.00112, 1.07988, 1.38530),
)
LARGE = (
    (6887575552, 3945065873408, 2.48292, 0.77702, 0.67319, 0.74244, 0.53298, 0.90884, 0.80694, 0.96287, 1.26826),
    (13202396160, 5000088518656, 2.43788, 0.74883, 0.66093, 0.71572, 0.51139, 0.89879, 0.81158, 0.95685, 1.26320),
)
# The authors' predictions of the 13B model, and their errors in percent for 7B and 13B: src/scripts/paper/
# figures, step1_c4_main.csv and .pdf, step1_main.csv and .png. C4 is in nats per token, the others in bits per byte.
MEASURES = {
    "C4": (2.3444, 2.0, 3.8),
    "MMLU": (0.7502, 1.3, 0.2),
    "HellaSwag": (0.6532, 0.3, 1.2),
    "ARC-Challenge": (0.7833, 7.0, 9.4),
    "ARC-Easy": (0.5931, 13.3, 16.0),
    "PIQA": (0.8748, 2.0, 2.7),
    "CommonsenseQA": (0.6617, 11.7, 18.5),
    "Social IQa": (0.9916, 4.3, 3.6),
    "OpenBookQA": (1.2750, 1.3, 0.9),
}


def points(rows: tuple[tuple[float, ...], ...], measure: str) -> list[ScalingPoint]:
    column = 2 + list(MEASURES).index(measure)
    return [ScalingPoint(row[0], row[1], row[column]) for row in rows]


@cache
def fitted(measure: str, draws: int = 1) -> ScalingFit:
    return fit_scaling_law(
        points(SMALL, measure), "nats per token" if measure == "C4" else "bits per byte", draws=draws
    )


def by_law(measure: str, parameters: float, tokens: float) -> float:
    return fitted(measure).law.loss(parameters, tokens)


def last(measure: str, parameters: float, tokens: float) -> float:
    """The loss of the ladder's model with the most compute."""
    return points(SMALL, measure)[-1].loss


def by_compute(measure: str, parameters: float, tokens: float) -> float:
    """A power law of 6 N D, without a constant."""
    N, D, losses = np.log(points(SMALL, measure)).T
    slope, intercept = np.polyfit(N + D, losses, 1)
    return float((parameters * tokens) ** slope * np.exp(intercept))


def by_compute_with_constant(measure: str, parameters: float, tokens: float) -> float:
    """A power law of 6 N D above a constant, by least squares."""
    N, D, losses = np.array(points(SMALL, measure)).T
    unit = float((N * D).max())

    def law(compute: np.ndarray, E: float, A: float, alpha: float) -> np.ndarray:
        return E + A * compute**-alpha

    result, _ = curve_fit(law, N * D / unit, losses, p0=[losses.min() / 2, losses.min() / 2, 0.1], bounds=(0, np.inf))
    return float(law(np.array(parameters * tokens / unit), *result))


def errors(method: Callable[[str, float, float], float], measure: str) -> list[float]:
    """Return the errors of a method for the two large models, in percent."""
    return [100 * abs(method(measure, N, D) / loss - 1) for N, D, loss in points(LARGE, measure)]


@pytest.mark.parametrize("measure", MEASURES)
def test_published_predictions_are_reproduced(measure: str) -> None:
    published, *off = MEASURES[measure]
    assert by_law(measure, *LARGE[1][:2]) == pytest.approx(published, rel=3e-4)
    assert errors(by_law, measure) == pytest.approx(off, abs=0.07), "published with one decimal"


@pytest.mark.parametrize("measure", ["C4", "MMLU", "HellaSwag"])
def test_two_models_with_a_hundred_times_the_compute_are_predicted(measure: str) -> None:
    of_7b, of_13b = errors(by_law, measure)
    assert of_7b < 2.5 and of_13b < 4.5
    for trivial in (last, by_compute):
        other_7b, other_13b = errors(trivial, measure)
        assert other_7b > 1.5 * of_7b and other_13b > 1.5 * of_13b


def test_only_a_compute_law_with_a_constant_has_lower_errors() -> None:
    means = {
        method: [fmean(of_model) for of_model in zip(*(errors(method, measure) for measure in MEASURES), strict=True)]
        for method in (by_law, by_compute_with_constant, by_compute, last)
    }
    assert means[by_law] == pytest.approx([4.8, 6.3], abs=0.1)
    assert means[by_compute_with_constant] == pytest.approx([3.4, 4.7], abs=0.1)
    assert means[by_compute] == pytest.approx([9.8, 12.6], abs=0.1)
    assert means[last] == pytest.approx([17.8, 20.1], abs=0.1)


@pytest.mark.slow
@pytest.mark.thorough
def test_intervals_cover_the_measured_values_of_both_models() -> None:
    held, reaches = 0, []
    for measure in MEASURES:
        for N, D, loss in points(LARGE, measure):
            predicted = fitted(measure, draws=100).predict(N, D)
            held += predicted.low <= loss <= predicted.high
            reaches.append((predicted.high - predicted.low) / 2 / loss)
    assert 15 <= held <= 18, "of 95 %, fewer than 15 of 18 happen once in a hundred times"
    assert 0.06 < median(reaches) < 0.1
