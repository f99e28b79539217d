"""A checkpoint moves from one process layout to another and back, bitwise, and stores every number once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeline.pretrain.checkpoints import checkpoint
from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.settings import SegmentSettings

VOCABULARY = 304
# Tensor 2 does not divide the three key-value heads; stages are of 2 and 3 layers, and of 1, 1, 1 and 2.
SHAPE = {"preset": "qwen3", "layers": 5, "width": 48, "heads": 12, "key_value_heads": 3}
MESHES = [{"tensor": 2}, {"context": 2}, {"pipeline": 2}, {"pipeline": 2, "interleaving": 2}, {"shard": None}]


def worker(rank: int, folder: str, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    before = None
    for number, one in enumerate(chosen):
        settings = SegmentSettings.model_validate_json(one)
        start = checkpoint.SegmentStart(before, settings, VOCABULARY)
        backend = FsdpBackend(settings, VOCABULARY, start, torch.device("cpu"))
        if before is None:
            with torch.no_grad():
                for piece in backend.state_shards():
                    piece.tensor.copy_(torch.rand(piece.tensor.shape))
                for state in backend.optimizer.state.values():
                    state["step"].fill_(3)
        before = Path(folder, str(number), "whole")
        Saver(backend, settings, "identity", before.parent).save_milestone(before, 3, {})
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_every_layout_reads_the_checkpoints_of_the_others(
    settings: Callable[..., SegmentSettings], tmp_path: Path
) -> None:
    chosen = [settings(architecture=SHAPE, batch_size=4, mesh=mesh).model_dump_json() for mesh in MESHES]
    torch.multiprocessing.spawn(worker, args=(str(tmp_path), chosen), nprocs=2)
    first, *others = (CheckpointReader(tmp_path / str(number) / "whole") for number in range(len(MESHES)))
    numbers = sum(4 * torch.Size(shape).numel() for shape in first.shapes.values())
    for reader in (first, *others):
        assert reader.shapes == first.shapes
        assert all(torch.equal(reader.read(name), first.read(name)) for name in first.shapes)
        files = sum(path.stat().st_size for path in reader.folder.glob("rank-*.safetensors"))
        assert numbers <= files < numbers * 1.1  # and the names
