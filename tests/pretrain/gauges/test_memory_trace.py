"""The traced memory of a step: that of the real step, whatever the strategy, and what a shape says by hand."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from pipeline.ground.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.model.size import parameter_count
from pipeline.pretrain.gauges.memory_trace import ROOT, Memory, Request, trace
from pipeline.pretrain.settings import Training

SHAPE = {"layers": 3, "width": 256, "heads": 8, "key_value_heads": 4}
VOCABULARY = 4096
TRAINING = {
    "steps": 10,
    "batch_size": 2,
    "micro_batch_size": 1,
    "sequence_length": 256,
    "learning_rate": 1e-3,
    "precision": "fp32",
}

# One rank of a real step over gloo: the profiler's own record of what the allocator gave and took back.
REAL = """
import json, os, sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.settings import SegmentSettings

class Start:
    optimizer_step = 0
    def load(self, pieces): pass

settings, vocabulary_size = json.loads(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
zeros = torch.zeros(settings["training"]["micro_batch_size"], settings["training"]["sequence_length"], dtype=torch.long)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
    backend = FsdpBackend(SegmentSettings.model_validate(settings), vocabulary_size, Start(), torch.device("cpu"))
    for parameter in backend.parameters.values():
        torch.nn.init.normal_(parameter.to_local(), std=0.02)
    backend.accumulate([Batch(zeros, zeros)])
    backend.update(1e-3, lambda norm: True)
events = profiled.profiler.kineto_results.events()
changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
held = peak = 0
for _, change in changes:
    held += change
    peak = max(peak, held)
if dist.get_rank() == 0:
    print("PEAK", peak)
dist.barrier()
dist.destroy_process_group()
"""


def request(processes: int, per_node: int = 4, device: Any = "cpu", **changes: Any) -> Request:
    return Request(
        training=Training.model_validate({**TRAINING, **changes}),
        architecture=Architecture.model_validate(SHAPE),
        vocabulary_size=VOCABULARY,
        processes=processes,
        per_node=per_node,
        device=device,
    )


def really(asked: Request) -> int:
    """Return the bytes that the first of real processes held at most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {
        "architecture": asked.architecture.model_dump(mode="json", exclude_unset=True),
        "training": asked.training.model_dump(mode="json", exclude_unset=True),
        "seed": 0,
        "first_step": 0,
        "last_step": 10,
    }
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(asked.processes)}
    words = [sys.executable, "-c", REAL, json.dumps(settings), str(VOCABULARY)]
    ranks = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_WORLD_SIZE": str(asked.per_node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(asked.processes)
    ]
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    return int(said[0].split("PEAK")[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "full_shard"},
        {"strategy": "no_shard"},
        {"strategy": "shard_grad_op"},
        {"strategy": "full_shard", "recomputation": "full"},
        {"strategy": "full_shard", "mesh": {"tensor": 2}, "batch_size": 1},
    ],
    ids=str,
)
def test_a_traced_step_holds_what_a_real_one_does(changes: dict[str, Any]) -> None:
    asked = request(2, **changes)
    # Gloo's threads hold buffers a moment longer on a busy machine, which only adds: the least of some runs counts.
    real = min(really(asked) for _ in range(3))
    assert trace(asked).peak_bytes == pytest.approx(real, rel=0.06)


def parts(memory: Memory) -> dict[str, int]:
    return {key: value for key, value in memory.model_dump().items() if key.endswith("_bytes") and key != "peak_bytes"}


def test_the_parts_add_up_and_state_is_what_the_shape_says() -> None:
    memory = trace(request(8, batch_size=64, strategy="full_shard"))
    assert sum(parts(memory).values()) == memory.peak_bytes
    number = parameter_count(Architecture.model_validate(SHAPE), VOCABULARY)
    assert memory.parameters_bytes == 4 * number / 8
    assert memory.optimizer_bytes == pytest.approx(2 * 4 * number / 8, abs=1000)  # and a counter for each matrix
    assert memory.gradients_bytes == 4 * number / 8  # of the micro-batch before


def test_the_kernels_of_a_gpu_keep_less() -> None:
    asked = {"batch_size": 64, "precision": "bf16"}
    on_cpu, on_gpu = (trace(request(8, device=device, **asked)) for device in ("cpu", "gpu"))
    assert on_gpu.activations_bytes < on_cpu.activations_bytes and on_gpu.loss_bytes < on_cpu.loss_bytes
    assert on_gpu.parameters_bytes == on_cpu.parameters_bytes
    # A norm of a CPU keeps two float32 copies of its input more; of each of two in a block and of the last one.
    assert on_cpu.activations_bytes - on_gpu.activations_bytes >= 7 * 256 * 256 * 4


def test_the_first_stage_of_a_pipeline_holds_micro_batches_and_whole_gradients() -> None:
    shape = {**SHAPE, "layers": 4}
    asked = request(4, batch_size=64, mesh={"pipeline": 4})
    piped = trace(asked.model_copy(update={"architecture": Architecture.model_validate(shape)}))
    alone = trace(request(1, batch_size=64))
    assert piped.stage == 0 and piped.peak_in.endswith("backward")
    # Four micro-batches of one layer each are under way where one of three layers was.
    assert piped.activations_bytes > alone.activations_bytes


def test_what_cannot_be_traced_is_a_sentence() -> None:
    with pytest.raises(InputError, match="backend deepspeed is known by formula alone"):
        trace(request(2, backend="deepspeed", strategy="zero2"))
    with pytest.raises(InputError, match="not divisible"):
        trace(request(3, mesh={"tensor": 2}))
