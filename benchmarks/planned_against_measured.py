"""Memory and time forecast by `polder plan` for twenty trainings, against real steps on this machine.

    PYTHONPATH=. python benchmarks/planned_against_measured.py

Two processes over gloo take FSDP steps: three strategies, three micro-batches, recomputed or not, and one each in bf16
and with selective recomputation. Memory comes from the trace (`plan CONFIG`) and from the formula (`plan.json`). Time
comes from operation counts at the first training's utilization, as on a platform that states nothing else. Prints
Markdown.
"""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import Any

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token
from pipeline.pretrain.monitors.memory_estimate import TraceRequest, estimate_bytes, trace_memory
from pipeline.pretrain.parallel.process_layout import make_layout
from pipeline.pretrain.settings import Training
from tests.pretrain.monitors.real_steps import real_steps

PROCESSES, VOCABULARY = 2, 4096
SHAPE = {"layers": 4, "width": 256, "heads": 8, "key_value_heads": 4}


def cells() -> dict[str, dict[str, Any]]:
    """Return the trainings by name; each process takes two micro-batches a step."""
    usual = {"sequence_length": 256, "learning_rate": 1e-3, "steps": 10, "precision": "fp32"}
    results = {}
    for strategy, size, how in product(("full_shard", "shard_grad_op", "no_shard"), (1, 2, 4), ("none", "full")):
        results[f"{strategy}, {size}, {how}"] = {"strategy": strategy, "micro_batch_size": size, "recomputation": how}
    results["full_shard, 2, none, bf16"] = {"micro_batch_size": 2, "precision": "bf16"}
    results["full_shard, 2, selective"] = {"micro_batch_size": 2, "recomputation": "selective"}
    return {
        name: {**usual, **one, "batch_size": 2 * PROCESSES * one["micro_batch_size"]} for name, one in results.items()
    }


def main() -> None:
    """Trace, count and measure each cell, and print a row for it."""
    architecture = Architecture.model_validate(SHAPE)
    trainings = {name: Training.model_validate(one) for name, one in cells().items()}
    settings = {
        name: {"architecture": SHAPE, "training": one, "seed": 0, "first_step": 0, "last_step": 10}
        for name, one in cells().items()
    }
    real = real_steps(settings, VOCABULARY, processes=PROCESSES, timed=True)
    flops = {
        name: one.batch_size
        * one.sequence_length
        * flops_per_token(architecture, VOCABULARY, one.sequence_length, recomputation=one.recomputation == "full")
        for name, one in trainings.items()
    }
    first = next(iter(trainings))
    rate = flops[first] / real[first]["seconds"]
    columns = ("traced MB", "real MB", "off by", "formula off by", "planned ms", "real ms", "off by")
    print(f"| strategy, micro-batch, recomputation | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    errors: dict[str, list[float]] = {"traced": [], "formula": [], "time": []}
    for name, training in trainings.items():
        asked = TraceRequest(
            training=training,
            architecture=architecture,
            vocabulary_size=VOCABULARY,
            processes=PROCESSES,
            per_node=4,
            device="cpu",
        )
        traced, counted = (
            trace_memory(asked).peak_bytes,
            estimate_bytes(
                training, architecture, VOCABULARY, make_layout(training, PROCESSES, 4), training.micro_batch_size
            ),
        )
        held, took, planned = real[name]["peak_bytes"], real[name]["seconds"], flops[name] / rate
        off = {"traced": traced / held - 1, "formula": counted / held - 1, "time": planned / took - 1}
        for key, value in off.items():
            errors[key].append(abs(value))
        print(
            f"| {name} | {traced / 1e6:.1f} | {held / 1e6:.1f} | {off['traced']:+.1%} | {off['formula']:+.0%} "
            f"| {1e3 * planned:.0f} | {1e3 * took:.0f} | {off['time']:+.0%} |",
            flush=True,
        )
    summary = ", ".join(f"{key} {fmean(values):.1%} and {max(values):.1%}" for key, values in errors.items())
    print(f"\n{len(trainings)} trainings; mean and largest error: {summary}")


if __name__ == "__main__":
    main()
