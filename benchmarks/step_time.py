"""Training step times by `pipeline.plan.step_time`, against published ones.

With --fit its two efficiencies are fitted again to the Megatron-LM rows, and each size is predicted from the other
three; then an H100's rates and the cost of overlapped communication are fitted to the FSDP rows of llm-foundry, and
each size is predicted from the others. Nothing is fitted on torchtitan's rows in bf16; in turn, their fits predict the
other two publications.
"""

from __future__ import annotations

import argparse
import math

from tests.plan.published_rows import errors_of_left_out_publications, format_rows, fsdp_error
from tests.plan.published_steps import (
    FSDP,
    MEGATRON,
    H100Fit,
    errors,
    fit,
    fit_h100,
    rate_of_lumi,
    shapes,
    sizes,
    unseen_errors,
)
from tests.plan.published_torchtitan import fit_float8_rate


def describe(rates: H100Fit) -> str:
    """Return what was fitted in words."""
    return (
        f"products {rates.matrix_flops_per_second:.3g}, attention {rates.attention_flops_per_second:.3g}, "
        f"overlapped communication {rates.overlap_cost:g}"
    )


def print_h100_fit() -> None:
    """Print the rates of least mean error on the rows of FSDP, and the error on sizes left out."""
    unseen = 0.0
    for shape, (own, others) in shapes().items():
        rates = fit_h100(others)
        unseen += fsdp_error(own, rates) * len(own) / len(FSDP)
        print(f"{shape}: by the others' {describe(rates)}: mean error {fsdp_error(own, rates):.1%}")
    print(f"fitted on all: {describe(fit_h100(FSDP))}; mean error of sizes that were not fitted: {unseen:.2%}\n")


def fit_publications() -> None:
    """Print the errors of whole publications that are left out of the fits, and two more fits."""
    for name, (rows, error) in errors_of_left_out_publications().items():
        print(f"{name}, {rows} rows by fits on other publications: mean error {error:.1%}")
    print(f"rate of products in 8 bits relative to bf16: {fit_float8_rate():.3g}")
    print(f"rate of a die of LUMI by Poro: {rate_of_lumi():.3g}\n")


def main() -> None:
    """Print each row with its error."""
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
    print("\n".join(format_rows()))


if __name__ == "__main__":
    main()
