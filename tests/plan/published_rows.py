"""Every published row with the planned figure, and the errors of whole publications that a fit leaves out."""

from __future__ import annotations

from typing import NamedTuple

from tests.plan.published_steps import (
    FSDP,
    FSDP_LONG,
    MEGATRON,
    H100Fit,
    Throughput,
    errors,
    fsdp_ratios,
    fsdp_work,
    predicted,
    reached,
)
from tests.plan.published_torchtitan import (
    A100_ROWS,
    FLOAT8_ROWS,
    H100_ROWS,
    fit_bf16,
    fit_shares,
    mean_error,
    tokens_per_second,
)


class Row(NamedTuple):
    """A training: published and planned seconds of a step, or tokens per second and device."""

    name: str
    published: float
    planned: float

    @property
    def error(self) -> float:
        """Return by how much the planned figure differs, as a share of the published one."""
        return self.planned / self.published - 1


def list_rows() -> dict[str, list[Row]]:
    """Return the rows of each publication, by its title."""
    publications = {
        "Megatron-LM on A100, seconds of a step": [Row(n, row.seconds, predicted(n)) for n, row in MEGATRON.items()]
    }
    for rows, words in ((FSDP, ""), (FSDP_LONG, ", longer sequences")):
        publications[f"llm-foundry on H100{words}, tokens per second and device"] = [
            Row(
                f"{row.shape}, {row.sequence_length:,} tokens x {row.micro_batch_size} on {row.devices}",
                row.tokens_per_second,
                reached(row),
            )
            for row in rows
        ]
    torchtitan = {"on A100": A100_ROWS, "on H100": H100_ROWS, "in float8 on H100 and H200": FLOAT8_ROWS}
    for name, speeds in torchtitan.items():
        publications[f"torchtitan {name}, tokens per second and device"] = [
            Row(row.name, row.tokens_per_second, tokens_per_second(row)) for row in speeds
        ]
    return publications


def format_rows() -> list[str]:
    """Return a table of all rows in Markdown, with the error of each."""
    lines = ["| Training | Published | Planned | Error |", "|---|--:|--:|--:|"]
    for title, rows in list_rows().items():
        lines.append(f"| **{title}** | | | |")
        for one in rows:
            error = round(100 * one.error, 1) + 0.0  # no -0.0
            lines.append(f"| {one.name} | {_format(one.published)} | {_format(one.planned)} | {error:+.1f} % |")
    return lines


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def fsdp_error(rows: list[Throughput], rates: H100Fit) -> float:
    """Return the mean error of rows of llm-foundry with these rates."""
    ratios = fsdp_ratios(rows, rates, [*map(fsdp_work, rows)])
    return sum(abs(ratio - 1) for ratio in ratios) / len(ratios)


def errors_of_left_out_publications() -> dict[str, tuple[int, float]]:
    """Return the number of rows and the mean error of each publication by fits on the others, and of all rows."""
    _, megatron = fit_shares(A100_ROWS, lambda: errors([*MEGATRON]))
    bf16 = [*A100_ROWS, *H100_ROWS]
    result = {
        "torchtitan": (len(bf16), mean_error(bf16)),
        "llm-foundry": (len(FSDP), fsdp_error(FSDP, fit_bf16())),
        "Megatron-LM": (len(MEGATRON), sum(map(abs, megatron)) / len(megatron)),
    }
    number = sum(rows for rows, _ in result.values())
    return {**result, "all": (number, sum(rows * error for rows, error in result.values()) / number)}
