"""Memory saved and time lost with the optimizer state on a disk, against main memory.

    PYTHONPATH=. DS_ACCELERATOR=cpu .venv/bin/python benchmarks/optimizer_on_disk.py FOLDER [--layers 4] [--width 2048]

Both sides train the same model in bf16, each in its own process, and save one checkpoint; FOLDER is on the disk. Under
`systemd-run --scope -p MemoryMax=6G`, with --strategy for one side, it shows which side fits the limit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings

STRATEGIES = ("zero3_offload_optimizer", "zero3_optimizer_on_disk")
VOCABULARY, LENGTH, STEPS = 1000, 32, 4


def gigabytes(kind: str) -> float:
    """Return this process's memory: RssAnon its own, RssFile of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1e6


def train(strategy: str, layers: int, width: int, folder: Path) -> None:
    """Take steps and save, and print a line."""
    device = device_and_process_group.join_process_group("none")
    from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend

    training = {
        "sequence_length": LENGTH,
        "batch_size": 1,
        "micro_batch_size": 1,
        "steps": STEPS,
        "learning_rate": 1e-3,
    }
    training |= {"backend": "deepspeed", "strategy": strategy, "precision": "bf16"}
    shape = {"layers": layers, "width": width, "heads": 8, "key_value_heads": 8}
    values = {"seed": 1, "first_step": 0, "last_step": STEPS, "architecture": shape, "training": training}
    settings = SegmentSettings.model_validate(values)
    start = SegmentStart(None, settings, VOCABULARY)
    backend = DeepSpeedBackend(settings, VOCABULARY, start, device, folder)
    saver = Saver(backend, settings, "benchmark", folder / "checkpoints")
    tokens = torch.arange(LENGTH, device=device).expand(1, -1)
    seconds = []
    for _ in range(STEPS):
        backend.accumulate_gradients([Batch(tokens, tokens)])
        began = time.perf_counter()
        backend.update(1e-3, lambda norm: True)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    saver.save(STEPS, {})
    saver.wait()
    parameters = sum(parameter.ds_numel for parameter in backend.parameters.values())
    print(
        f"{strategy}: {parameters / 1e6:.0f} million parameters, {12 * parameters / 1e9:.2f} GB of state; "
        f"{gigabytes('RssAnon'):.2f} GB of memory; steps of the optimizer "
        f"{', '.join(f'{value:.2f}' for value in seconds)} s; a checkpoint {time.perf_counter() - began:.1f} s",
        flush=True,
    )
    dist.destroy_process_group()


def main() -> None:
    """Run both sides, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--strategy", choices=STRATEGIES)
    options = parser.parse_args()
    if options.strategy:
        torch.set_num_threads(1)
        try:
            train(options.strategy, options.layers, options.width, options.folder / options.strategy)
        finally:
            shutil.rmtree(options.folder / options.strategy, ignore_errors=True)
        return
    for strategy in STRATEGIES:
        subprocess.run([sys.executable, *sys.argv, "--strategy", strategy], check=True)


if __name__ == "__main__":
    main()
