"""Format a plan as tables and lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.formatting import align_columns, format_table_in_blocks
from pipeline.plan.alternative_models import BATCH_SIZE, SEQUENCE_LENGTH, TOKENS_PER_PARAMETER
from pipeline.plan.scaling_laws import PUBLISHED_LAWS_SCOPE
from pipeline.plan.training_time import FORMULAS as RUN_TIME

NO_CALIBRATION_RUNS = (
    "No forecast by measured runs: make two finished runs of the same steps on less text, of two sizes, and name their "
    "folders in the configuration: energy: {calibration: [results/SMALL, results/LARGER]} (docs/howto/plan-a-run.md)."
)

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
        return "below 0.01 %" if 0 < value < 1e-4 else f"{100 * value:.3g} %"
    return _format_number(value)


def format_time_interval(model: dict[str, Any]) -> str | None:
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


def format_plan(plan: dict[str, Any]) -> str:
    """Format the plan as text: a column for each model and one for all, then the assumptions."""
    columns = {**plan["models"], "total": plan["totals"]} if len(plan["models"]) > 1 else plan["models"]
    keys = [key for key in plan["formulas"] if any(key in column for column in columns.values())]
    # The parts of a time are unknown where the platform does not state their figures.
    parts = {*RUN_TIME, "low_seconds", "high_seconds"} - {"seconds"}
    keys = [key for key in keys if key not in parts or any(column.get(key) is not None for column in columns.values())]
    rows = [["estimated", *columns]]
    rows += [
        [
            _format_label(key),
            *(format_quantity(key, column[key]) if key in column else "" for column in columns.values()),
        ]
        for key in keys
    ]
    lines = format_table_in_blocks(rows)
    assumed = {**plan["platform"], **plan["energy"]}
    stated = [f"{key} {value:g}" for key, value in assumed.items() if isinstance(value, int | float)]
    missing = [key for key, value in assumed.items() if value is None]
    lines += ["", PUBLISHED_LAWS_SCOPE, "", f"platform {plan['platform']['name']}: {', '.join(stated)}"]
    if missing:
        lines.append(f"unknown, so the plan leaves out what depends on it: {', '.join(missing)}")
    lines += [
        f"{cell} does not fit on the platform and does not run: {reason}"
        for cell, reason in plan.get("not_run", {}).items()
    ]
    return "\n".join([*lines, "", *format_forecast(plan.get("forecast"))])


def format_forecast(forecast: dict[str, Any] | None) -> list[str]:
    """Format the forecast from calibration runs: energy and time of each step with 95 % intervals."""
    if forecast is None:
        return [NO_CALIBRATION_RUNS]
    entries = {**forecast["steps"], "whole chain": forecast["chain"]}
    rows = [["forecast, estimated", "energy", "95 % interval", "time of jobs", "95 % interval"]]
    rows += [
        [step, *(cell for key in ("joules", "seconds") for cell in _format_range(key, values))]
        for step, values in entries.items()
        if "refused" not in values
    ]
    lines = align_columns(rows) if len(rows) > 1 else ["forecast: none"]
    refused: dict[str, list[str]] = {}
    for step, values in entries.items():
        if "refused" in values:
            refused.setdefault(values["refused"], []).append(step)
    lines += [f"{', '.join(steps)}: {reason}" for reason, steps in refused.items()]
    runs = "; ".join(f"{run['folder']} ({run['platform']}; energy {run['known']})" for run in forecast["calibration"])
    return [*lines, "", f"from {runs}", forecast["scope"], *forecast["notes"]]


def _format_range(key: str, values: dict[str, Any]) -> tuple[str, str]:
    low, high = (format_quantity(f"{end}_{key}", values[f"{end}_{key}"]) for end in ("low", "high"))
    return format_quantity(key, values[key]), f"{low} to {high}"


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


SIZE_COLUMNS = {
    "seconds": "time",
    "published_least_seconds": "as published: from",
    "published_most_seconds": "to",
    "device_hours": "device hours",
    "energy_joules": "energy",
    "carbon_grams": "carbon",
    "water_liters": "water",
    "cost_euros": "cost",
}


def format_notes_and_sizes(plan: dict[str, Any]) -> list[str]:
    """Format the notes and the advice on each model, and the table of model sizes."""
    lines = [f"{name}: {note}" for name, notes in plan["notes"].items() for note in notes]
    for name, advice in plan["advice"].items():
        lines += [f"{name}, shape: {one['advice']} (gain: {one['gain']}; {one['source']})" for one in advice]
    return [*lines, *_format_sizes(plan)]


def _format_sizes(plan: dict[str, Any]) -> list[str]:
    if not plan["sizes"]:
        return []
    platform = plan["platform"]
    devices = platform["devices"] * platform["nodes"]
    rows = [[f"{devices} devices of {platform['name']}, estimated", "tokens", *SIZE_COLUMNS.values()]]
    rows += [
        [f"{row['model']}, {row['tokens_per_parameter']:,} per parameter", format_quantity("tokens", row["tokens"])]
        + [format_quantity(key, row[key]) for key in SIZE_COLUMNS]
        for row in plan["sizes"]
    ]
    settings = {row["model"]: row["way"] or "fits with none of the settings that were tried" for row in plan["sizes"]}
    return [
        "",
        *align_columns(rows),
        "tokens per parameter: " + "; ".join(f"{ratio:,} {name}" for ratio, name in TOKENS_PER_PARAMETER.items()),
        *(f"{model}: {chosen}" for model, chosen in settings.items()),
        f"sequences of {SEQUENCE_LENGTH:,}, {BATCH_SIZE} or more in a step, bf16, compiled, Llama 3's vocabulary",
    ]


def format_file_count(plan: dict[str, Any]) -> str:
    """Return the number of files that a run makes, and how many there can be, for users with a quota of inodes."""
    more = (
        ""
        if plan["free_files"] is None
        else f"; the file system takes {plan['free_files']:,} more, a quota may allow fewer"
    )
    return f"The whole run makes at least {plan['files']:,} files{more}"


def format_corpus_plan(plan: dict[str, Any]) -> list[str]:
    """Format the plan of `pipeline.slurm.corpus_estimate`; problems come last."""
    lines = ["sources, estimated", *_format_steps(plan["sources"]["steps"]), ""]
    for name, corpus in plan["corpora"].items():
        lines += [f"corpus {name}, estimated, as if nothing were removed", *_format_volumes(corpus), ""]
        lines += [*_format_steps(corpus["steps"]), ""]
    free = format_quantity("bytes", plan["free_bytes"])
    lines.append(f"disk of the corpora and tokens: at most {format_quantity('bytes', plan['disk_bytes'])}, free {free}")
    lines.append(format_file_count(plan))
    where = (
        f"{plan['cores']} cores"
        if plan["cores"]
        else "the requested cores of each job, with all jobs of a step at once"
    )
    lines.append(f"hours: on {where}, without the queue")
    lines.append(f"core hours: from {plan['rates_by']}; other cores take a different time; –: not measured")
    return [*lines, *(f"does not fit: {problem}" for problem in plan["problems"])]


def _format_volumes(corpus: dict[str, Any]) -> list[str]:
    rows = [["raw, as stored", f"{format_quantity('bytes', corpus['raw_bytes'])} in {corpus['files']:,} files"]]
    if corpus["unknown_sources"]:
        rows.append(["unknown until they are read", ", ".join(corpus["unknown_sources"])])
    sampled = f"by the first {corpus['sampled_documents']:,} of files"
    rows.append(["text", f"{format_quantity('bytes', corpus['text_bytes'])}, {sampled}"])
    rows.append(["documents", f"{corpus['documents']:,}, {sampled}"])
    allowed = f"{corpus['documents_allowed']:,}, if few are copies"
    rows.append(["documents that deduplication allows", allowed])
    rows += [
        [f"disk, {name}", f"at most {format_quantity('bytes', size)}"] for name, size in corpus["disk_bytes"].items()
    ]
    return align_columns(rows)


def _format_steps(steps: dict[str, dict[str, Any]]) -> list[str]:
    rows = [["step", "jobs", "of Slurm", "cores of a job", "memory of a job", "core hours", "hours"]]
    for name, step in steps.items():
        submissions = "–" if step["submissions"] is None else f"{step['submissions']:,}"
        rows.append(
            [
                name,
                f"{step['jobs']:,}",
                submissions,
                f"{step['cores']:,}",
                format_quantity("bytes", step["memory_bytes"]),
            ]
        )
        rows[-1] += [_format_hours(step, "core_seconds"), _format_hours(step, "seconds")]
    known = [step for step in steps.values() if "low_seconds" in step]
    if known:
        keys = [f"{end}_{key}" for end in ("low", "high") for key in ("core_seconds", "seconds")]
        total = {key: sum(step[key] for step in known) for key in keys}
        rows.append(
            [
                "measured steps, in turn",
                *[""] * 4,
                _format_hours(total, "core_seconds"),
                _format_hours(total, "seconds"),
            ]
        )
    return align_columns(rows)


def _format_hours(step: dict[str, Any], key: str) -> str:
    """Format a range of time in hours; a dash where it is unknown."""
    if f"low_{key}" not in step:
        return "–"
    low, high = (step[f"{end}_{key}"] / 3600 for end in ("low", "high"))
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
