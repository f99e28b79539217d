"""Training speeds published by torchtitan, counted for `pipeline.plan.step_time`; the bf16 rows are not fitted.

Read in November 2026: https://github.com/pytorch/torchtitan, docs/performance.md (A100, 2024),
its file llama3_h100_202412_torchtitan.md and llama3_8b_h200_2025-06_torchtitan.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.model.settings import Architecture
from pipeline.plan import step_time, training_step_operations
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.step_time import DeviceMesh, Kernel, Machine, StepWork, estimate_step_time
from tests.plan.published_steps import H100, H100_GRID, SELENE, SHARES, H100Fit

# HBM2e with 2.4 TB/s and a limit of 500 W (torchtitan, llama3_h100_202412_torchtitan.md).
H100_500W = dataclasses.replace(H100, memory_bytes_per_second=2400e9)
# 4.8 TB/s: NVIDIA, data sheet of the H200. Its matrix units are the H100's.
H200 = dataclasses.replace(H100, memory_bytes_per_second=4800e9)
LLAMA3 = {"8B": {"preset": "llama3-8b"}, "70B": {"preset": "llama3-70b"}}
LLAMA2 = {
    "13B": {"layers": 40, "width": 5120, "feed_forward_width": 13_824, "heads": 40},
    "70B": {"layers": 80, "width": 8192, "feed_forward_width": 28_672, "heads": 64, "key_value_heads": 8},
}


class Speed(NamedTuple):
    """A training by FSDP, and the tokens per second of one device.

    Attributes:
        family: of Llama, 2 with sequences of 4,096 tokens or 3 with 8,192.
        recomputation: none; "layer", every second layer; "op", besides what is cheap every second matrix product of a
            layer (torchtitan's selective modes); or "full".
    """

    family: int
    size: str
    machine: Machine
    devices: int
    micro_batch_size: int
    recomputation: str
    tokens_per_second: float
    compile: bool = False
    float8: bool = False
    tensor: int = 1
    asynchronous: bool = False

    @property
    def sequence_length(self) -> int:
        """Return the tokens of a sequence."""
        return 8192 if self.family == 3 else 4096

    @property
    def tokens_of_a_step(self) -> float:
        """Return the tokens of one device in a step."""
        return self.micro_batch_size * self.sequence_length / self.tensor

    @property
    def name(self) -> str:
        """Return the row in a few words."""
        ways = ("compile", "float8", "asynchronous")
        words = [f"Llama {self.family} {self.size} x {self.micro_batch_size} on {self.devices}", self.recomputation]
        words += [f"tensor {self.tensor}"] if self.tensor > 1 else []
        return ", ".join([*words, *(way for way in ways if getattr(self, way))])


A100_ROWS = [
    Speed(3, "8B", SELENE, 64, 1, "layer", 2904),
    Speed(3, "8B", SELENE, 64, 1, "op", 2973),
    Speed(3, "70B", SELENE, 64, 1, "full", 331),
    Speed(2, "13B", SELENE, 64, 2, "none", 2162),
    Speed(2, "13B", SELENE, 64, 2, "layer", 1914),
    Speed(2, "13B", SELENE, 64, 2, "op", 1904),
    Speed(2, "70B", SELENE, 64, 1, "op", 355),
    Speed(2, "70B", SELENE, 64, 2, "full", 353),
]
H100_ROWS = [
    Speed(3, "8B", H100_500W, 8, 2, "op", 5762),
    Speed(3, "8B", H100_500W, 8, 2, "op", 6667, compile=True),
    Speed(3, "8B", H100_500W, 128, 2, "op", 5605),
    Speed(3, "8B", H100_500W, 128, 2, "op", 6514, compile=True),
]
FLOAT8_ROWS = [
    Speed(3, "8B", H100_500W, 8, 2, "op", 8532, compile=True, float8=True),
    Speed(3, "8B", H100_500W, 128, 2, "op", 8380, compile=True, float8=True),
    Speed(3, "8B", H200, 32, 2, "op", 10_938, compile=True, float8=True),
    Speed(3, "8B", H200, 64, 2, "op", 10_753, compile=True, float8=True),
    Speed(3, "70B", H100_500W, 256, 16, "full", 829, compile=True, float8=True, tensor=8),
    Speed(3, "70B", H100_500W, 256, 16, "full", 876, compile=True, float8=True, tensor=8, asynchronous=True),
]


def _halve(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    return tuple(kernel._replace(flops=kernel.flops / 2, bytes=kernel.bytes / 2) for kernel in kernels)


def _work(row: Speed, architecture: Architecture, training: TrainingPlan, work: StepWork) -> StepWork:
    """Return the work of torchtitan, which does more than Polder without compilation, and recomputes other products.

    Without compilation a norm in bf16 is nine kernels, which read and write 36 bytes per element instead of
    4, except for models with fused norms (train_configs of April 2024: all but Llama's 70B), and the
    rotation of complex numbers in float32 moves 20 bytes instead of 8; backward twice as many. Such kernels
    reach nine tenths of the memory bandwidth.
    """
    a, tokens = architecture, row.micro_batch_size * training.sequence_length
    if not row.compile:
        heads = (a.heads + a.key_value_head_count) * a.head_dimension
        norms = 0 if row.machine is SELENE and row.size != "70B" else 2 * 32 * a.width
        more = tokens * (norms + 12 * heads) / row.tensor * step_time.MEMORY_SHARE / 0.9
        *products, between = work.forward
        forward = (*products, Kernel(0, between.bytes + more))
        recomputed = work.recomputed and (*work.recomputed[:-1], Kernel(0, work.recomputed[-1].bytes + more))
        backward = (*work.backward, Kernel(0, 2 * more))
        work = dataclasses.replace(work, forward=forward, backward=backward, recomputed=recomputed)
    if row.recomputation == "op":
        *products, _, _ = work.forward
        return dataclasses.replace(work, recomputed=(*work.recomputed, *_halve(products)))
    if row.recomputation == "layer":
        attended, to_output, fed, _, *others = work.forward  # recomputation ends before the last product
        return dataclasses.replace(work, recomputed=_halve((attended, to_output, fed, *others)))
    return work


def counted_work(row: Speed) -> tuple[StepWork, DeviceMesh]:
    """Return the operations of one device in a row."""
    shape = (LLAMA3 if row.family == 3 else LLAMA2)[row.size]
    architecture, vocabulary_size = Architecture.model_validate(shape), 128_256 if row.family == 3 else 32_000
    training = TrainingPlan(
        precision="bf16",
        sequence_length=row.sequence_length,
        batch_size=row.devices // row.tensor * row.micro_batch_size,
        micro_batch_size=row.micro_batch_size,
        steps=1,
        mesh={"tensor": row.tensor},
        recomputation={"op": "selective", "layer": "selective"}.get(row.recomputation, row.recomputation),
        compile=row.compile,
        float8=row.float8,
        async_tensor_parallel=row.asynchronous,
    )
    mesh = training_step_operations.make_device_mesh(training, row.devices, row.machine.devices)
    work = training_step_operations.count_step_work(architecture, vocabulary_size, training, mesh)
    return _work(row, architecture, training, work), mesh


def tokens_per_second(row: Speed) -> float:
    """Return the tokens per second of one device of a row by the model."""
    work, mesh = counted_work(row)
    return row.tokens_of_a_step / estimate_step_time(work, mesh, row.machine).seconds


def mean_error(rows: Sequence[Speed]) -> float:
    """Return the mean relative error of rows."""
    return sum(abs(tokens_per_second(row) / row.tokens_per_second - 1) for row in rows) / len(rows)


def fit_bf16() -> H100Fit:
    """Return the rates with the least mean error on the bf16 rows; those of A100 determine overlapped communication."""
    counted = [(row, *counted_work(row)) for row in (*A100_ROWS, *H100_ROWS)]
    before = step_time.OVERLAP_COST

    def error(rates: H100Fit) -> float:
        step_time.OVERLAP_COST = rates.overlap_cost
        result = 0.0
        for row, work, mesh in counted:
            machine = row.machine
            if row.machine is H100_500W:
                machine = dataclasses.replace(
                    machine,
                    matrix_flops_per_second=rates.matrix_flops_per_second,
                    attention_flops_per_second=rates.attention_flops_per_second,
                )
            speed = row.tokens_of_a_step / estimate_step_time(work, mesh, machine).seconds
            result += abs(speed / row.tokens_per_second - 1)
        return result

    try:
        return min(H100_GRID, key=error)
    finally:
        step_time.OVERLAP_COST = before


def fit_shares(rows: Sequence[Speed], predict: Callable[[], list[float]]) -> tuple[tuple[float, float], list[float]]:
    """Return the `step_time` shares with the least mean error on rows, and the result of `predict` with them."""
    before = step_time.MATRIX_SHARE, step_time.MEMORY_SHARE

    def error(pair: tuple[float, float]) -> float:
        step_time.MATRIX_SHARE, step_time.MEMORY_SHARE = pair
        return mean_error(rows)

    try:
        best = min(((a, b) for a in SHARES["MATRIX_SHARE"] for b in SHARES["MEMORY_SHARE"]), key=error)
        step_time.MATRIX_SHARE, step_time.MEMORY_SHARE = best
        return best, predict()
    finally:
        step_time.MATRIX_SHARE, step_time.MEMORY_SHARE = before


def fit_float8_rate() -> float:
    """Return the FP8 product rate relative to bf16 with the least mean error on the float8 rows."""
    before = training_step_operations.FLOAT8_RATE

    def error(rate: float) -> float:
        training_step_operations.FLOAT8_RATE = rate
        return mean_error(FLOAT8_ROWS)

    try:
        return min((x / 20 for x in range(20, 41)), key=error)
    finally:
        training_step_operations.FLOAT8_RATE = before
