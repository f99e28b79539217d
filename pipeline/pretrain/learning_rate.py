"""Compute the learning rate of a training step."""

from __future__ import annotations

import math

from pipeline.pretrain.settings import Training


def learning_rate_at(training: Training, step: int) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then cosine or constant with linear decay.

    cosine: Loshchilov & Hutter 2017, without restarts; wsd (warm-up, stable, decay): Hu et al. 2024. Both end at
    `minimum_learning_rate_fraction` of the peak in the last step.
    """
    peak, floor = training.learning_rate, training.minimum_learning_rate_fraction
    if step <= training.warmup_steps:
        return peak * step / training.warmup_steps
    if training.schedule == "wsd":
        decay_steps = max(1, round(training.decay_fraction * training.steps))
        progress = max(0.0, 1 - (training.steps - step) / decay_steps)
        return peak * (1 - (1 - floor) * progress)
    progress = (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)
