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

REAL_CASES: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "no_shard": {"strategy": "no_shard"},
    "shard_grad_op in bf16": {"strategy": "shard_grad_op", "precision": "bf16"},
    "full recomputation": {"recomputation": "full"},
    "context 2": {"mesh": {"context": 2}, "batch_size": 1},
    "tensor 2": {"mesh": {"tensor": 2}, "batch_size": 1},
}

# One rank of real steps over gloo: the profiler's own record of what the allocator gave and took back. Gloo's threads
# keep buffers longer on a busy machine, which only adds: the least of ten steps over contexts counts, else of five.
REAL = """
import gc, json, sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.settings import SegmentSettings

class Start:
    optimizer_step = 0
    def load(self, pieces): pass

def peak(settings, vocabulary_size):
    training = settings["training"]
    zeros = torch.zeros(training["micro_batch_size"], training["sequence_length"], dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        backend = FsdpBackend(SegmentSettings.model_validate(settings), vocabulary_size, Start(), torch.device("cpu"))
        for parameter in backend.parameters.values():
            torch.nn.init.normal_(parameter.to_local(), std=0.02)
        backend.accumulate([Batch(zeros, zeros)])
        backend.update(1e-3, lambda norm: True)
    events = profiled.profiler.kineto_results.events()
    held, most = 0, 0
    for _, change in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        held += change
        most = max(most, held)
    return most

torch.set_num_threads(1)
dist.init_process_group("gloo")
peaks = {}
for name, settings in json.loads(sys.argv[1]).items():
    of_case = []
    for _ in range(10 if "context" in name else 5):
        of_case.append(peak(settings, int(sys.argv[2])))
        gc.collect()  # what the step before left must not be given back within the next one
        dist.barrier()
    peaks[name] = min(of_case)
if dist.get_rank() == 0:
    print(json.dumps(peaks))
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


@pytest.fixture(scope="module")
def real() -> dict[str, int]:
    """Return the bytes that the first of two real processes held at most in a step of each case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {
        name: {
            "architecture": SHAPE,
            "training": {**TRAINING, **changes},
            "seed": 0,
            "first_step": 0,
            "last_step": 10,
        }
        for name, changes in REAL_CASES.items()
    }
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}
    words = [sys.executable, "-c", REAL, json.dumps(settings), str(VOCABULARY)]
    ranks = [
        subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, int] = json.loads(said[0].splitlines()[-1])
    return found


@pytest.mark.parametrize("case", [name for name in REAL_CASES if name not in ("context 2", "tensor 2")])
def test_a_traced_step_holds_what_a_real_one_does(case: str, real: dict[str, int]) -> None:
    assert trace(request(2, **REAL_CASES[case])).peak_bytes == pytest.approx(real[case], rel=0.03)


def test_over_contexts_real_steps_hold_exchanged_keys_longer(real: dict[str, int]) -> None:
    assert 0.92 * real["context 2"] <= trace(request(2, **REAL_CASES["context 2"])).peak_bytes <= real["context 2"]


def test_tensor_parallelism_is_traced_with_one_copy_of_a_vocabulary_matrix_too_many(real: dict[str, int]) -> None:
    too_many = trace(request(2, **REAL_CASES["tensor 2"])).peak_bytes - real["tensor 2"]
    one_copy = 4 * VOCABULARY / 2 * SHAPE["width"]
    assert -0.01 * real["tensor 2"] <= too_many <= one_copy + 450_000


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
