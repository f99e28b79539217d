"""Shapes with a name: the models of Qwen3 with experts.

Layers, heads and experts are those of Yang et al. 2025 (Qwen3 Technical Report, arXiv 2505.09388), table 2; widths,
angles and epsilon those of config.json of Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B on Hugging Face.
"""

from __future__ import annotations

from typing import Any

_ALL = {"rope_theta": 1_000_000.0, "norm_epsilon": 1e-6, "experts": 128, "experts_per_token": 8}


def _shape(layers: int, width: int, expert_width: int, heads: int) -> dict[str, Any]:
    return {
        **_ALL,
        "layers": layers,
        "width": width,
        "feed_forward_width": expert_width,
        "heads": heads,
        "key_value_heads": 4,
        "head_width": 128,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "qwen3-moe": _ALL,
    "qwen3-30b-a3b": _shape(48, 2048, 768, 32),
    "qwen3-235b-a22b": _shape(94, 4096, 1536, 64),
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""
