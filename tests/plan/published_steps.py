"""Published training step times, counted for `pipeline.plan.step_time`; for a test and a benchmark."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from pipeline.model.settings import Architecture
from pipeline.plan import step_time as model
from pipeline.plan import training_step_operations
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.step_time import DeviceMesh, Kernel, Machine, StepWork, estimate_step_time

# NVIDIA, data sheet of the A100 80 GB SXM: 2,039 GB/s of memory, NVLink 600 GB/s in both directions; Selene has an
# HDR200 adapter for each. Best matrix product: https://github.com/stas00/ml-engineering, compute/accelerator/README.md.
SELENE = Machine(267.9e12, 2039e9, 300e9, 25e9, devices=8)
SEQUENCE, VOCABULARY = 2048, 51_200


class Row(NamedTuple):
    """A model of GPT's shape on one pipeline of A100, with its iteration time."""

    layers: int
    width: int
    heads: int
    mesh: DeviceMesh
    micro_batches: int
    micro_batch_size: int
    selective: bool
    seconds: float
    vocabulary_size: int = VOCABULARY


# AMD, data sheet of the MI250X, and https://docs.lumi-supercomputer.eu/hardware/lumig/ for one of its two dies.
LUMI = Machine(147e12, 1600e9, 50e9, 12.5e9, devices=8)
# Luukkonen et al. 2024 (arXiv 2404.01856), section 3.2: 174,378 tokens a second on 1,024 dies, Megatron-DeepSpeed with
# full recomputation; the shape is config.json of LumiOpen/Poro-34B on Hugging Face, an iteration has 2,048 sequences.
PORO = Row(54, 7168, 56, DeviceMesh(tensor=2, pipeline=4), 16, 1, False, 2048 * 2048 / 174_378, 128_000)


def _rows(name: str, full: float, selective: float, *shape: object) -> dict[str, Row]:
    return {
        f"{name} {how}": Row(*shape, how == "selective", seconds)  # type: ignore[arg-type]
        for how, seconds in (("full", full), ("selective", selective))
    }


# Korthikanti et al. 2022 (arXiv 2205.05198), tables 3 and 5: full recomputation, and sequence parallelism with
# selective recomputation. The same eight that Calculon is validated on (https://github.com/calculon-ai/calculon,
# validation/seqsel/tab5), where its mean error is 3.65 % and its largest 8.87 %.
MEGATRON = {
    **_rows("22B", 1.42, 1.10, 48, 6144, 64, DeviceMesh(tensor=8), 1, 4),
    **_rows("175B", 18.13, 13.75, 96, 12_288, 96, DeviceMesh(tensor=8, pipeline=8, interleaving=3), 64, 1),
    **_rows("530B", 49.05, 37.83, 105, 20_480, 128, DeviceMesh(tensor=8, pipeline=35, interleaving=3), 280, 1),
    **_rows("1T", 94.42, 71.49, 128, 25_600, 160, DeviceMesh(tensor=8, pipeline=64), 512, 1),
}


def work(row: Row) -> StepWork:
    """Return the operations of one device: fp16, a feed-forward block of 4 D, attention without a fused kernel.

    Elements read and written: norm 4 D, dropout with residual and mask 3.5 D, twice each; GELU 8 D x 2; softmax and
    dropout of the scores. Sequence parallelism splits the first two. Backward the same with their gradients. Its
    all-gathers and reduce-scatters are 2 T D bytes each; those that overlap a weight's gradient cost nothing
    (Korthikanti et al. 2022, section 4.2.2).
    """
    t, d, s = row.mesh.tensor, row.width, SEQUENCE
    tokens = row.micro_batch_size * s
    split = t if row.selective else 1

    def product(inner: float, outer: float) -> Kernel:
        return Kernel(2 * tokens * inner * outer, 2 * (tokens * (inner + outer) + inner * outer))

    def moved(elements: float) -> Kernel:
        return Kernel(0, tokens * elements)

    linear = (product(d, 3 * d / t), product(d / t, d), product(d, 4 * d / t), product(4 * d / t, d))
    scores = Kernel(2 * tokens * s * d / t, 2 * tokens * (2 * d + s * row.heads) / t)
    core = (scores, scores, moved(9 * s * row.heads / t))
    forward = (*linear, *core, moved(22 * d / split + 16 * d / t))
    core_back = (scores,) * 4 + (moved(11 * s * row.heads / t),)
    head = product(d, row.vocabulary_size / t)
    once = 2 * tokens * d * (t - 1) / t
    return StepWork(
        forward=forward,
        backward=(*linear, *linear, *core_back, moved(42 * d / split + 24 * d / t)),
        recomputed=core if row.selective else forward,
        context_bytes=0,
        tensor_bytes=(4 + 2 if row.selective else 4 + 4) * once,
        head=(head, head, head, moved(24 * row.vocabulary_size / t)),
        layers=row.layers / row.mesh.pipeline,
        micro_batches=row.micro_batches,
        stage_bytes=2 * 2 * tokens * d / t,
        optimizer=(Kernel(0, 42 * (12 * d * d * row.layers / row.mesh.pipeline + row.vocabulary_size * d) / t),),
    )


def predicted(name: str) -> float:
    """Return the modeled seconds of a row."""
    row = MEGATRON[name]
    return estimate_step_time(work(row), row.mesh, SELENE).seconds


class Throughput(NamedTuple):
    """A model trained by FSDP on H100, with its tokens per second on one device."""

    shape: str
    sequence_length: int
    devices: int
    micro_batch_size: int
    batch_size: int
    recomputation: str
    tokens_per_second: float


# Layers, width and heads of MPT (https://github.com/mosaicml/llm-foundry, scripts/train/yamls/pretrain). Its
# feed-forward block of 4 D has as many operations as one of SwiGLU's of 8/3 D.
MPT = {
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
# The same repository, scripts/train/benchmarking/README.md, read 2026-11: all rows of H100 in bf16 with 1 billion
# parameters or more and sequences of 2,048 to 8,192 tokens.
FSDP = [
    Throughput("1b", 2048, 8, 14, 112, "none", 45455),
    Throughput("1b", 2048, 16, 20, 320, "none", 46037),
    Throughput("1b", 2048, 32, 20, 640, "none", 45130),
    Throughput("1b", 2048, 64, 20, 1280, "none", 44402),
    Throughput("1b", 4096, 8, 7, 224, "none", 38535),
    Throughput("1b", 8192, 8, 3, 96, "none", 29157),
    Throughput("3b", 2048, 16, 10, 480, "none", 24142),
    Throughput("3b", 2048, 32, 6, 576, "none", 23021),
    Throughput("3b", 2048, 64, 6, 1152, "none", 22525),
    Throughput("3b", 4096, 8, 5, 240, "none", 20964),
    Throughput("3b", 8192, 8, 3, 144, "none", 16578),
    Throughput("7b", 2048, 8, 6, 48, "none", 10643),
    Throughput("7b", 4096, 8, 16, 256, "full", 8611),
    Throughput("7b", 8192, 8, 8, 128, "full", 6935),
    Throughput("13b", 2048, 8, 2, 16, "none", 4792),
    Throughput("13b", 2048, 16, 2, 32, "none", 4767),
    Throughput("13b", 2048, 32, 2, 64, "none", 4811),
    Throughput("13b", 2048, 64, 2, 128, "none", 4800),
    Throughput("13b", 4096, 8, 10, 240, "full", 4717),
    Throughput("30b", 2048, 8, 3, 504, "full", 2002),
    Throughput("30b", 2048, 16, 10, 480, "full", 2263),
    Throughput("30b", 2048, 32, 14, 1344, "full", 2308),
    Throughput("30b", 4096, 8, 1, 168, "full", 1802),
    Throughput("30b", 8192, 8, 1, 168, "full", 1384),
    Throughput("70b", 2048, 32, 2, 1024, "full", 882),
    Throughput("70b", 2048, 64, 8, 2048, "full", 1039),
]


# Of the same table the rows of 1 billion parameters or more with longer sequences, on which nothing is fitted.
FSDP_LONG = [
    Throughput("1b", 16_384, 8, 2, 64, "none", 19649),
    Throughput("1b", 32_768, 8, 1, 32, "none", 12025),
    Throughput("1b", 65_536, 8, 1, 16, "full", 5506),
    Throughput("3b", 16_384, 8, 1, 48, "none", 11152),
    Throughput("3b", 32_768, 8, 3, 144, "full", 5873),
    Throughput("3b", 65_536, 8, 1, 16, "full", 3262),
    Throughput("7b", 32_768, 8, 2, 32, "full", 3318),
    Throughput("7b", 65_536, 8, 1, 16, "full", 1956),
    Throughput("13b", 16_384, 8, 3, 72, "full", 2985),
    Throughput("13b", 32_768, 8, 1, 24, "full", 1976),
]
# NVIDIA, data sheet of the H100 SXM; the adapters, 400 Gb/s for each device, are an assumption. Its rates of matrix
# products and of attention are fitted on the rows above: the best single product is 792e12.
H100 = Machine(740e12, 3350e9, 450e9, 50e9, devices=8, attention_flops_per_second=175e12)


def fsdp_work(row: Throughput) -> tuple[StepWork, DeviceMesh]:
    """Return the operations of one device in a row.

    Gradients are reduced in fp32 (Composer's mixed precision DEFAULT). Its backward_prefetch is BACKWARD_POST, which
    gathers the weights of a layer when the backward pass of the one before has ended: 2 of 8 bytes are not overlapped.
    """
    layers, width, heads = MPT[row.shape]
    shape = {"layers": layers, "width": width, "feed_forward_width": round(8 * width / 3), "heads": heads}
    architecture = Architecture(**shape, tie_embeddings=True)
    training = TrainingPlan(
        **row._asdict() | {"precision": "bf16", "steps": 1, "strategy": "full_shard", "gradient_reduction": "fp32"}
    )
    mesh = training_step_operations.make_device_mesh(training, row.devices, H100.devices)
    counted = training_step_operations.count_step_work(architecture, 50_368, training, mesh)
    return dataclasses.replace(counted, exposed_share=0.25), mesh


def reached(row: Throughput, machine: Machine = H100) -> float:
    """Return the tokens a second on one device of a row by the model."""
    step = estimate_step_time(*fsdp_work(row), machine)
    return row.batch_size * row.sequence_length / step.seconds / row.devices


SHARES = {"MATRIX_SHARE": [x / 200 for x in range(140, 200)], "MEMORY_SHARE": [x / 40 for x in range(16, 38)]}


def errors(rows: list[str]) -> list[float]:
    """Return predicted / published - 1 of rows."""
    return [predicted(name) / MEGATRON[name].seconds - 1 for name in rows]


def fit(rows: list[str]) -> tuple[float, float]:
    """Return the shares with the least mean error on rows, and keep them set."""

    def mean(pair: tuple[float, float]) -> float:
        model.MATRIX_SHARE, model.MEMORY_SHARE = pair
        return sum(map(abs, errors(rows)))

    best = min(((a, b) for a in SHARES["MATRIX_SHARE"] for b in SHARES["MEMORY_SHARE"]), key=mean)
    model.MATRIX_SHARE, model.MEMORY_SHARE = best
    return best


def rate_of_lumi() -> float:
    """Return the matrix product rate of a LUMI die that reproduces Poro's iteration."""

    def error(rate: float) -> float:
        machine = dataclasses.replace(LUMI, matrix_flops_per_second=rate)
        return abs(estimate_step_time(work(PORO), PORO.mesh, machine).seconds - PORO.seconds)

    return min((x * 1e12 for x in range(40, 148)), key=error)


class H100Fit(NamedTuple):
    """Fit two rates of an H100 and the cost of overlapped communication on FSDP rows."""

    matrix_flops_per_second: float
    attention_flops_per_second: float
    overlap_cost: float


H100_GRID = [
    H100Fit(products * 1e12, attention * 1e12, cost / 20)
    for products in range(600, 821, 20)
    for attention in range(125, 351, 25)
    for cost in range(0, 21)
]


def fsdp_ratios(rows: list[Throughput], rates: H100Fit, counted: list[tuple[StepWork, DeviceMesh]]) -> list[float]:
    """Return predicted over published speed of FSDP rows, with the given `fsdp_work`."""
    machine = dataclasses.replace(
        H100,
        matrix_flops_per_second=rates.matrix_flops_per_second,
        attention_flops_per_second=rates.attention_flops_per_second,
    )
    before, model.OVERLAP_COST = model.OVERLAP_COST, rates.overlap_cost
    try:
        seconds = [estimate_step_time(work, mesh, machine).seconds for work, mesh in counted]
    finally:
        model.OVERLAP_COST = before
    tokens = [row.batch_size * row.sequence_length / row.devices for row in rows]
    return [t / s / row.tokens_per_second for t, s, row in zip(tokens, seconds, rows, strict=True)]


def fit_h100(rows: list[Throughput]) -> H100Fit:
    """Return the rates with the least mean error on FSDP rows."""
    counted = [*map(fsdp_work, rows)]
    return min(H100_GRID, key=lambda rates: sum(abs(ratio - 1) for ratio in fsdp_ratios(rows, rates, counted)))


def shapes() -> dict[str, tuple[list[Throughput], list[Throughput]]]:
    """Return the rows of each FSDP shape, and all others."""
    names = dict.fromkeys(row.shape for row in FSDP)
    return {n: ([row for row in FSDP if row.shape == n], [row for row in FSDP if row.shape != n]) for n in names}


def sizes() -> dict[str, tuple[list[str], list[str]]]:
    """Return the rows of each Megatron-LM size, and all others."""
    names = {name: name.split()[0] for name in MEGATRON}
    return {n: ([k for k in names if names[k] == n], [k for k in names if names[k] != n]) for n in names.values()}


def unseen_errors() -> list[float]:
    """Return ln(published / predicted seconds) of every row, its size or shape predicted by the fit on all others."""
    before = model.MATRIX_SHARE, model.MEMORY_SHARE
    results = []
    try:
        for own, others in sizes().values():
            fit(others)
            results += [-math.log(1 + error) for error in errors(own)]
    finally:
        model.MATRIX_SHARE, model.MEMORY_SHARE = before
    for own_rows, other_rows in shapes().values():
        results += map(math.log, fsdp_ratios(own_rows, fit_h100(other_rows), [*map(fsdp_work, own_rows)]))
    return results
