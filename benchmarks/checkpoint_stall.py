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
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.parallel.backend import Backend, Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.processes import device_and_process_group
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


def measure_stall(
    backend: Backend, settings: SegmentSettings, batches: Sequence[Batch], folder: Path, rounds: int
) -> dict[str, list[float]]:
    """Save the state of a backend in both ways, in turns, and return the seconds of each round.

    `synchronous` and `stall` are the waits of a training for a checkpoint that is written before and while it goes on;
    `passes` those of forward and backward after the start of the second.
    """
    saver = Saver(backend, settings, "stall", folder)
    device = next(piece.tensor.device for piece in backend.state_shards())
    seconds: dict[str, list[float]] = {"synchronous": [], "stall": [], "passes": []}
    for step in range(1, rounds + 1):
        for number, side in enumerate(("synchronous", "stall")):
            device_and_process_group.synchronize_device(device)
            dist.barrier()
            started = time.perf_counter()
            saver.save(2 * step + number, {})
            if side == "synchronous":
                saver.wait()
            waited = time.perf_counter() - started
            started = time.perf_counter()
            backend.accumulate_gradients(batches)
            device_and_process_group.synchronize_device(device)
            if side == "stall":
                seconds["passes"].append(time.perf_counter() - started)
            started = time.perf_counter()
            saver.wait_until_copied()
            seconds[side].append(waited + time.perf_counter() - started)
            backend.update(1e-3, lambda norm: True)
            saver.wait()
    return seconds


def main() -> None:
    """Print the seconds of both sides, the median of the rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device_and_process_group.join_process_group("torchrun")
    backend, settings = backend_of(arguments.megabytes)
    tokens = torch.arange(LENGTH).expand(1, -1)
    folder = arguments.folder / "stall"
    measured = measure_stall(backend, settings, [Batch(tokens, tokens)], folder, arguments.rounds)
    seconds = {name: statistics.median(values) for name, values in measured.items()}
    if dist.get_rank() == 0:
        size = sum(path.stat().st_size for path in folder.glob(f"{2 * arguments.rounds + 1}/*"))
        print(f"{size / 1e6:.0f} MB in {dist.get_world_size()} processes, median of {arguments.rounds} rounds")
        print(f"synchronous: waits {seconds['synchronous'] * 1e3:.1f} ms")
        print(f"asynchronous: waits {seconds['stall'] * 1e3:.1f} ms, passes take {seconds['passes'] * 1e3:.0f} ms")
        print(f"stall: {seconds['stall'] / seconds['synchronous']:.1%} of the synchronous time")
        shutil.rmtree(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
