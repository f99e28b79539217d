"""Set options of speed, memory and determinism on a model before a strategy shards it.

The strategy wraps compilation, which wraps recomputation. No option changes a parameter's name.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import nn
from torch.nn.attention import SDPBackend, activate_flash_attention_impl

from pipeline.core.errors import InputError
from pipeline.model.attention import list_kernels
from pipeline.model.decoder import Block, Decoder, Recomputation

FLASH_ATTENTION = {"FA3": ("flash_attn_interface", (9,)), "FA4": ("flash_attn.cute", (9, 10))}
"""By PyTorch's names the module and the major compute capabilities, the first choice first: FlashAttention-3 (Shah et
al. 2024) for Hopper, 4 (flash-attn-4) for Hopper and Blackwell. Neither is in a lock."""
FLOAT8_CAPABILITY = (8, 9)
FLOAT8_MULTIPLE = 16


def set_execution_options(
    model: Decoder,
    device: torch.device,
    *,
    recomputation: Recomputation = "none",
    compile: bool = False,
    float8: bool = False,
    tiled_feed_forward: int = 1,
    flash_attention: bool = True,
) -> None:
    """Set how the model's blocks compute on a device; the model may still be on the meta device.

    Args:
        tiled_feed_forward: parts of the sequence in the feed-forward block.
        flash_attention: false computes and keeps the scores of all pairs of positions.

    Raises:
        InputError: the device does not support float8.
    """
    if device.type == "cuda":
        _enable_flash_attention(device)
    if float8:
        check_float8(device)
        _use_float8(model)
    model.output.compiled = compile
    for block in model.blocks:
        if not isinstance(block, Block):
            continue  # on another pipeline rank
        block.recomputation = recomputation
        block.attention.kernels = list_kernels(device) if flash_attention else [SDPBackend.MATH]
        block.feed_forward.tiles = tiled_feed_forward
        if compile:
            block.compile()


def check_float8(device: torch.device) -> None:
    """Check that a device multiplies matrices in 8 bits and that torchao is installed.

    Raises:
        InputError: one of them is missing.
    """
    hopper = device.type == "cuda" and torch.version.hip is None
    if not hopper or torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
        raise InputError(
            f"training.float8 needs an NVIDIA GPU of compute capability 8.9 or more, but this device is {device.type}: "
            "set float8 to false or use such a GPU"
        )
    if importlib.util.find_spec("torchao") is None:
        raise InputError("training.float8 needs the package torchao: install it or set float8 to false")


def _use_float8(model: Decoder) -> None:
    """Run the blocks' matrix products in float8 with one scale per tensor (Micikevicius et al. 2022).

    Weights are cast at each use. Matrices with sides that are not multiples of 16 stay in their precision.
    """
    from torchao.float8 import convert_to_float8_training

    def has_float8_sizes(module: nn.Module, name: str) -> bool:
        sides = (module.in_features, module.out_features) if isinstance(module, nn.Linear) else (1,)
        return not any(side % FLOAT8_MULTIPLE for side in sides)

    convert_to_float8_training(model.blocks, module_filter_fn=has_float8_sizes)


def find_flash_attention(capability: int) -> str | None:
    """Return PyTorch's name of the newer FlashAttention that is installed for a major compute capability, or None."""
    for name, (module, capabilities) in FLASH_ATTENTION.items():
        with suppress(ImportError):  # the package around the module is missing, or made for another PyTorch
            if capability in capabilities and importlib.util.find_spec(module):
                return name
    return None


def _enable_flash_attention(device: torch.device) -> None:
    """Use FlashAttention-3 or 4 where one is installed for this GPU; both have deterministic backward kernels."""
    name = None if torch.version.hip else find_flash_attention(torch.cuda.get_device_capability(device)[0])
    if name:
        activate_flash_attention_impl(name)


_NO_DETERMINISTIC_KERNEL = "does not have a deterministic implementation"


def set_determinism(deterministic: bool) -> None:
    """Let PyTorch use deterministic kernels only, or any.

    `warn_only` is no option, because attention's backward kernels would then add in any order. New memory is not
    filled, because nothing reads it before writing it.
    """
    if deterministic:  # cuBLAS: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def is_deterministic() -> bool:
    """Return whether PyTorch uses deterministic kernels only."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


@contextmanager
def missing_kernel_as_input_error(key: str) -> Iterator[None]:
    """Turn the lack of a deterministic kernel into an InputError with the configuration key that allows others.

    Args:
        key: the configuration key.
    """
    try:
        yield
    except RuntimeError as error:
        if _NO_DETERMINISTIC_KERNEL not in str(error):
            raise
        raise InputError(
            f"{str(error).split()[0]} has no deterministic kernel on this device: set {key} to false, which the record "
            "shows"
        ) from error
