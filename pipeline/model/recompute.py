"""Activation recomputation (Chen et al. 2016): what a module computes is forgotten and computed again when its gradient
is due.

Full keeps a block's input only. Selective keeps, beside it, the results of the matrix products and of the attention,
which take the time, and computes norms, rotations, activations and sums again (Korthikanti et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.attention.varlen  # declares its operator
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Recomputation = Literal["none", "selective", "full"]

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
}


def _policy(context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def recomputed(function: Callable[..., Tensor], *arguments: Tensor | None, how: Recomputation = "full") -> Tensor:
    """Return function(*arguments), its intermediate results kept or not as `how` says; it may hold no randomness."""
    if how == "none" or not torch.is_grad_enabled():
        return function(*arguments)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    result: Tensor = checkpoint(function, *arguments, **options)
    return result
