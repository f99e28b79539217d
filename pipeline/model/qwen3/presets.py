"""Shapes with a name: the dense models of Qwen3 that one node or less trains.

Layers, heads and ties are those of Yang et al. 2025 (Qwen3 Technical Report, arXiv 2505.09388), table 1; widths, angles
and epsilon those of config.json of Qwen/Qwen3-0.6B, -1.7B, -4B and -8B on Hugging Face. Their heads are 128 wide, which
is not the width divided by the heads in the smallest and in the third.
"""

from __future__ import annotations

from typing import Any

_ALL = {"rope_theta": 1_000_000.0, "norm_epsilon": 1e-6}


def _shape(layers: int, width: int, feed_forward_width: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        **_ALL,
        "layers": layers,
        "width": width,
        "feed_forward_width": feed_forward_width,
        "heads": heads,
        "key_value_heads": 8,
        "head_width": 128,
        "tie_embeddings": tied,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "qwen3": _ALL,
    "qwen3-0.6b": _shape(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": _shape(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": _shape(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": _shape(36, 4096, 12288, 32, tied=False),
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""
