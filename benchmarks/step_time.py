"""Training step times by `pipeline.plan.step_time`, against published ones.

With --fit its two efficiencies are fitted again to the Megatron-LM rows, and each size is predicted from the other
three; then an H100's rates and the cost of overlapped communication are fitted to the FSDP rows of llm-foundry, and
each size is predicted from the others. Nothing is fitted on torchtitan's rows in bf16; in turn, their fits predict the
other two publications.
"""

from __future__ import annotations

import argparse
import math

from pipeline.core.display_text import align_columns
from tests.plan.published_steps import (
    FSDP,
    FSDP_LONG,
    MEGATRON,
    H100Fit,
    Throughput,
    errors,
    fit,
    fit_h100,
    fsdp_ratios,
    fsdp_work,
    predicted,
    rate_of_lumi,
    reached,
    shapes,
    sizes,
    unseen_errors,
)
from tests.plan.published_torchtitan import (
    A100_ROWS,
    FLOAT8_ROWS,
    H100_ROWS,
    fit_bf16,
    fit_float8_rate,
    fit_shares,
    tokens_per_second,
)


def describe(rates: H100Fit) -> str:
    """Return what was fitted in words."""
    return (
        f"products {rates.matrix_flops_per_second:.3g}, attention {rates.attention_flops_per_second:.3g}, "
        f"overlapped communication {rates.overlap_cost:g}"
    )


def fsdp_error(rows: list[Throughput], rates: H100Fit) -> float:
    """Return the mean error of rows of FSDP in percent."""
    result = fsdp_ratios(rows, rates, [*map(fsdp_work, rows)])
    return 100 * sum(abs(ratio - 1) for ratio in result) / len(result)


def print_h100_fit() -> None:
    """Print the rates of least mean error on the rows of FSDP, and the error on sizes left out."""
    unseen = 0.0
    for shape, (own, others) in shapes().items():
        rates = fit_h100(others)
        unseen += fsdp_error(own, rates) * len(own) / len(FSDP)
        print(f"{shape}: by the others' {describe(rates)}: mean error {fsdp_error(own, rates):.1f} %")
    print(f"fitted on all: {describe(fit_h100(FSDP))}; mean error of sizes that were not fitted: {unseen:.2f} %\n")


def fit_publications() -> None:
    """Print what the fits on torchtitan's rows in bf16 predict of the other publications, and two more fits."""
    rates = fit_bf16()
    print(f"llm-foundry by torchtitan's {describe(rates)}: mean error {fsdp_error(FSDP, rates):.1f} %")
    shares, result = fit_shares(A100_ROWS, lambda: errors([*MEGATRON]))
    print(f"Megatron-LM by torchtitan's shares {shares}: mean error {100 * sum(map(abs, result)) / len(result):.1f} %")
    print(f"rate of products in 8 bits relative to bf16: {fit_float8_rate():.3g}")
    print(f"rate of a die of LUMI by Poro: {rate_of_lumi():.3g}\n")


def table(rows: list[tuple[str, float, float]], title: str) -> None:
    """Print what was published and predicted, the ratio of each, and the mean and largest error."""
    lines = [[title, "published", "predicted", "ratio"]]
    lines += [[name, f"{published:.6g}", f"{ours:.6g}", f"{ours / published:.3f}"] for name, published, ours in rows]
    results = [abs(ours / published - 1) for _, published, ours in rows]
    print("\n".join(align_columns(lines)))
    print(f"mean error {100 * sum(results) / len(results):.2f} %, largest {100 * max(results):.2f} %\n")


def main() -> None:
    """Print each row with its ratio, and the mean and largest error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    names = [*MEGATRON]
    if parser.parse_args().fit:
        unseen = []
        for size, (own, others) in sizes().items():
            shares = fit(others)
            result = errors(own)
            unseen += result
            print(f"{size}: by the others' shares {shares}: " + ", ".join(f"{100 * e:+.1f} %" for e in result))
        print(f"fitted on all: {fit(names)}; mean error of sizes that were not fitted: ", end="")
        print(f"{100 * sum(map(abs, unseen)) / len(unseen):.2f} %\n")
        print_h100_fit()
        fit_publications()
        squares = [error**2 for error in unseen_errors()]
        print(f"standard deviation of ln(published / predicted) of all: {math.sqrt(sum(squares) / len(squares)):.3f}\n")
    table([(name, MEGATRON[name].seconds, predicted(name)) for name in names], "Megatron-LM, A100, seconds of a step")
    for foundry, title in ((FSDP, "llm-foundry"), (FSDP_LONG, "llm-foundry, longer sequences")):
        published = [
            (f"{r.shape} {r.sequence_length} x {r.micro_batch_size} on {r.devices}", r.tokens_per_second, reached(r))
            for r in foundry
        ]
        table(published, f"{title}, H100, tokens a second and device")
    for title, rows in {"A100": A100_ROWS, "H100": H100_ROWS, "float8": FLOAT8_ROWS}.items():
        lines = [(row.name, row.tokens_per_second, tokens_per_second(row)) for row in rows]
        table(lines, f"torchtitan, {title}, tokens a second and device")


if __name__ == "__main__":
    main()
