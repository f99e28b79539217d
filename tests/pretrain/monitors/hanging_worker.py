"""One of two processes under a watchdog, of which the second does not reach the fourth collective."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from pipeline.core.lock_owner import die_with_parent
from pipeline.pretrain.monitors import watchdog

now = 0.0


def wait_for_both(folder: Path) -> None:
    """Wait until both processes have written their collectives."""
    while len([*folder.glob("logs/collectives-token-*.json")]) < 2:
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Run collectives, and advance the watchdog's clock when the one that never ends has begun."""
    global now
    die_with_parent()
    watchdog.time = SimpleNamespace(monotonic=lambda: now, sleep=lambda _: wait_for_both(folder))  # type: ignore[attr-defined]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dog = watchdog.Watchdog(folder, "token", str(rank), 10.0)
    for number in range(4):
        dog.beat()
        if number == 3:
            exchange = dist.all_reduce(torch.ones(3), async_op=True) if rank == 0 else None
            now += 100.0
            if exchange is not None:
                exchange.wait()
            time.sleep(600)
        dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
