"""Compiles functions with numba, and caches the machine code on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])
# A cache file of another version may name a class or module that no longer exists.
_DAMAGED = (OSError, EOFError, UnpicklingError, ValueError, AttributeError, ImportError)


_FunctionCache: Any = FunctionCache  # numba has no types


class _Cache(_FunctionCache):  # type: ignore[misc]
    """A cache that ignores damaged or unwritable files: the function is compiled again."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except _DAMAGED:
            with contextlib.suppress(*_DAMAGED):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        # On a busy machine numba may have no machine code yet of a called function: another job saves it.
        with contextlib.suppress(*_DAMAGED, RuntimeError):
            super().save_overload(signature, data)


def cached_njit(function: Function) -> Function:
    """Compile a function with `numba.njit`; its code is cached next to its module or, if read-only, in the home folder.

    Compiled functions that it calls must be in the same module, because the cache notices changes of that module only.
    """
    dispatcher = njit(function)
    with contextlib.suppress(RuntimeError):  # neither folder is writable
        dispatcher._cache = _Cache(dispatcher.py_func)
    return cast(Function, dispatcher)
