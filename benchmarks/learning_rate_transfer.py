"""Best learning rate by width, with maximal update parametrization and without.

    PYTHONPATH=. python benchmarks/learning_rate_transfer.py TEXT.jsonl.gz [--widths 64 128 256] [--seeds 2]

Models of two layers read the bytes of real text for the same number of steps. Their initial standard deviation is
0.02, or, with maximal update parametrization, 1 / sqrt(base width), where the base is the smallest width. The loss is
that of held-out text, averaged over seeds; the best rate is the vertex of the parabola through the lowest loss and its
neighbors. Prints Markdown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
from itertools import product
from pathlib import Path
from statistics import fmean

LENGTH, BATCH, STEPS, HELD_OUT = 128, 16, 120, 64
RATES = [2.0**power for power in range(-11, -3)]


def text_bytes(path: Path) -> bytes:
    """Return the text of a file of rows, as long as all steps and the held-out sequences need."""
    wanted, parts = (STEPS * BATCH + HELD_OUT) * (LENGTH + 1), []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            parts.append(json.loads(line)["text"].encode())
            if sum(map(len, parts)) >= wanted:
                return b"".join(parts)[:wanted]
    raise SystemExit(f"{path} has fewer than {wanted} bytes of text: give a larger file")


def trained(arguments: tuple[bytes, int, dict[str, float], float, int]) -> float:
    """Train one model; return its loss on held-out text in bits per byte."""
    import torch

    from pipeline.model.networks import get_network, initial_state
    from pipeline.model.settings import Architecture
    from pipeline.pretrain.learning_rate import learning_rate_at
    from pipeline.pretrain.parallel.optimizer import make_optimizer, set_learning_rate
    from pipeline.pretrain.settings import SegmentSettings, Training

    text, width, how, rate, seed = arguments
    torch.set_num_threads(1)
    architecture = Architecture.model_validate({"layers": 2, "width": width, "heads": width // 16, **how})
    training = Training(
        sequence_length=LENGTH,
        batch_size=BATCH,
        micro_batch_size=BATCH,
        steps=STEPS,
        warmup_steps=STEPS // 10,
        learning_rate=rate,
    )
    settings = SegmentSettings(architecture=architecture, training=training, seed=seed, first_step=0, last_step=STEPS)
    model = get_network(architecture.name).model(architecture, 256)
    model.load_state_dict(initial_state(architecture, 256, seed))
    optimizer = make_optimizer(dict(model.named_parameters()), settings, fused=True)
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH + 1)
    held_out, rows = rows[:HELD_OUT], rows[HELD_OUT:]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    for step in range(1, STEPS + 1):
        batch = rows[order[(step - 1) * BATCH : step * BATCH]]
        optimizer.zero_grad()
        (model(batch[:, :-1], batch[:, 1:]) / (BATCH * LENGTH)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip)
        set_learning_rate(optimizer, learning_rate_at(training, step))
        optimizer.step()
    with torch.no_grad():
        loss = float(model(held_out[:, :-1], held_out[:, 1:])) / (HELD_OUT * LENGTH)
    return loss / math.log(2) if math.isfinite(loss) else math.inf


def best(losses: list[float]) -> float:
    """Return the rate at which the parabola through the least loss and its neighbors is least, in log rate."""
    least = min(range(1, len(losses) - 1), key=losses.__getitem__)
    before, here, after = losses[least - 1 : least + 2]
    shift = (before - after) / (2 * (before - 2 * here + after))
    return float(RATES[least] * 2.0 ** max(-1.0, min(1.0, shift)))


def main() -> None:
    """Train each width at each rate, and print the losses and the best rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    text, widths = text_bytes(arguments.text), arguments.widths
    base = min(widths)
    kinds = {"standard": {}, "maximal update": {"base_width": base, "initial_deviation": base**-0.5}}
    models = list(product(kinds, widths))
    runs = list(product(models, RATES, range(arguments.seeds)))
    work = [(text, width, kinds[kind], rate, seed) for (kind, width), rate, seed in runs]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        result = dict(zip(runs, pool.map(trained, work, chunksize=1), strict=True))
    print(f"| parametrisation, width | {' | '.join(f'{rate:.4g}' for rate in RATES)} | best rate |")
    print("|---|" + "---|" * (len(RATES) + 1))
    for kind, width in models:
        losses = [fmean(result[(kind, width), rate, seed] for seed in range(arguments.seeds)) for rate in RATES]
        columns = " | ".join(f"{loss:.3f}" for loss in losses)
        print(f"| {kind}, {width} | {columns} | {best(losses):.4f} |", flush=True)


if __name__ == "__main__":
    main()
