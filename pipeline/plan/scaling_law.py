"""A scaling law: the loss that a model of so many parameters reaches after so many tokens, and where it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import InputError

FLAT = 1e-3  # exponent: a thousand times as many change the term by less than a hundredth
Unit = Literal["nats per token", "bits per byte"]


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, N parameters and D tokens (Hoffmann et al. 2022, equation 2).

    `parameters` and `tokens` are the least and the most that it was fitted on, where that is known. It knows fresh text
    alone: D counts tokens that are read once.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    unit: Unit
    parameters: tuple[float, float] = (0.0, math.inf)
    tokens: tuple[float, float] = (0.0, math.inf)

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the expected loss in the law's unit."""
        return float(self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta)

    def outside(self, parameters: float, tokens: float) -> list[str]:
        """Return by which factor parameters and tokens lie outside of the fitted range; nothing where within."""
        found = []
        for noun, value, (low, high) in (("parameters", parameters, self.parameters), ("tokens", tokens, self.tokens)):
            if not low <= value <= high:
                factor, side = (low / value, "below") if value < low else (value / high, "above")
                found.append(f"{noun} {factor:.3g} x {side}")
        return found

    def compute_optimal(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens of least loss with 6 N D = `flops` (Hoffmann et al. 2022, equation 4).

        Raises:
            InputError: the loss does not fall with parameters or with tokens, so that no split is best.
        """
        for noun, exponent in (("parameters", self.alpha), ("tokens", self.beta)):
            if exponent < FLAT:
                raise InputError(
                    f"the law does not fall with {noun}, so that no split of compute is best: vary them more"
                )
        total = self.alpha + self.beta
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / total)
        return ratio * (flops / 6) ** (self.beta / total), (flops / 6) ** (self.alpha / total) / ratio
