"""The Llama 3 architecture: what a plan knows of it is declared here, without torch, and the rest in `network`."""

from pipeline.model.architectures import Shape
from pipeline.model.llama.presets import PRESETS
from pipeline.model.llama.size import activation_bytes, flops_per_token, parameter_count

SHAPE = Shape(PRESETS, parameter_count, flops_per_token, activation_bytes)
