"""Compiles functions over arrays to machine code with numba, once for a machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])
# A file that was kept by another version may name a class or a module that is no more.
_DAMAGED = (OSError, EOFError, UnpicklingError, ValueError, AttributeError, ImportError)


_FunctionCache: Any = FunctionCache  # numba has no types


class _Cache(_FunctionCache):  # type: ignore[misc]
    """A cache whose damaged or unwritable files are as good as none: the function is compiled again."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except _DAMAGED:
            with contextlib.suppress(*_DAMAGED):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        # On a busy machine numba may have no machine code yet of a function that this one calls: another job keeps it.
        with contextlib.suppress(*_DAMAGED, RuntimeError):
            super().save_overload(signature, data)


def cached_njit(function: Function) -> Function:
    """Return the compiled function; its code is kept beside its module or, where that is read-only, in the home folder.

    What it calls that is compiled as well has to be of the same module: only that module's changes are noticed.
    """
    dispatcher = njit(function)
    with contextlib.suppress(RuntimeError):  # neither can be written to
        dispatcher._cache = _Cache(dispatcher.py_func)
    return cast(Function, dispatcher)
