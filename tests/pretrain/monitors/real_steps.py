"""Real steps of both backends over gloo, and the peak memory of the first process: the profiler's own record.

    python -m tests.pretrain.monitors.real_steps '{"CASE": SETTINGS, …}' VOCABULARY '{"CASE": [LOW, HIGH], …}' [timed]

Gloo's threads keep buffers longer on a busy machine, which only adds. So the minimum over several models counts, until
it is within the expected bytes, or below them twice, or MOST were measured. The first process prints the bytes by case;
timed, also the seconds of a step without a profiler.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.settings import SegmentSettings

MOST = 20


class Start:
    """No weights are loaded: the values do not matter."""

    optimizer_step = 0

    def load(self, pieces: Any) -> None:
        """Leave the weights unchanged."""


def made(settings: dict[str, Any], vocabulary_size: int) -> Any:
    """Return the backend of a model with weights, sharded over the processes."""
    own = SegmentSettings.model_validate(settings)
    if own.training.backend == "deepspeed":
        from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend  # after the rendezvous

        return DeepSpeedBackend(own, vocabulary_size, Start(), torch.device("cpu"))  # type: ignore[arg-type]
    backend = FsdpBackend(own, vocabulary_size, Start(), torch.device("cpu"))  # type: ignore[arg-type]
    for parameter in backend.parameters.values():
        torch.nn.init.normal_(parameter.to_local() if hasattr(parameter, "to_local") else parameter, std=0.02)
    return backend


def step(backend: Any) -> None:
    """Take a step with all micro-batches of this process."""
    training = backend.training
    shape = training.micro_batch_size, training.sequence_length
    tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(1))  # so that they visit all experts
    micro_batches = training.batch_size // backend.data_size // training.micro_batch_size
    backend.accumulate_gradients([Batch(tokens, tokens)] * micro_batches)
    backend.update(1e-3, lambda norm: True)


def first_steps(settings: dict[str, Any], vocabulary_size: int) -> None:
    """Make a model and take its first steps."""
    backend = made(settings, vocabulary_size)
    for _ in range(2 if settings["training"].get("backend") == "deepspeed" else 1):
        step(backend)


def peak(settings: dict[str, Any], vocabulary_size: int) -> int:
    """Return the peak bytes of the first steps of a model.

    Memory allocated before and freed meanwhile, such as DeepSpeed's last engine, does not count.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        first_steps(settings, vocabulary_size)
    waiting = list(profiled.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    changes = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    held: dict[int, int] = {}
    total, most = 0, 0
    for _, address, size in sorted(changes, key=lambda change: change[0]):
        total += size if size > 0 else -held.pop(address, 0)
        most = max(most, total)
        if size > 0:
            held[address] = size
    return most


def seconds(settings: dict[str, Any], vocabulary_size: int) -> float:
    """Return the seconds of a step, the median of five after one."""
    backend = made(settings, vocabulary_size)
    step(backend)
    results = []
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        step(backend)
        results.append(time.perf_counter() - began)
    return median(results)


def real_steps(
    cases: Mapping[str, dict[str, Any]],
    vocabulary_size: int,
    expected: Mapping[str, tuple[float, float]] | None = None,
    *,
    processes: int = 2,
    timed: bool = False,
) -> dict[str, dict[str, float]]:
    """Return the measurements of each case in new processes.

    Args:
        cases: the settings of each.
        vocabulary_size: of all.
        expected: the lowest and highest expected peak bytes of each; one outside of them is measured again.
        processes: how many there are.
        timed: whether to measure the seconds of a step as well.
    """
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": "4"}
    words = [sys.executable, "-m", __name__, json.dumps(cases), str(vocabulary_size), json.dumps(expected or {})]
    words += ["timed"] * timed
    with tempfile.TemporaryDirectory() as folder:
        shared["MEETING"] = f"file://{folder}/meeting"  # a port that is free now may be in use by then
        ranks = [
            subprocess.Popen(
                words,
                cwd=Path(__file__).parents[3],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        message = [rank.communicate(timeout=1800)[0] for rank in ranks]
    result: dict[str, dict[str, float]] = json.loads(message[0].splitlines()[-1])
    return result


def main(cases: str, vocabulary_size: str, expected: str, *timed: str) -> None:
    """Measure every case, and print the results."""
    torch.set_num_threads(1)
    rank, processes = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=rank, world_size=processes)
    results: dict[str, dict[str, float]] = {}
    for name, settings in json.loads(cases).items():
        peaks: list[int] = []
        low, high = json.loads(expected).get(name, (math.inf, math.inf))
        is_known = torch.tensor(False)
        while not is_known:
            if dist.get_rank() == 0:
                peaks.append(peak(settings, int(vocabulary_size)))
                agreed = peaks.count(min(peaks)) > 1 and min(peaks) <= high
                is_known.fill_(low <= min(peaks) <= high or agreed or len(peaks) == MOST)
            else:  # these are not measured, and a profiler costs as much as the steps
                first_steps(settings, int(vocabulary_size))
            gc.collect()  # memory of the step before must not be freed within the next one
            dist.broadcast(is_known, 0)
        results[name] = {"peak_bytes": min(peaks, default=0), "looks": len(peaks)}
        if timed:
            results[name]["seconds"] = seconds(settings, int(vocabulary_size))
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
