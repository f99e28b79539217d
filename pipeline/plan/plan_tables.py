"""Format the figures of a plan, and the table of its proposals."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from pipeline.core.display_text import align_columns

# Suffix of a key: the units from large to small, each with its size in the key's own unit.
UNITS: dict[str, tuple[tuple[str, float], ...]] = {
    "seconds": (("days", 86_400), ("hours", 3600), ("minutes", 60), ("s", 1)),
    "hours": (("h", 1),),
    "bytes": (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)),
    "joules": (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3600), ("J", 1)),
    "grams": (("t", 1e6), ("kg", 1e3), ("g", 1)),
    "liters": (("m³", 1000), ("l", 1)),
    "flops": (("FLOP", 1),),
    "euros": (("EUR", 1),),
}


BILLED = {"billed_gpu_hours": "GPU hours", "billed_core_hours": "core hours"}
"""What a site bills, by keys of a plan; where it bills GPUs, their cores are part of them."""


MODEL_COLUMNS = {
    "tokens": "tokens",
    "seconds": "time",
    "device_hours": "hours",
    "facility_energy_joules": "energy",
    "cost_euros": "cost",
}
"""The figures of a model where each has a row, by keys of a plan."""


def format_quantity(key: str, value: Any) -> str:
    """Format a value with three significant digits in the unit that its key names."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no"
    words = key.split("_")
    unit = next((word for word in reversed(words) if word in UNITS), None)
    if unit is not None:
        symbol, size = next((entry for entry in UNITS[unit] if value >= entry[1]), UNITS[unit][-1])
        return f"{_format_number(value / size)} {symbol}"
    if "share" in words:
        return "below 0.01 %" if 0 < value < 1e-4 else f"{_format_number(100 * value)} %"
    return _format_number(value)


def format_time_bounds(model: Mapping[str, Any]) -> str | None:
    """Format the 95 % interval of a model's time; None where it has none."""
    if model["low_seconds"] is None:
        return None
    return " to ".join(format_quantity("seconds", model[f"{end}_seconds"]) for end in ("low", "high"))


def format_memory(peak_bytes: int, device_bytes: int | None) -> str:
    """Format the memory of a device at its peak, with the free share where the device's size is known."""
    peak = format_quantity("bytes", peak_bytes)
    if not device_bytes:
        return peak
    return f"{peak} of {format_quantity('bytes', device_bytes)}, {max(1 - peak_bytes / device_bytes, 0):.0%} free"


def _format_number(value: float) -> str:
    """Format a number with thousands separators, from a million on in words, from a quadrillion on in powers of ten."""
    if value >= 1e15:
        return f"{value:.3g}".replace("e+", "e")
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def add_bound(key: str, model: Mapping[str, Any], value: Any) -> Any:
    """Return the value of a figure of evaluation with "at least" where not all suites could be counted."""
    is_bound = key.startswith("evaluation_") and model.get("evaluation_lower_bound") and isinstance(value, int | float)
    return f"at least {format_quantity(key, value)}" if is_bound else value


def format_evaluation_forecast(evaluation: Mapping[str, Any]) -> str:
    """Format the share of evaluation that finished runs foretell as one sentence, or why there is none."""
    if "refused" in evaluation:
        return f"evaluation by finished runs: unknown; {evaluation['refused']}"
    time, low, high, energy = (
        format_quantity("share", evaluation[f"{key}_share"]) for key in ("time", "low_time", "high_time", "energy")
    )
    folders = ", ".join(run["folder"] for run in evaluation["calibration"])
    return (
        f"evaluation by finished runs (estimated): {time} of the time of training jobs (95 %: {low} to {high}), "
        f"{energy} of their energy; from {folders}, with their suites"
    )


def list_proposal_rows(plan: Mapping[str, Any], name: str) -> list[list[str]]:
    """Return a table of a model as asked and as proposed: time, billed hours, energy, each with what is saved."""
    asked, size = plan["models"][name], plan["platform"]["memory_bytes_per_device"]
    billed = next((key for key in BILLED if asked[key]), "device_hours")
    keys = ("seconds", billed, "facility_energy_joules")
    hours = f"billed {BILLED[billed]}" if billed in BILLED else "device hours"
    rows = [[name, "time", hours, "energy", "memory of a device"]]
    rows.append(["as asked", *(format_quantity(key, asked[key]) for key in keys), "see above"])
    for one in plan["proposals"][name]:
        cells = [
            format_quantity(key, one[key])
            + (f" ({_format_saving(key, saved)})" if (saved := one[f"saved_{key}"]) else "")
            for key in keys
        ]
        nodes = f", {one['nodes']} nodes" if "slurm" in one["write"] else ""
        memory = f"{format_memory(one['memory_bytes'], size)}, by {one['memory_by']}"
        rows.append([one["aim"] + nodes, *cells, memory])
    return rows


def _format_saving(key: str, saved: float) -> str:
    return f"{format_quantity(key, abs(saved))} {'less' if saved > 0 else 'more'}"


def list_model_figures(
    model: Mapping[str, Any], platform: Mapping[str, Any], peak_bytes: int | None
) -> dict[str, str | None]:
    """Return the figures of a model that decide, by their labels; None where one is unknown.

    Args:
        peak_bytes: the traced memory of a device; None where it is unknown.
    """

    def shown(*keys: str) -> str | None:
        values = [format_quantity(key, model[key]) for key in keys if model[key] is not None]
        return ", ".join(values) if values else None

    time, bounds, hours = shown("seconds"), format_time_bounds(model), shown("device_hours")
    nodes = -(-model["devices_used"] // platform["devices"])
    on_nodes = f" on {nodes:,} nodes" if nodes > 1 else ""
    billed = next((key for key in BILLED if model[key]), None)
    memory = f"; {format_memory(peak_bytes, platform['memory_bytes_per_device'])}" if peak_bytes else ""
    return {
        "parameters, tokens": shown("parameters", "tokens"),
        "devices, memory of each": f"{model['devices_used']:,}{on_nodes}{memory}",
        "time (95 % interval)": f"{time} ({bounds})" if time and bounds else time,
        "device hours": f"{hours}, billed {model[billed]:,.0f} {BILLED[billed]}" if hours and billed else hours,
        "energy, carbon": shown("facility_energy_joules", "carbon_grams"),
        "cost": shown("cost_euros"),
        "disk for milestones, checkpoints": shown("checkpoint_bytes"),
    }


def list_model_rows(
    models: Mapping[str, Mapping[str, Any]],
    peak_bytes: Mapping[str, int],
    experiments: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[list[str]]:
    """Return a table with a row for each model, for all cells of each experiment, and for all together.

    Args:
        peak_bytes: the traced memory of a device, of the models where it is known.
        experiments: the models that are the cells of each, by the label of its row.
    """

    def sums(name: str, planned: Sequence[Mapping[str, Any]]) -> list[str]:
        values = {key: [one[key] for one in planned] for key in MODEL_COLUMNS}
        totals = {key: sum(value) if None not in value else None for key, value in values.items()}
        return [name, "", *(format_quantity(key, totals[key]) for key in MODEL_COLUMNS), ""]

    rows = [["model (estimated)", "parameters", *MODEL_COLUMNS.values(), "memory"]]
    for name, model in models.items():
        figures = [format_quantity(key, model[key]) for key in ("parameters", *MODEL_COLUMNS)]
        rows.append([name, *figures, format_quantity("bytes", peak_bytes.get(name))])
    rows += [sums(label, cells) for label, cells in experiments.items()]
    rows.append(sums("together", [*models.values(), *(cell for cells in experiments.values() for cell in cells)]))
    known = [number for number, column in enumerate(zip(*rows[1:], strict=True)) if {*column} - {"", "unknown"}]
    return [[row[number] for number in known] for row in rows]


def list_times_on_nodes(plan: Mapping[str, Any], models: Collection[str]) -> list[list[str]]:
    """Return a row with the time of each model on half, twice and four times the nodes; none where all are unknown."""
    nodes = plan["platform"]["nodes"]
    times = {name: {row["nodes"]: row["seconds"] for row in plan["scaling"][name]} for name in models}
    numbers = [number for number in (nodes // 2, 2 * nodes, 4 * nodes) if any(number in one for one in times.values())]
    if not numbers:
        return []
    cells = [", ".join(format_quantity("seconds", one.get(number)) for number in numbers) for one in times.values()]
    return [[f"time on {', '.join(map(str, numbers))} nodes", *cells]]


def format_proposals(plan: Mapping[str, Any]) -> list[str]:
    """Format other settings as a table and what to write for each; of several models the first of each alone."""
    size, several = plan["platform"]["memory_bytes_per_device"], len(plan["proposals"]) > 1
    rows, written, none = [["other settings", "time", "hours", "energy", "free memory"]], [], []
    for name, proposals in plan["proposals"].items():
        none += [f"{name}: no other settings that fit save 1 % of the time or of the energy"] * (not proposals)
        for one in proposals[: 1 if several else None]:
            aim = f"{name}: {one['aim']}" if several else one["aim"]
            saved = one["saved_seconds"] / (one["seconds"] + one["saved_seconds"])
            free = f"{max(1 - one['memory_bytes'] / size, 0):.0%} ({one['memory_by']})" if size else "unknown"
            figures = [format_quantity(key, one[key]) for key in ("device_hours", "facility_energy_joules")]
            rows.append([aim, f"{format_quantity('seconds', one['seconds'])} ({-saved:+.0%})", *figures, free])
            parts = [_dump_one_line(one["write"]["models"][name]["training"])]
            parts += [f"{key}: {_dump_one_line(lines)}" for key, lines in one["write"].items() if key != "models"]
            written.append(f"{aim.partition(',')[0]}: {', '.join(parts)}")
    return [*(align_columns(rows) if written else ()), *written, *none]


def _dump_one_line(lines: object) -> str:
    return yaml.safe_dump(lines, default_flow_style=True, sort_keys=False, width=999).rstrip()


def format_free_space(plan: Mapping[str, Any]) -> str:
    """Return the number of files of a run, and what the disk takes, for users with a quota of inodes."""
    more = "" if plan["free_files"] is None else f" and {plan['free_files']:,} files"
    disk = f"free: {format_quantity('bytes', plan['free_bytes'])}{more} (a quota may allow less)"
    return f"at least {plan['files']:,} files; {disk}"
