"""The time of training steps by `pipeline.plan.step_time` against those that others published.

With `--fit` its two shares are fitted again on the rows of Megatron-LM, and each size is told by the other three; then
an H100's rate of matrix products on those of FSDP, and each size by the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import math

from pipeline.ground.words import aligned
from pipeline.plan import step_time as model
from tests.plan.published_steps import FSDP, H100, MEGATRON, Throughput, predicted, reached

SHARES = {"MATRIX_SHARE": [x / 200 for x in range(140, 200)], "MEMORY_SHARE": [x / 40 for x in range(16, 38)]}


def errors(rows: list[str]) -> list[float]:
    """Return predicted / published - 1 of rows."""
    return [predicted(name) / MEGATRON[name].seconds - 1 for name in rows]


def fit(rows: list[str]) -> tuple[float, float]:
    """Return the shares of least mean error on rows, and leave them set."""

    def mean(pair: tuple[float, float]) -> float:
        model.MATRIX_SHARE, model.MEMORY_SHARE = pair
        return sum(map(abs, errors(rows)))

    best = min(((a, b) for a in SHARES["MATRIX_SHARE"] for b in SHARES["MEMORY_SHARE"]), key=mean)
    model.MATRIX_SHARE, model.MEMORY_SHARE = best
    return best


def rate_of(rows: list[Throughput]) -> float:
    """Return an H100's rate of matrix products of least mean error on rows of FSDP."""
    return min((x * 5e12 for x in range(90, 160)), key=lambda rate: mean_error(rate, rows))


def mean_error(rate: float, rows: list[Throughput]) -> float:
    """Return the mean relative error of rows of FSDP by a rate of matrix products."""
    machine = dataclasses.replace(H100, matrix_flops_per_second=rate)
    return sum(abs(reached(row, machine) / row.tokens_per_second - 1) for row in rows) / len(rows)


def shapes() -> dict[str, tuple[list[Throughput], list[Throughput]]]:
    """Return of each shape of FSDP its rows, and all others."""
    names = dict.fromkeys(row.shape for row in FSDP)
    return {n: ([row for row in FSDP if row.shape == n], [row for row in FSDP if row.shape != n]) for n in names}


def sizes() -> dict[str, tuple[list[str], list[str]]]:
    """Return of each size of Megatron-LM its rows, and all others."""
    names = {name: name.split()[0] for name in MEGATRON}
    return {n: ([k for k in names if names[k] == n], [k for k in names if names[k] != n]) for n in names.values()}


def unseen_errors() -> list[float]:
    """Return ln(published / predicted seconds) of every row, its size or shape by the fit on all others."""
    before = model.MATRIX_SHARE, model.MEMORY_SHARE
    found = []
    try:
        for own, others in sizes().values():
            fit(others)
            found += [-math.log(1 + error) for error in errors(own)]
    finally:
        model.MATRIX_SHARE, model.MEMORY_SHARE = before
    for own_rows, other_rows in shapes().values():
        machine = dataclasses.replace(H100, matrix_flops_per_second=rate_of(other_rows))
        found += [math.log(reached(row, machine) / row.tokens_per_second) for row in own_rows]
    return found


def fit_h100() -> None:
    """Print the rate of matrix products of least mean error on the rows of FSDP, and the error on sizes left out."""
    unseen = 0.0
    for shape, (own, others) in shapes().items():
        rate = rate_of(others)
        unseen += mean_error(rate, own) * len(own) / len(FSDP)
        print(f"{shape}: by the others' rate {rate:.3g}: mean error {100 * mean_error(rate, own):.1f} %")
    print(f"fitted on all: {rate_of(FSDP):.3g}; mean error of sizes that were not fitted: {100 * unseen:.2f} %\n")


def table(rows: list[tuple[str, float, float]], title: str) -> None:
    """Print what was published and predicted, the ratio of each, and the mean and largest error."""
    lines = [[title, "published", "predicted", "ratio"]]
    lines += [[name, f"{told:.6g}", f"{ours:.6g}", f"{ours / told:.3f}"] for name, told, ours in rows]
    found = [abs(ours / told - 1) for _, told, ours in rows]
    print("\n".join(aligned(lines)))
    print(f"mean error {100 * sum(found) / len(found):.2f} %, largest {100 * max(found):.2f} %\n")


def main() -> None:
    """Print each row with its ratio, and the mean and largest error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    names = [*MEGATRON]
    if parser.parse_args().fit:
        unseen = []
        for size, (own, others) in sizes().items():
            shares = fit(others)
            found = errors(own)
            unseen += found
            print(f"{size}: by the others' shares {shares}: " + ", ".join(f"{100 * e:+.1f} %" for e in found))
        print(f"fitted on all: {fit(names)}; mean error of sizes that were not fitted: ", end="")
        print(f"{100 * sum(map(abs, unseen)) / len(unseen):.2f} %\n")
        fit_h100()
        squares = [error**2 for error in unseen_errors()]
        print(f"standard deviation of ln(published / predicted) of all: {math.sqrt(sum(squares) / len(squares)):.3f}\n")
    table([(name, MEGATRON[name].seconds, predicted(name)) for name in names], "Megatron-LM, A100, seconds of a step")
    told = [
        (f"{r.shape} {r.sequence_length} x {r.micro_batch_size} on {r.devices}", r.tokens_per_second, reached(r))
        for r in FSDP
    ]
    table(told, "FSDP, H100, tokens a second and device")


if __name__ == "__main__":
    main()
