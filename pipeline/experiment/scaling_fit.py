"""Fit a scaling law to finished runs, with bootstrap intervals, and predict the loss of another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from pipeline.core.confidence_intervals import CONFIDENCE_LEVEL
from pipeline.core.errors import InputError
from pipeline.plan.scaling_laws import LossUnit, ScalingLaw

Floats = NDArray[np.float64]

HUBER_DELTA = 1e-3
"""Of Huber's loss: it is quadratic in residuals of the log loss up to here, and linear beyond."""
PARAMETERS = ("E", "A", "B", "alpha", "beta")
PARAMETER_COUNT = len(PARAMETERS)
BOOTSTRAP_DRAWS = 400
LARGEST_LOG_GAP = 20.0  # nats that a term's logarithm may lie below that of the least loss: it is then nothing
LARGEST_EXPONENT = 3.0  # exponent
# The starts of the search: the shares of the loss from parameters and from tokens, and both exponents.
SHARES = ((0.1, 0.1), (0.4, 0.1), (0.1, 0.4))
EXPONENTS = (0.2, 0.8)


class ScalingPoint(NamedTuple):
    """A finished run: its parameters, training tokens, and final loss."""

    parameters: float
    tokens: float
    loss: float


class LossPrediction(NamedTuple):
    """The predicted loss of a run, its 95 % interval, and the quantities outside of the fitted range."""

    loss: float
    low: float
    high: float
    outside: list[str]


@dataclass(frozen=True)
class ScalingFit:
    """A law with its bootstrap: a row for each draw, in the order of `PARAMETERS`, and its residual."""

    law: ScalingLaw
    residuals_N: Floats
    draws_RP: Floats
    drawn_residuals_R: Floats

    def interval(self, letter: str) -> tuple[float, float]:
        """Return the 95 % interval of a parameter of the law."""
        return _interval(self.draws_RP[:, PARAMETERS.index(letter)])

    def as_json(self) -> dict[str, Any]:
        """Return the unit and each parameter of the law with its 95 % interval."""
        intervals = {letter: self.interval(letter) for letter in PARAMETERS}
        values = {
            letter: {"value": getattr(self.law, letter), "low": low, "high": high}
            for letter, (low, high) in intervals.items()
        }
        return {"unit": self.law.unit, **values}

    def predict(self, parameters: float, tokens: float) -> LossPrediction:
        """Predict the loss of a run; the interval includes the law's error and the scatter of single runs."""
        E, A, B, alpha, beta = self.draws_RP.T
        losses_R = (E + A * parameters**-alpha + B * tokens**-beta) * np.exp(self.drawn_residuals_R)
        law = self.law
        return LossPrediction(
            law.loss(parameters, tokens), *_interval(losses_R), law.describe_extrapolation(parameters, tokens)
        )


def fit_scaling_law(
    points: Sequence[ScalingPoint], unit: LossUnit, *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS
) -> ScalingFit:
    """Return the law L(N, D) = E + A / N^alpha + B / D^beta of finished runs, whose losses are in `unit`.

    The sum of Huber's loss of log L is made least by L-BFGS from a grid of starts (Hoffmann et al. 2022, appendix D.2),
    until it no longer falls: stopped early it is biased (Besiroglu et al. 2024). N and D are centered, so that the five
    parameters of the search depend less on one another. The runs were chosen and not drawn, so the bootstrap keeps
    them, draws their scatter and fits again (Davison and Hinkley, Bootstrap Methods, 1997, section 6.3). The scatter is
    normal, with n - 5 degrees of freedom, and its size is drawn too: the fit passes through five of a few points
    exactly, so that residuals drawn again would be too small. The same points and seed give the same numbers.

    Raises:
        InputError: the runs cannot determine the five parameters.
    """
    _check_points(points)
    parameters_N, tokens_N, losses_N = np.array(points, dtype=np.float64).T
    centres = np.log(parameters_N).mean(), np.log(tokens_N).mean()
    x_N, y_N, log_N = np.log(parameters_N) - centres[0], np.log(tokens_N) - centres[1], np.log(losses_N)
    generator = np.random.default_rng(seed)
    with threadpool_limits(limits=1):  # sums of a few numbers: threads would wait for one another
        coefficients_P = min(
            (_search(start, x_N, y_N, log_N) for start in _search_starts(log_N)), key=lambda result: result[0]
        )[1]
        fitted_N = _log_predicted_loss(coefficients_P, x_N, y_N)[0]
        residuals_N = log_N - fitted_N
        freedom = len(points) - PARAMETER_COUNT
        scatter_R = np.sqrt((residuals_N**2).sum() / generator.chisquare(freedom, draws))
        drawn_RN = scatter_R[:, None] * generator.standard_normal((draws, len(points)))
        drawn_RP = np.array([_search(coefficients_P, x_N, y_N, fitted_N + drawn_N)[1] for drawn_N in drawn_RN])
    E, A, B, alpha, beta = map(float, _uncenter(coefficients_P[None], centres)[0])
    law = ScalingLaw(
        *(E, A, B, alpha, beta, unit),
        parameters=(float(parameters_N.min()), float(parameters_N.max())),
        tokens=(float(tokens_N.min()), float(tokens_N.max())),
    )
    return ScalingFit(law, residuals_N, _uncenter(drawn_RP, centres), scatter_R * generator.standard_normal(draws))


def _check_points(points: Sequence[ScalingPoint]) -> None:
    """Refuse points that cannot determine five parameters."""
    if len(points) <= PARAMETER_COUNT:
        raise InputError(
            f"a scaling law has {PARAMETER_COUNT} parameters and needs {PARAMETER_COUNT + 1} runs at least: "
            f"here are {len(points)}"
        )
    if not (np.isfinite(points).all() and (np.array(points) > 0).all()):
        raise InputError("a scaling law needs parameters, tokens and losses above 0: leave out runs that diverged")
    for noun, values in (("parameters", {p.parameters for p in points}), ("tokens", {p.tokens for p in points})):
        if len(values) < 3:
            raise InputError(
                f"a scaling law needs runs of 3 numbers of {noun} at least: here are {len(values)}; vary the {noun} too"
            )


def _search_starts(log_N: Floats) -> list[Floats]:
    """Return the starts of the search: log E, the logs of both terms at the center, and the exponents."""
    logs = [np.log([1 - of_N - of_D, of_N, of_D]) + log_N.mean() for of_N, of_D in SHARES]
    return [np.array([*log, *exponents]) for log in logs for exponents in product(EXPONENTS, EXPONENTS)]


def _log_predicted_loss(coefficients_P: Floats, x_N: Floats, y_N: Floats) -> tuple[Floats, Floats]:
    """Return the log of the law's loss, (N,), by log-sum-exp, and each term's share of the loss, (3, N)."""
    e, a, b, alpha, beta = coefficients_P
    terms_3N = np.stack([np.full_like(x_N, e), a - alpha * x_N, b - beta * y_N])
    largest_N = terms_3N.max(axis=0)
    shares_3N = np.exp(terms_3N - largest_N)
    sums_N = shares_3N.sum(axis=0)
    return largest_N + np.log(sums_N), shares_3N / sums_N


def _objective(coefficients_P: Floats, x_N: Floats, y_N: Floats, log_N: Floats) -> tuple[float, Floats]:
    """Return the sum of Huber's loss, in units of DELTA squared so that its falls are no roundings, and its slope."""
    fitted_N, shares_3N = _log_predicted_loss(coefficients_P, x_N, y_N)
    residuals_N = (log_N - fitted_N) / HUBER_DELTA
    sizes_N = np.abs(residuals_N)
    huber_N = np.where(sizes_N <= 1, residuals_N**2 / 2, sizes_N - 0.5)
    slopes_3N = shares_3N * -np.clip(residuals_N, -1, 1) / HUBER_DELTA
    of_exponents = [-(slopes_3N[1] * x_N).sum(), -(slopes_3N[2] * y_N).sum()]
    return float(huber_N.sum()), np.array([*slopes_3N.sum(axis=1), *of_exponents])


def _search(start_P: Floats, x_N: Floats, y_N: Floats, log_N: Floats) -> tuple[float, Floats]:
    """Return the least sum of Huber's loss that L-BFGS finds from a start, and the parameters of the search there."""
    least, most = float(log_N.min()), float(log_N.max())
    logs = [(least - LARGEST_LOG_GAP, least), *[(least - LARGEST_LOG_GAP, most)] * 2]
    result = minimize(
        _objective,
        start_P,
        args=(x_N, y_N, log_N),
        jac=True,
        method="L-BFGS-B",
        bounds=[*logs, *[(0.0, LARGEST_EXPONENT)] * 2],
        options={"maxiter": 2000, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-6},
    )
    return float(result.fun), np.asarray(result.x)


def _uncenter(coefficients_RP: Floats, centres: tuple[float, float]) -> Floats:
    """Return E, A, B, alpha, beta from rows of the search, with the logs of E and of both terms at the center."""
    logs_R3 = coefficients_RP[:, :3].copy()
    logs_R3[:, 1] += coefficients_RP[:, 3] * centres[0]
    logs_R3[:, 2] += coefficients_RP[:, 4] * centres[1]
    return np.column_stack([np.exp(logs_R3), coefficients_RP[:, 3:]])


def _interval(values_R: Floats) -> tuple[float, float]:
    low, high = np.quantile(values_R, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)
