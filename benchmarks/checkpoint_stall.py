"""Seconds that training waits for an asynchronous checkpoint, against a synchronous one.

    PYTHONPATH=. .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node=2 \\
        benchmarks/checkpoint_stall.py FOLDER [--megabytes 100]

A sharded model of that many megabytes, with its optimizer state (three times that in all). Both ways write the same
bytes in one run, in turns. After a forward and a backward pass, the optimizer waits for the rest of the copy.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.model.settings import Architecture
from pipeline.model.size import parameter_count
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.processes import rendezvous
from pipeline.pretrain.settings import SegmentSettings

WIDTH, VOCABULARY, LENGTH = 512, 8192, 512
TRAINING = {"sequence_length": LENGTH, "batch_size": 2, "micro_batch_size": 1, "steps": 1, "learning_rate": 1e-3}


def backend_of(megabytes: float) -> tuple[FsdpBackend, SegmentSettings]:
    """Return a sharded model of about that size in float32."""
    shape = {"width": WIDTH, "heads": 8, "key_value_heads": 4}
    sizes = [parameter_count(Architecture.model_validate({**shape, "layers": n}), VOCABULARY) * 4e-6 for n in (1, 2)]
    layers = max(1, round((megabytes - sizes[0]) / (sizes[1] - sizes[0])) + 1)
    values = {"seed": 1, "first_step": 0, "last_step": 1, "training": TRAINING}
    settings = SegmentSettings.model_validate({**values, "architecture": {**shape, "layers": layers}})
    return FsdpBackend(settings, VOCABULARY, SegmentStart(None, settings, VOCABULARY), torch.device("cpu")), settings


def main() -> None:
    """Print the seconds of both sides, the median of the rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rendezvous.join_process_group("torchrun")
    backend, settings = backend_of(arguments.megabytes)
    saver = Saver(backend, settings, "stall", arguments.folder / "stall")
    tokens = torch.arange(LENGTH).expand(1, -1)
    waited: dict[str, list[float]] = {"synchronous": [], "asynchronous": []}
    passes: dict[str, list[float]] = {side: [] for side in waited}
    for step in range(1, arguments.rounds + 1):
        for number, side in enumerate(waited):
            dist.barrier()
            started = time.perf_counter()
            saver.save(2 * step + number, {})
            if side == "synchronous":
                saver.wait()
            waited[side].append(time.perf_counter() - started)
            started = time.perf_counter()
            backend.accumulate_gradients([Batch(tokens, tokens)])
            passes[side].append(time.perf_counter() - started)
            started = time.perf_counter()
            saver.wait_until_copied()
            waited[side][-1] += time.perf_counter() - started
            backend.update(1e-3, lambda norm: True)
            saver.wait()
    seconds = {side: statistics.median(values) for side, values in waited.items()}
    beside = {side: statistics.median(values) for side, values in passes.items()}
    if dist.get_rank() == 0:
        size = sum(path.stat().st_size for path in (arguments.folder / "stall").glob(f"{2 * step}/*"))
        print(f"{size / 1e6:.0f} MB in {dist.get_world_size()} processes, median of {arguments.rounds} rounds")
        for side, value in seconds.items():
            print(f"{side}: waits {value * 1e3:.1f} ms, then forward and backward {beside[side] * 1e3:.0f} ms")
        print(f"stall: {seconds['asynchronous'] / seconds['synchronous']:.1%} of the synchronous time")
        shutil.rmtree(arguments.folder / "stall")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
