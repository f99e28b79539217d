"""Execution options and the loss inside the model under FSDP2: two processes equal one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.llama_network import Llama
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from tests.model.documents import limits_of

CPU = torch.device("cpu")
VOCABULARY = 96
SWITCHES = [
    {},
    {"recomputation": "selective"},
    {"recomputation": "full", "tiled_feed_forward": 2},
    {"tiled_feed_forward": 3},
]


def batch(first: int = 0, last: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of tokens and targets, and their documents."""
    draw = torch.Generator().manual_seed(1)
    tokens, target = (torch.randint(0, VOCABULARY, (4, 30), generator=draw) for _ in range(2))
    target[:, ::7] = -100
    document = (torch.rand((4, 30), generator=draw) < 0.1).cumsum(1)
    return tokens[first:last], target[first:last], limits_of(document[first:last])


def gradients(model: nn.Module, parts: tuple[Tensor, ...]) -> dict[str, Tensor]:
    (model(*parts) / 120).backward()
    results = {name: p.grad for name, p in model.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in results.items() if g is not None}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for tied in (False, True):
        shape = Architecture(layers=2, width=32, heads=4, key_value_heads=2, tie_embeddings=tied)
        state = initial_state(shape, VOCABULARY, seed=3)
        one = Llama(shape, VOCABULARY)
        one.load_state_dict(state, strict=not tied)
        expected = gradients(one, batch())
        for precision in (torch.float32, torch.bfloat16):
            for switches in SWITCHES:
                model = Llama(shape, VOCABULARY)
                set_execution_options(model, CPU, **switches)  # type: ignore[arg-type]
                policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
                for part in (*model.blocks, model):
                    fully_shard(part, mesh=mesh, mp_policy=policy)
                with torch.no_grad():
                    for name, parameter in model.named_parameters():
                        parameter.copy_(distribute_tensor(state[name], mesh, parameter.placements))
                result = gradients(model, batch(2 * rank, 2 * rank + 2))
                assert result.keys() == expected.keys()
                for name in expected:  # FSDP averages over the processes
                    difference = (2 * result[name] - expected[name]).norm() / expected[name].norm()
                    limit = 1e-5 if precision == torch.float32 else 0.03
                    assert difference < limit, (tied, precision, switches, name, difference)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, args=(str(tmp_path),), nprocs=2)
