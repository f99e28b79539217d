"""The Qwen3 architecture with a mixture of experts in each layer; declared and divided as Llama's folder is."""

from pipeline.model.architectures import Shape
from pipeline.model.qwen3_moe.presets import PRESETS
from pipeline.model.qwen3_moe.size import activation_bytes, active_parameter_count, flops_per_token, parameter_count

SHAPE = Shape(PRESETS, parameter_count, flops_per_token, activation_bytes, active_parameter_count)
