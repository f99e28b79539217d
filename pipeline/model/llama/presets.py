"""Shapes with a name; llama3 is none, but the default of the configuration.

llama3-1b and -3b are those of Llama 3.2, -8b and -70b those of Llama 3 (Grattafiori et al. 2024); gptnl-8b and
gptnl-30b those that GPT-NL trained. mistral-7b is that of Jiang et al. 2023 (Mistral 7B, arXiv 2310.06825), table 1.
opengptx-13b6 is a Llama with the 13.6 billion parameters of OpenGPT-X's model: 40 layers, which two and four pipeline
stages share equally, of 5,120 in 40 heads of 128, 8 key-value heads, which tensor parallelism over 2, 4 or 8 devices
divides, and a feed-forward width that brings the sum to 13.58 billion with Llama 3's vocabulary and is, as all the
other sizes, a multiple of 128, the tile of a matrix unit (Anthony et al. 2024).
"""

from __future__ import annotations

from typing import Any


def _shape(layers: int, width: int, feed_forward_width: int, heads: int, key_value_heads: int) -> dict[str, Any]:
    return {
        "layers": layers,
        "width": width,
        "feed_forward_width": feed_forward_width,
        "heads": heads,
        "key_value_heads": key_value_heads,
    }


# Llama 3.2 came out at 131,072 tokens, stretched from 8,192, and shares its table of embeddings.
_SMALL = {"tie_embeddings": True, "rope_scaling": {"factor": 32.0, "original_context_length": 8192}}

PRESETS: dict[str, dict[str, Any]] = {
    "llama3": {},
    "llama3-1b": {**_shape(16, 2048, 8192, 32, 8), **_SMALL},
    "llama3-3b": {**_shape(28, 3072, 8192, 24, 8), **_SMALL},
    "llama3-8b": _shape(32, 4096, 14336, 32, 8),
    "llama3-70b": _shape(80, 8192, 28672, 64, 8),
    "gptnl-8b": _shape(32, 4096, 14336, 32, 8),
    "gptnl-30b": _shape(60, 6656, 17920, 52, 13),
    "opengptx-13b6": _shape(40, 5120, 15872, 40, 8),
    "mistral-7b": {**_shape(32, 4096, 14336, 32, 8), "rope_theta": 10_000.0, "window": 4096},
    "demo": {"layers": 4, "width": 128, "heads": 4, "key_value_heads": 2},
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""
