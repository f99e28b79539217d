"""Run by torchrun: a rejected step leaves weights and optimizer unchanged, in every backend."""

import hashlib
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.parallel import process_groups
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings


def state(backend: Any) -> str:
    """Return a hash of this process's optimizer: its parts of the weights, and their moments."""
    optimizer = getattr(backend, "base", None) or backend.optimizer
    parts = []
    for weight, held in optimizer.state.items():
        for tensor in (weight, *(held[name] for name in sorted(held))):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            parts.append(local.detach().float().contiguous().numpy().tobytes())
    assert len(parts) >= 4
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()


def norm_of(backend: Any) -> torch.nn.Module:
    return backend.model.norm if hasattr(backend, "model") else backend.engine.module.norm


def main() -> None:
    """Train each case with and without bad batches in between and write the results."""
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = device_and_process_group.join_process_group("torchrun")
    batches = []
    for number in range(5):
        draw = torch.Generator().manual_seed(10 * number + dist.get_rank())
        tokens = torch.randint(0, 304, (2, 33), generator=draw)
        batches.append([Batch(row[None, :-1], row[None, 1:]) for row in tokens])
    results = {}
    for case, text in given["cases"].items():
        settings = SegmentSettings.model_validate(text)
        kind = DeepSpeedBackend if settings.training.backend == "deepspeed" else FsdpBackend
        hashes, norms = [], []
        # By the host, and by the device before the host knows.
        by_device: list[Any] = [lambda norm: torch.as_tensor(norm).isfinite(), lambda norm: torch.tensor(False)]
        for refuses in (None, [math.isfinite, lambda norm: False], by_device):
            backend = kind(settings, 304, SegmentStart(None, settings, 304), device)
            for number in (0, 1, 2):
                backend.accumulate_gradients(batches[number])
                backend.update(0.01, lambda norm: True)
                if refuses and number < 2:
                    poison = norm_of(backend).register_forward_hook(lambda *given: given[2] * math.nan)
                    loss = backend.accumulate_gradients(batches[3])
                    poison.remove()
                    norms.append(backend.update(0.01, refuses[0]))
                    assert not math.isfinite(float(loss))
                    backend.accumulate_gradients(batches[4])
                    norms.append(backend.update(0.01, refuses[1]))
            hashes.append(state(backend))
        same = process_groups.all_gather_values(device, float(hashes[0] == hashes[1] == hashes[2])).sum()
        finite = [math.isfinite(float(norm)) for norm in norms]
        results[case] = {"same": int(same) == dist.get_world_size(), "finite": finite}
    if dist.get_rank() == 0:
        Path(given["found"]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
