"""Where a plan's times come from, what shapes would bring, and other sizes on the platform, as lines for a person."""

from __future__ import annotations

from typing import Any

from pipeline.core.formatting import aligned
from pipeline.plan.sizes import BATCH_SIZE, SEQUENCE_LENGTH, TOKENS_PER_PARAMETER
from pipeline.plan.table import readable

COLUMNS = {
    "seconds": "time",
    "published_least_seconds": "as published: from",
    "published_most_seconds": "to",
    "device_hours": "device hours",
    "energy_joules": "energy",
    "carbon_grams": "carbon",
    "water_liters": "water",
    "cost_euros": "cost",
}


def time_lines(plan: dict[str, Any]) -> list[str]:
    """Return the notes and advice of each model, and the table of sizes."""
    lines = [f"{name}: {note}" for name, told in plan["notes"].items() for note in told]
    for name, told in plan["advice"].items():
        lines += [f"{name}, shape: {one['advice']} (gain: {one['gain']}; {one['source']})" for one in told]
    return [*lines, *_sizes(plan)]


def _sizes(plan: dict[str, Any]) -> list[str]:
    """Return a line for each size and number of tokens."""
    if not plan["sizes"]:
        return []
    platform = plan["platform"]
    devices = platform["devices"] * platform["nodes"]
    rows = [[f"{devices} devices of {platform['name']}, estimated", "tokens", *COLUMNS.values()]]
    rows += [
        [f"{row['model']}, {row['tokens_per_parameter']:,} per parameter", readable("tokens", row["tokens"])]
        + [readable(key, row[key]) for key in COLUMNS]
        for row in plan["sizes"]
    ]
    ways = {row["model"]: row["way"] or "fits in no way that was tried" for row in plan["sizes"]}
    return [
        "",
        *aligned(rows),
        "tokens per parameter: " + "; ".join(f"{ratio:,} {name}" for ratio, name in TOKENS_PER_PARAMETER.items()),
        *(f"{model}: {way}" for model, way in ways.items()),
        f"sequences of {SEQUENCE_LENGTH:,}, {BATCH_SIZE} or more in a step, bf16, compiled, Llama 3's vocabulary",
    ]
