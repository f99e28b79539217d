"""Compiles functions over arrays to machine code with numba, once for a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the compiled function; its code is kept beside its module or, where that is read-only, in the home folder.

    What it calls that is compiled as well has to be of the same module: only that module's changes are noticed.
    """
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # neither can be written to
        return cast(Function, njit(function))
