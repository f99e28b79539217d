"""Save a checkpoint in each parallel layout and load it in each other, for all ordered pairs.

    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint_layouts.py FOLDER

{1, 2, 4 processes} × {no_shard, full_shard, zero1, zero2, zero3}: each of the 15 layouts trains three steps and saves;
each loads all 15 checkpoints, saves again at once, and takes two steps. The first step's loss checks the weights, the
second step's the optimizer state. All tensors must be equal; losses are compared with those of the saving layout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.checkpoints.checkpoint_worker import STRATEGIES, backend_of, train_step

COUNTS = (1, 2, 4)
SHAPE = {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 2}
TRAINING = {"sequence_length": 16, "batch_size": 4, "micro_batch_size": 1, "steps": 10, "learning_rate": 0.01}


def layouts() -> list[tuple[int, str]]:
    """Return every process count with every strategy."""
    return [(count, strategy) for count in COUNTS for strategy in STRATEGIES]


def settings_of(strategy: str) -> SegmentSettings:
    """Return the segment that is trained with a strategy."""
    training = {**TRAINING, "strategy": strategy, "backend": STRATEGIES[strategy]}
    values = {"seed": 7, "first_step": 0, "last_step": 10, "training": training}
    return SegmentSettings.model_validate({**values, "architecture": SHAPE})


def save(folder: Path, strategy: str) -> list[float]:
    """Train three steps, save, and return the losses of the next two."""
    settings = settings_of(strategy)
    backend, _ = backend_of(settings, None)
    for step in (1, 2, 3):
        train_step(backend, settings, step)
    Saver(backend, settings, "saved", folder).save_milestone(folder / f"{dist.get_world_size()}-{strategy}", 3, {})
    return [train_step(backend, settings, step) for step in (4, 5)]


def load(folder: Path, strategy: str, saved: tuple[int, str]) -> dict[str, Any]:
    """Load a checkpoint, save it again and return the tensors that differ and the losses of the next two steps."""
    settings = settings_of(strategy)
    source = folder / f"{saved[0]}-{saved[1]}"
    backend, _ = backend_of(settings, source)
    again = folder / f"again-{dist.get_world_size()}"
    Saver(backend, settings, "again", again).save_milestone(again / "-".join(map(str, (strategy, *saved))), 3, {})
    one, other = CheckpointReader(source), CheckpointReader(again / "-".join(map(str, (strategy, *saved))))
    names = one.shapes.keys() | other.shapes.keys()
    differing = [name for name in sorted(names) if not torch.equal(one.read(name), other.read(name))]
    return {"differing": differing, "losses": [train_step(backend, settings, step) for step in (4, 5)]}


def worker(folder: Path, role: str) -> None:
    """Be one process of a count: save, or load, under every strategy."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device_and_process_group.join_process_group("torchrun")
    results: list[Any] = []
    for strategy in STRATEGIES:
        if role == "save":
            results.append(save(folder, strategy))
        else:
            results.append([load(folder, strategy, saved) for saved in layouts()])
    if dist.get_rank() == 0:
        (folder / f"{role}-{dist.get_world_size()}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    """Start the processes, print the worst differences, and return 1 where tensors differ or losses by over 1e-6."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    for role in ("save", "load"):
        for count in COUNTS:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            words = [*command, __file__, str(folder), role]
            subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    references = [losses for count in COUNTS for losses in json.loads((folder / f"save-{count}.json").read_text())]
    differing, worst, same = 0, [0.0, 0.0], 0
    for count in COUNTS:
        for strategy, loads in zip(STRATEGIES, json.loads((folder / f"load-{count}.json").read_text()), strict=True):
            for saved, result, expected in zip(layouts(), loads, references, strict=True):
                differing += bool(result["differing"])
                worst = [max(w, abs(a - b)) for w, a, b in zip(worst, result["losses"], expected, strict=True)]
                same += saved == (count, strategy) and result["losses"] == expected
    pairs = len(layouts())
    print(f"{pairs**2} ordered pairs: {pairs**2 - differing} with equal states; at the same layout {same} of {pairs}")
    print(f"bitwise equal losses; largest difference of the next loss {worst[0]:.1e}, of the one after {worst[1]:.1e}")
    return int(differing > 0 or max(worst) > 1e-6 or same < pairs)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        worker(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main(Path(sys.argv[1])))
