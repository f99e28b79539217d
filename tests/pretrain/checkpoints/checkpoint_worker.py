"""One process of the checkpoint tests: `torchrun … checkpoint_worker.py SETTINGS.json OUTPUT [CANONICAL]`.

Without a canonical checkpoint it makes one. With it, for every strategy: load it, save it, train, save, train, and
again from the second save.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints import checkpoint
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.parallel.backend import Backend, Batch
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings

VOCABULARY = 301
STRATEGIES = {
    "no_shard": "fsdp",
    "full_shard": "fsdp",
    "zero1": "deepspeed",
    "zero2": "deepspeed",
    "zero3": "deepspeed",
    "zero3_optimizer_on_disk": "deepspeed",
}


def backend_of(settings: SegmentSettings, folder: Path | None) -> tuple[Backend, checkpoint.SegmentStart]:
    start = checkpoint.SegmentStart(folder, settings, VOCABULARY)
    if settings.training.backend == "deepspeed":
        from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend

        return DeepSpeedBackend(settings, VOCABULARY, start, torch.device("cpu"), Path(tempfile.gettempdir())), start
    from pipeline.pretrain.parallel.fsdp import FsdpBackend

    return FsdpBackend(settings, VOCABULARY, start, torch.device("cpu")), start


def train_step(backend: Backend, settings: SegmentSettings, step: int) -> float:
    """Take a step and return its loss: every process count gets the same global batch."""
    size, length = settings.training.batch_size, settings.training.sequence_length
    tokens = torch.from_numpy(np.random.default_rng(step).integers(0, VOCABULARY, (size, length + 1)))
    mine = torch.chunk(tokens, dist.get_world_size())[dist.get_rank()]
    rows = torch.split(mine, settings.training.micro_batch_size)
    loss = backend.accumulate_gradients([Batch(row[:, :-1], row[:, 1:]) for row in rows]).double()
    dist.all_reduce(loss)
    backend.update(1e-3, lambda norm: True)
    return float(loss) / size / length


def differences(one: Backend, other: Backend) -> list[str]:
    pairs = zip(one.state_shards(), other.state_shards(), strict=True)
    return [a.key for a, b in pairs if a.key != b.key or not torch.equal(a.tensor, b.tensor)]


def tried(settings: SegmentSettings, canonical: Path, folder: Path) -> dict[str, Any]:
    backend, _ = backend_of(settings, canonical)
    saver = Saver(backend, settings, "identity", folder)
    saver.save(3, {"skips": [7]})
    losses = [train_step(backend, settings, 4)]  # while the checkpoint is written
    saver.save(4, {"skips": [7]})
    losses.append(train_step(backend, settings, 5))
    saver.wait()
    again, start = backend_of(settings, folder / "4")
    assert (start.step, start.optimizer_step, start.skips) == (4, 4, [7])
    resumed = train_step(again, settings, 5)
    return {"losses": losses, "resumed": resumed, "differences": differences(backend, again)}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device_and_process_group.join_process_group("torchrun")
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    output = Path(sys.argv[2])
    if len(sys.argv) == 3:
        settings = SegmentSettings.model_validate(given)
        backend, _ = backend_of(settings, None)
        for step in range(1, 4):
            train_step(backend, settings, step)
        Saver(backend, settings, "identity", output).save_milestone(output / "canonical", 3, {})
    else:
        results: dict[str, Any] = {}
        for strategy, name in STRATEGIES.items():
            if name == "deepspeed" and "optimizer" in given["training"]:
                continue
            given["training"] |= {"strategy": strategy, "backend": name}
            settings = SegmentSettings.model_validate(given)
            mine = tried(settings, Path(sys.argv[3]), output / strategy)
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)
            results[strategy] = {**mine, "differences": [name for each in every for name in each["differences"]]}
        if dist.get_rank() == 0:
            (output / "found.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
