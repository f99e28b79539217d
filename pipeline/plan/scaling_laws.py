"""Predict the loss of a model from its parameters and tokens by scaling laws, fitted or published."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pipeline.core.confidence_intervals import CONFIDENCE_LEVEL
from pipeline.core.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count

MINIMUM_EXPONENT = 1e-3  # below it, a thousand times as many change the term by less than 1 %
LossUnit = Literal["nats per token", "bits per byte"]


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, N parameters and D tokens (Hoffmann et al. 2022, equation 2).

    `parameters` and `tokens` are the fitted ranges, where they are known. D counts tokens that are read once: the law
    holds for fresh text only.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    unit: LossUnit
    parameters: tuple[float, float] = (0.0, math.inf)
    tokens: tuple[float, float] = (0.0, math.inf)

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the expected loss in the law's unit."""
        return float(self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta)

    def describe_extrapolation(self, parameters: float, tokens: float) -> list[str]:
        """Return by which factor parameters and tokens are outside the fitted range; nothing for those within."""
        factors = []
        for noun, value, (low, high) in (("parameters", parameters, self.parameters), ("tokens", tokens, self.tokens)):
            if not low <= value <= high:
                factor, side = (low / value, "below") if value < low else (value / high, "above")
                factors.append(f"{noun} {factor:.3g} x {side}")
        return factors

    def compute_optimal(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the lowest loss for 6 N D = `flops` (Hoffmann et al. 2022, equation 4).

        Raises:
            InputError: the loss does not fall with parameters or with tokens, so no split is optimal.
        """
        for noun, exponent in (("parameters", self.alpha), ("tokens", self.beta)):
            if exponent < MINIMUM_EXPONENT:
                raise InputError(
                    f"the fitted loss does not fall with more {noun}, so no split of compute is optimal: vary them more"
                )
        total = self.alpha + self.beta
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / total)
        return ratio * (flops / 6) ** (self.beta / total), (flops / 6) ** (self.alpha / total) / ratio


# Published laws: the loss of a model with its interval, and a learning rate and batch size to begin with.
#
# The losses hold for their own tokenizers and English text: nats per token of 32,000 pieces of MassiveText (Hoffmann
# et al.) or of GPT-2's tokens of C4 (Muennighoff et al.). They give the order of magnitude only.


NATS: LossUnit = "nats per token"
PUBLISHED_LAWS_SCOPE = (
    "Expected losses come from published scaling laws, for their own tokenizers and English text that is read once. "
    "They give an order of magnitude; a ladder of small models on your text predicts better (`polder ladder`)."
)
FORMULAS = {
    "expected_loss_nats_per_token": "E + A / parameters^alpha + B / tokens^beta, the middle one of three published "
    "laws (Hoffmann et al. 2022, approach 3; Besiroglu et al. 2024; Muennighoff et al. 2023, C4): of their own "
    "tokenizers and English text, for fresh text alone; unknown where it is no better than a uniform guess",
    "low_expected_loss_nats_per_token": "the least of the three laws, with the published standard errors of E, alpha "
    "and beta (2.5 % of draws)",
    "high_expected_loss_nats_per_token": "the most of the three laws, with the same (97.5 %)",
    "expected_loss_outside_range": "by which factor parameters or tokens are outside of the 5.7e7 to 1.6e10 "
    "parameters and 8.2e8 to 3.2e11 tokens that the law of Besiroglu et al. 2024 was fitted on",
    "step_law_learning_rate": "1.79 x parameters without embedding and output^-0.713 x tokens^0.307 (Li et al. 2025, "
    "Step Law, fitted on models of 59 million to a billion such parameters with up to 1e11 tokens)",
    "step_law_batch_tokens": "0.58 x tokens^0.571, in tokens (the same)",
}


@dataclass(frozen=True)
class StandardErrors:
    """Published standard errors of a law's parameters."""

    E: float
    alpha: float
    beta: float


# Hoffmann et al. 2022 (Training Compute-Optimal Large Language Models), equation 10, as printed, rounded; its intervals
# are too narrow to be so (Besiroglu et al. 2024). The ranges are those of its abstract.
HOFFMANN = ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28, NATS, parameters=(7e7, 1.6e10), tokens=(5e9, 5e11))
# Besiroglu et al. 2024 (Chinchilla Scaling: A replication attempt), table 1: fitted on 240 points of Hoffmann's figure
# 4, with the range of these. The errors come from their notebook (github.com/epoch-research/analyzing-chinchilla);
# the table rounds them.
BESIROGLU = ScalingLaw(
    1.8172, 482.01, 2085.43, 0.3478, 0.3658, NATS, parameters=(5.7e7, 1.6e10), tokens=(8.2e8, 3.2e11)
)
BESIROGLU_ERRORS = StandardErrors(E=0.0257, alpha=0.0154, beta=0.0206)
# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models), appendix B: the law of fresh text, fitted on 54
# runs on C4 with one exponent for both.
MUENNIGHOFF = ScalingLaw(1.87, 521.0, 1488.0, 0.353, 0.353, NATS)
PUBLISHED_LAWS: tuple[tuple[ScalingLaw, StandardErrors | None], ...] = (
    (HOFFMANN, None),
    (BESIROGLU, BESIROGLU_ERRORS),
    (MUENNIGHOFF, None),
)
DRAWS, SEED = 1000, 0


def predict_by_published_laws(architecture: Architecture, vocabulary_size: int, tokens: int) -> dict[str, Any]:
    """Return the expected loss of a model and the Step Law's learning rate and batch size, by the keys of `FORMULAS`.

    The laws of the loss count all parameters, as Hoffmann et al. do, the Step Law those without embedding and output.
    The loss is None where the laws predict no less than a uniform guess over the vocabulary has.
    """
    parameters, without_embedding = (parameter_count(architecture, size) for size in (vocabulary_size, 0))
    ranges = [_estimate_loss_interval(law, errors, parameters, tokens) for law, errors in PUBLISHED_LAWS]
    loss = sorted(law.loss(parameters, tokens) for law, _ in PUBLISHED_LAWS)[len(PUBLISHED_LAWS) // 2]
    known = loss < math.log(vocabulary_size)
    return {
        "expected_loss_nats_per_token": loss if known else None,
        "low_expected_loss_nats_per_token": min(low for low, _ in ranges) if known else None,
        "high_expected_loss_nats_per_token": max(high for _, high in ranges) if known else None,
        "expected_loss_outside_range": BESIROGLU.describe_extrapolation(parameters, tokens),
        "step_law_learning_rate": 1.79 * without_embedding**-0.713 * tokens**0.307,
        "step_law_batch_tokens": 0.58 * tokens**0.571,
    }


def _estimate_loss_interval(
    law: ScalingLaw, errors: StandardErrors | None, parameters: float, tokens: float
) -> tuple[float, float]:
    """Return the 95 % interval of a law's loss by its standard errors; the loss alone where none are published.

    A and B are not drawn independently: the fit fixes both terms in the middle of its runs, so A moves with alpha and B
    with beta. This reproduces their published errors, 124.6 and 1293, within a quarter; independent draws would give an
    interval of more than a nat.
    """
    if errors is None:
        return law.loss(parameters, tokens), law.loss(parameters, tokens)
    generator = np.random.default_rng(SEED)
    E_R, alpha_R, beta_R = (
        generator.normal(getattr(law, letter), getattr(errors, letter), DRAWS) for letter in ("E", "alpha", "beta")
    )
    middle, middle_tokens = (math.sqrt(low * high) for low, high in (law.parameters, law.tokens))
    of_parameters_R = law.A * middle**-law.alpha * (parameters / middle) ** -alpha_R
    of_tokens_R = law.B * middle_tokens**-law.beta * (tokens / middle_tokens) ** -beta_R
    low, high = np.quantile(
        E_R + of_parameters_R + of_tokens_R, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2]
    )
    return float(low), float(high)
