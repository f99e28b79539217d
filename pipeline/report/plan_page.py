"""Write a plan as a page of HTML that an application for compute time can include: estimated figures and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.core.atomic_files import write_atomically
from pipeline.core.markup import content_security_hash, read_style_sheet, template_environment
from pipeline.plan.alternative_models import TOKENS_PER_PARAMETER
from pipeline.plan.plan_tables import (
    add_bound,
    format_evaluation_forecast,
    format_memory,
    format_quantity,
    format_time_bounds,
    list_proposal_rows,
)
from pipeline.plan.scaling_laws import PUBLISHED_LAWS_SCOPE
from pipeline.plan.training_time import HOW_TO_MEASURE
from pipeline.report.charts import Series, draw_line_chart

TEMPLATES = Path(__file__).parent
LABELS = {
    "parameters": "Parameters",
    "tokens": "Training tokens",
    "training_flops_6nd": "Compute, 6 FLOP for each parameter and token",
    "nodes": "Nodes",
    "devices_used": "Devices",
    "seconds": "Time",
    "failure_seconds": "… work lost to failures",
    "failure_share": "… the same, share of the time",
    "validation_seconds": "… validation",
    "start_seconds": "… starts of jobs",
    "interval": "95 % interval of the time",
    "tokens_per_second_per_device": "Tokens per second of a device",
    "utilization_share": "Model FLOPs utilization (MFU)",
    "device_hours": "Device hours",
    "billed_core_hours": "Billed core hours",
    "billed_gpu_hours": "Billed GPU hours",
    "facility_energy_joules": "Electricity, with cooling",
    "carbon_grams": "Carbon dioxide",
    "water_liters": "Water",
    "cost_euros": "Cost",
    "memory": "Memory of a device at its peak",
    "checkpoint_bytes": "Disk for checkpoints and milestones",
    "evaluation_share": "Evaluation, share of the training",
    "evaluation_energy_joules": "Electricity of the evaluation, with cooling",
    "validation_share": "Validation, share of the training",
    "checkpoint_share": "Writing of checkpoints, during the training, share of it",
}
"""The rows of the table of models, by keys of the plan; rows that no model has a value for are left out."""
COMPARED_SIZES = 3
"""As many presets, those nearest in size to the models of the plan, are drawn next to them."""
SECONDS_PER_DAY = 86_400


def write_plan_page(
    path: Path, name: str, plan: Mapping[str, Any], memory: Mapping[str, Mapping[str, Any]], corpus: Any
) -> None:
    """Write the page of a plan.

    Args:
        name: the name of the run.
        plan: the result of `pipeline.plan.estimate.estimate`, perhaps with `proposals`.
        memory: the traced `PeakMemory` of a device, of the models that could be traced.
        corpus: the result of `CorpusPlan.plan`, or a sentence that says why there is none.
    """
    css = read_style_sheet(TEMPLATES / "page.css")
    template = template_environment(TEMPLATES, {"quantity": format_quantity}, html=True).get_template(
        "plan_page.html.jinja"
    )
    platform = plan["platform"]
    page = template.render(
        name=name,
        plan=plan,
        corpus=corpus,
        rows=_list_model_rows(plan, memory),
        memory=memory,
        ratios=TOKENS_PER_PARAMETER,
        laws_scope=PUBLISHED_LAWS_SCOPE,
        proposals=[(list_proposal_rows(plan, name), ways) for name, ways in plan.get("proposals", {}).items() if ways],
        charts=[*_draw_sizes(plan), *_draw_scaling(plan)],
        figures={key: value for key, value in platform.items() if isinstance(value, int | float)},
        missing={key: how for key, how in HOW_TO_MEASURE.items() if platform.get(key) is None},
        evaluation=format_evaluation_forecast(plan["evaluation"]) if "evaluation" in plan else None,
        made=datetime.now(UTC).date().isoformat(),
        version=version("polder"),
        css=css,
        css_hash=content_security_hash(str(css)),
    )
    write_atomically(path, page.encode())


def _list_model_rows(plan: Mapping[str, Any], memory: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the label of each row with the text of each model, in the order of LABELS."""
    platform, models = plan["platform"], plan["models"]
    rows: list[tuple[str, list[str]]] = []
    for key, label in LABELS.items():
        cells = []
        for name, model in models.items():
            value = model.get(key) or None
            if key == "nodes":
                value = -(-model["devices_used"] // platform["devices"])
            elif key == "interval":
                value = format_time_bounds(model)
            elif key == "memory" and name in memory:
                value = format_memory(memory[name]["peak_bytes"], platform["memory_bytes_per_device"])
            value = add_bound(key, model, value)
            cells.append(value if isinstance(value, str) or value is None else format_quantity(key, value))
        if any(cell is not None for cell in cells):
            rows.append((label, [cell or "unknown" for cell in cells]))
    return rows


def _draw_sizes(plan: Mapping[str, Any]) -> list[Markup]:
    """Return the chart of the tokens over the days of each model, and of other sizes in their fastest settings."""
    models = {name: model for name, model in plan["models"].items() if model["seconds"]}
    if not models:
        return []
    days = 1.25 * max(model["seconds"] for model in models.values()) / SECONDS_PER_DAY
    rates = {f"{name} (planned)": model["tokens"] / model["seconds"] for name, model in models.items()}
    sizes = {row["model"]: row for row in plan["sizes"] if row["seconds"]}
    own = [model["active_parameters"] for model in models.values()]

    def log_size_ratio_to_nearest(row: Mapping[str, Any]) -> float:
        return min(abs(math.log(row["parameters"] / parameters)) for parameters in own)

    nearest = sorted(sizes.values(), key=log_size_ratio_to_nearest)[:COMPARED_SIZES]
    rates |= {
        row["model"]: row["tokens"] / row["seconds"] for row in sorted(nearest, key=lambda row: row["parameters"])
    }
    most = 4 * max(model["tokens"] for model in models.values())
    lines = []
    for name, rate in rates.items():
        end = min(days, most / rate / SECONDS_PER_DAY)
        lines.append(Series(name, [(0.0, 0.0), (end, rate * end * SECONDS_PER_DAY / 1e9)]))
    title = f"Tokens that {plan['platform']['nodes']} nodes train on, by days"
    return [draw_line_chart(title, "days", "billion tokens", lines, from_zero=True)]


def _draw_scaling(plan: Mapping[str, Any]) -> list[Markup]:
    """Return the charts of days and of device hours over nodes, of models with several numbers of nodes."""
    scaling = {name: rows for name, rows in plan["scaling"].items() if len(rows) > 1}
    if not scaling:
        return []
    days = [
        Series(name, [(row["nodes"], row["seconds"] / SECONDS_PER_DAY) for row in rows])
        for name, rows in scaling.items()
    ]
    hours = [Series(name, [(row["nodes"], row["device_hours"]) for row in rows]) for name, rows in scaling.items()]
    return [
        draw_line_chart("Time by number of nodes, same global batch", "nodes", "days", days, from_zero=True),
        draw_line_chart("Device hours by number of nodes", "nodes", "device hours", hours, from_zero=True),
    ]
