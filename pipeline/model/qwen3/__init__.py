"""The Qwen3 architecture, a Llama that normalises queries and keys; declared and divided as Llama's folder is."""

from pipeline.model.architectures import Shape
from pipeline.model.llama.size import flops_per_token
from pipeline.model.qwen3.presets import PRESETS
from pipeline.model.qwen3.size import activation_bytes, parameter_count

SHAPE = Shape(PRESETS, parameter_count, flops_per_token, activation_bytes)
