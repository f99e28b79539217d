"""Separate failures of a task, which is then skipped, from all others, which end the evaluation."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import is_disk_full

if TYPE_CHECKING:
    from lm_eval.api.task import Task


MACHINE_ERRNOS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)
MACHINE_ERRORS = ("CUDA error", "HIP error", "NCCL error", "DefaultCPUAllocator: can't allocate")


class ProcessFailure(Exception):
    """An error of a task in another process; every process gets the same one."""


class SharedFailure(InputError):
    """A failure of a task that every process of the evaluation knows."""


def is_task_error(error: BaseException | None) -> bool:
    """Return whether a task may have caused an exception; it causes no failure of memory, disk, device or network."""
    import torch
    from torch.distributed import DistError

    if error is None:
        return True
    machine_errors = MemoryError | torch.OutOfMemoryError | torch.AcceleratorError | DistError
    if isinstance(error, machine_errors) or is_disk_full(error):
        return False
    if isinstance(error, OSError) and error.errno in MACHINE_ERRNOS:
        return False
    if any(text in str(error) for text in MACHINE_ERRORS):
        return False
    return is_task_error(error.__cause__ or (None if error.__suppress_context__ else error.__context__))


def gather_values_across_processes(value: Any, failure: str | None = None) -> list[Any]:
    """Gather a value from all processes of the evaluation, in the order of their ranks.

    Raises:
        ProcessFailure: in every process, where one of them has a failure.
    """
    import torch.distributed as dist

    shares: list[Any] = [(value, failure)]
    if dist.is_initialized():
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, (value, failure))
    if failures := [sentence for _, sentence in shares if sentence is not None]:
        raise ProcessFailure(failures[0])
    return [value for value, _ in shares]


def format_error(error: BaseException) -> str:
    """Format an exception in one line: its class and its message."""
    if isinstance(error, ProcessFailure):
        return str(error)
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def blame_task(task: str, action: str, item: int | None = None) -> Iterator[None]:
    """Turn an exception of a task into one sentence; item 4 is number 4 in items.parquet and line 5 of the data.

    Raises:
        InputError: the task raised something.
        SharedFailure: it did in another process.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not is_task_error(error):
            raise
        if isinstance(error, ProcessFailure) and str(error).startswith(f"task {task}"):  # a whole sentence
            raise SharedFailure(str(error)) from None
        traceback.print_exc()  # into the log of the job
        place = "" if item is None else f", item {item} (line {item + 1} of its data)"
        kind = SharedFailure if isinstance(error, ProcessFailure) else InputError
        raise kind(
            f"task {task}{place}: {action} raises {format_error(error)}; correct the task or its data"
        ) from error


def wrap_scoring_with_item_errors(name: str, task: Task, examples: Sequence[int]) -> None:
    """Make a task's scoring name the example at which it raises; lm-eval scores them in order, once per filter."""
    score, numbers = task.process_results, cycle(examples)

    def process_results(*given: Any, **named: Any) -> Any:
        with blame_task(name, "scoring it", next(numbers)):
            return score(*given, **named)

    task.process_results = process_results
