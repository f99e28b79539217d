"""One of several processes that export a model together; writes the work and errors of each."""

import errno
import json
import sys
from functools import partial
from pathlib import Path

import torch.distributed as dist

from pipeline.core.errors import DiskFull
from pipeline.model import huggingface
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.process_groups import distribute_tasks

tokenizer, configuration, out = map(Path, sys.argv[1:])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
architecture = Architecture(layers=3, width=32, heads=4)
state = initial_state(architecture, 304, 1)
wrote, beats = [], []
save = huggingface.save_file


def write(tensors: dict, path: Path, **options: object) -> None:
    if (out / "full").exists() and rank == size - 1:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    wrote.append([path.name, (path.parent / "model.safetensors.index.json").exists()])
    save(tensors, path, **options)


huggingface.save_file = write


def export(folder: Path) -> None:
    huggingface.save_pretrained(
        state,
        architecture,
        304,
        64,
        tokenizer=tokenizer,
        tokenizer_configuration=configuration,
        folder=folder,
        largest_file_bytes=9_000,
        run_tasks=partial(distribute_tasks, places=[out], beat=lambda: beats.append(len(wrote))),
    )


export(out / "model")
first_round = {"wrote": [*wrote], "beats": [*beats]}
error = None
if rank == 0:
    (out / "full").touch()
dist.barrier()
try:
    export(out / "second")
except DiskFull as problem:
    error = str(problem)
report = [None] * size
dist.all_gather_object(report, {**first_round, "error": error})
if rank == 0:
    (out / "found.json").write_text(json.dumps(report))
dist.destroy_process_group()
