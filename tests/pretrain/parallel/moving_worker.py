"""A process that reads a checkpoint under some settings and writes it: moving_worker.py SETTINGS.json FROM TO."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints.checkpoint import Reader, Start
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.processes import rendezvous
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.parity_worker import made_from

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rendezvous.join("torchrun")
    settings = SegmentSettings.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    source, target = map(Path, sys.argv[2:])
    vocabulary_size = Reader(source).shapes["model.embedding.weight"][0]
    backend = made_from(Start(source, settings, vocabulary_size), settings, vocabulary_size)
    Saver(backend, settings, "identity", target.parent).save_milestone(target, 3, {})
    dist.barrier()
    dist.destroy_process_group()
