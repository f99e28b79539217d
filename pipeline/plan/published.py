"""What whole trainings took that others published, beside which a plan stands."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.plan.formulas import training_flops

PEAKS = {"H100": 989.4e12, "A100": 312e12}  # dense bf16: NVIDIA, data sheets
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16_384)
"""Unexpected interruptions of 54 days on 16,384 H100: Grattafiori et al. 2024 (The Llama 3 Herd of Models), table 5."""


class Training(NamedTuple):
    """A whole training: its own account of devices times hours."""

    name: str
    parameters: float
    tokens: float
    device: str
    device_hours: float
    source: str

    @property
    def utilization(self) -> float:
        """Return the share of the peak in 6 N D over all hours, whatever was done in them."""
        return training_flops(self.parameters, self.tokens) / (self.device_hours * 3600 * PEAKS[self.device])


_LLAMA2 = "https://github.com/meta-llama/llama, MODEL_CARD.md"
_LLAMA3 = "https://github.com/meta-llama/llama3, MODEL_CARD.md"
_LLAMA31 = "https://github.com/meta-llama/llama-models, models/llama3_1/MODEL_CARD.md"
TRAININGS = (
    Training("TinyLlama 1.1B", 1.1e9, 300e9, "A100", 3456, "https://github.com/jzhang38/TinyLlama"),
    Training(
        "Pythia 1.0B", 1.01e9, 300e9, "A100", 4830, "Biderman et al. 2023, by https://github.com/jzhang38/TinyLlama"
    ),
    Training("Llama 2 7B", 6.74e9, 2e12, "A100", 184_320, _LLAMA2),
    Training("Llama 2 13B", 13.0e9, 2e12, "A100", 368_640, _LLAMA2),
    Training("Llama 2 70B", 69.0e9, 2e12, "A100", 1_720_320, _LLAMA2),
    Training("Llama 3 8B", 8.03e9, 15e12, "H100", 1.3e6, _LLAMA3),
    Training("Llama 3 70B", 70.6e9, 15e12, "H100", 6.4e6, _LLAMA3),
    Training("Llama 3.1 8B", 8.03e9, 15e12, "H100", 1.46e6, _LLAMA31),
    Training("Llama 3.1 70B", 70.6e9, 15e12, "H100", 7.0e6, _LLAMA31),
    Training("Llama 3.1 405B", 405.9e9, 15.6e12, "H100", 30.84e6, _LLAMA31),
    Training("GPT-NL 30B", 29.82e9, 450e9, "H100", 88 * 34 * 24, "GPT-NL (TNO, SURF, NFI): 34 days on 88 H100"),
)


def alike(parameters: float) -> list[Training]:
    """Return the trainings of models of half to twice the size; of no such size, the nearest one."""
    found = [one for one in TRAININGS if 1 / 2 <= one.parameters / parameters <= 2]
    return found or [min(TRAININGS, key=lambda one: max(one.parameters / parameters, parameters / one.parameters))]
