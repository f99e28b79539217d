"""A second architecture: attention and feed-forward read the same normalized input in parallel in each block."""

from pipeline.model import llama_shape
from pipeline.model.architectures import ArchitectureFormulas
from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    return llama_shape.parameter_count(architecture, vocabulary_size) - architecture.layers * architecture.width


PRESETS = {"second": {}, "second-tiny": {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 2}}
FORMULAS = ArchitectureFormulas(PRESETS, parameter_count, llama_shape.flops_per_token, llama_shape.activation_bytes)
