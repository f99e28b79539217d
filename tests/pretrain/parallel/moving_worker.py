"""Read a checkpoint under one layout after another and write it next to the file: moving_worker.py CASES.json."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader, SegmentStart
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.parity_worker import made_from

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device_and_process_group.join_process_group("torchrun")
    file = Path(sys.argv[1])
    arguments = json.loads(file.read_text())
    source = Path(arguments["from"])
    vocabulary_size = CheckpointReader(source).shapes["model.embedding.weight"][0]
    for name, case in arguments["cases"].items():
        settings = SegmentSettings.model_validate(case)
        backend = made_from(SegmentStart(source, settings, vocabulary_size), settings, vocabulary_size)
        Saver(backend, settings, "identity", file.parent).save_milestone(file.parent / name, 3, {})
    dist.barrier()
    dist.destroy_process_group()
