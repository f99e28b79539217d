"""Which jobs share one job of Slurm, where the smallest allocation that is billed is larger than what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIMILAR = 4  # a job joins one that may last so many times as long, not longer: a group ends with its longest


@dataclass(frozen=True)
class Request:
    """What one job asks for, and the smallest allocation of its partition; None where the platform's file has none."""

    partition: str
    cpus: int
    memory_megabytes: int
    minutes: int
    allocation_cpus: int | None
    allocation_memory_megabytes: int | None
    alone: bool = False


def allocations(cpus: int, memory_megabytes: int, of_cpus: int, of_memory_megabytes: int | None) -> int:
    """Return how many smallest allocations hold so many cores and so much memory."""
    by_memory = -(-memory_megabytes // of_memory_megabytes) if of_memory_megabytes else 0
    return max(-(-cpus // of_cpus), by_memory, 1)


def pack(requests: Sequence[Request]) -> list[list[int]]:
    """Return the numbers of the requests that run side by side, group by group, all of them once.

    A group is billed as many smallest allocations as its largest job needs, and others join it as long as they fit in
    there. The longest come first, so that jobs of like time limits lie together: what is billed is the longest's time.
    A job is by itself where it asks to be, and where its partition bills what is asked for.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[str, int, int | None], list[tuple[list[int], int, int | None]]] = {}
    by_size = sorted(range(len(requests)), key=lambda n: (-requests[n].minutes, -requests[n].cpus, n))
    for number in by_size:
        request = requests[number]
        size, memory = request.allocation_cpus, request.allocation_memory_megabytes
        if request.alone or size is None:
            groups.append([number])
            continue
        candidates = open_groups.setdefault((request.partition, size, memory), [])
        for group, cpus, megabytes in candidates:
            joined = [*(requests[other] for other in group), request]
            if (
                requests[group[0]].minutes <= SIMILAR * request.minutes
                and sum(job.cpus for job in joined) <= cpus
                and (megabytes is None or sum(job.memory_megabytes for job in joined) <= megabytes)
            ):
                group.append(number)
                break
        else:
            count = allocations(request.cpus, request.memory_megabytes, size, memory)
            groups.append([number])
            candidates.append((groups[-1], count * size, memory and count * memory))
    return sorted(sorted(group) for group in groups)
