"""Work that the processes of a training divide, each piece on one of them, such as the files of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from pipeline.core.disk_space import disk_full, is_full
from pipeline.core.errors import DiskFull


def by_turns(works: Sequence[Callable[[], None]], *, places: Sequence[Path], beat: Callable[[], None]) -> None:
    """Do pieces of work, each on one process and as many at once as there are processes; all processes call this.

    They agree after every round, so that none waits for more than one piece of another, and each `beat` before it.
    Those of a round that is not full are spread over all processes, and so over the nodes.

    Raises:
        DiskFull: there was no room on one of them, in one of `places` or where the error says; raised on all.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for first in range(0, len(works), size):
        beat()
        turn = works[first : first + size]
        error: str | None = None
        for number, work in enumerate(turn):
            if number * size // len(turn) == rank:
                try:
                    work()
                except Exception as problem:
                    if not is_full(problem):
                        raise
                    error = str(disk_full(problem, places))
        errors: list[str | None] = [None] * size
        dist.all_gather_object(errors, error)
        if found := next((each for each in errors if each), None):
            raise DiskFull(found)
