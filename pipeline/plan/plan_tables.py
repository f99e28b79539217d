"""Format the figures of a plan, and the table of its proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def format_time_bounds(model: dict[str, Any]) -> str | None:
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


def _format_label(key: str) -> str:
    """Return the words of a key without its unit, which the value shows."""
    units = ("bytes", "joules", "grams", "liters", "euros")
    words = ["time" if word == "seconds" else word for word in key.split("_") if word not in units]
    return " ".join(words)


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
    billed = next((key for key in ("billed_gpu_hours", "billed_core_hours") if asked[key]), "device_hours")
    keys = ("seconds", billed, "facility_energy_joules")
    rows = [[name, "time", _format_label(billed).replace("gpu", "GPU"), "energy", "memory of a device"]]
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


def format_proposals(plan: dict[str, Any]) -> list[str]:
    """Format other settings of each model, with the lines of configuration to write."""
    lines = []
    for name, proposals in plan["proposals"].items():
        if not proposals:
            lines += [
                "",
                f"{name}: no other settings were found that fit and are faster by 1 % or take 1 % less energy",
            ]
            continue
        lines += ["", *align_columns(list_proposal_rows(plan, name))]
        for one in proposals:
            lines += [f"{one['aim']}, write:", *(f"  {line}" for line in one["lines"])]
    return lines


def format_file_count(plan: dict[str, Any]) -> str:
    """Return the number of files that a run makes, and how many there can be, for users with a quota of inodes."""
    more = (
        ""
        if plan["free_files"] is None
        else f"; the file system takes {plan['free_files']:,} more, a quota may allow fewer"
    )
    return f"The whole run makes at least {plan['files']:,} files{more}"
