"""Whether each kernel gives the same bits every time: on a GPU that is a choice and has a price."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline.core.errors import InputError

_NONE_IS_DETERMINISTIC = "does not have a deterministic implementation"


def set_determinism(deterministic: bool) -> None:
    """Let PyTorch take no kernel but those that give the same bits every time, or any.

    It has a middle way (`warn_only`), under which attention's backward kernels, FlashAttention's and cuDNN's, add in
    any order, so that nothing is gained from it. New memory is not filled: nothing here reads what it has not written.
    """
    if deterministic:  # cuBLAS: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def is_deterministic() -> bool:
    """Return whether no kernels are taken here but those that give the same bits every time."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


@contextmanager
def explained(key: str) -> Iterator[None]:
    """Turn the lack of a deterministic kernel into an InputError that names the key which lets others be taken."""
    try:
        yield
    except RuntimeError as error:
        if _NONE_IS_DETERMINISTIC not in str(error):
            raise
        raise InputError(
            f"{str(error).split()[0]} has no kernel on this device that gives the same bits every time: set {key} to "
            "false, which the record will say"
        ) from error
