"""What `polder plan` prints: mistakes first, then one screen, JSON or a page with all figures."""

from __future__ import annotations

import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import typer

from pipeline.cli.parameters import print_json
from pipeline.cli.snakemake_command import find_project_folder, relative_to_project
from pipeline.config.configuration import Config
from pipeline.config.configuration_file import load_configuration
from pipeline.core.display_text import align_columns, escape_to_one_line
from pipeline.core.errors import InputError
from pipeline.forecast.evaluation_share import add_evaluation_share
from pipeline.plan.estimate import estimate
from pipeline.plan.plan_tables import (
    add_bound,
    format_evaluation_forecast,
    format_file_count,
    format_memory,
    format_proposals,
    format_quantity,
    format_time_bounds,
)
from pipeline.plan.settings import EstimateSettings
from pipeline.report.plan_page import write_plan_page
from pipeline.slurm.corpus_estimate import CorpusPlan
from pipeline.workflow import preflight
from pipeline.workflow.settings_contradicted_by_text import describe_estimated_genres
from pipeline.workflow.steps import step_settings
from pipeline.workflow.training_memory import MemoryPlan, estimate_training_memory

SHOWN = {
    "parameters": "parameters",
    "tokens": "training tokens",
    "training_flops_6nd": "compute",
    "devices_used": "GPUs, or CPU processes",
    "seconds": "time",
    "interval": "95 % interval",
    "device_hours": "device hours",
    "facility_energy_joules": "energy",
    "carbon_grams": "carbon",
    "cost_euros": "cost",
    "checkpoint_bytes": "disk for checkpoints",
    "evaluation_share": "evaluation, share of training",
    "validation_share": "validation, share of training",
    "checkpoint_share": "checkpoints, share of training",
    "failure_share": "work lost to failures, share of training",
}
"""The figures of a model on the first screen, by their keys in the plan."""
SHARE_NEEDS = {
    "evaluation_share": "no suite has local files",
    "validation_share": "training.validation_tokens is not set",
    "checkpoint_share": "needs the time and storage_bytes_per_second",
}
"""Why a share may be unknown, by its key."""
FIGURES = ("peak_flops_per_second", "matrix_flops_per_second", "device_power_watts", "price_euros_per_device_hour")
"""Of a platform's file, those that time, energy and cost need."""


def print_plan(path: Path, data: str | None, *, as_json: bool, html: Path | None) -> None:
    """Print the mistakes of a configuration, else compute, memory, time, energy and cost, and the corpus: estimated.

    Relative paths are looked for in the folder of the project, as `polder run` does.

    Args:
        as_json: print the mistakes and all estimates as JSON.
        html: where a page with all figures, formulas and advice is written.

    Raises:
        InputError: the configuration is missing or cannot be read.
    """
    project = find_project_folder(Path.cwd())
    file, folder = Path(relative_to_project(path, project)), data and relative_to_project(Path(data), project)
    places = file, folder, html and html.absolute()
    with chdir(project):
        _print_plan(*places, path, as_json=as_json)


def _print_plan(file: Path, data: str | None, html: Path | None, shown: Path, *, as_json: bool) -> None:
    config = load_configuration(file, **({"data": data} if data else {}))
    problems = find_configuration_problems(config)
    hints = [] if problems else preflight.find_hints(config, preflight.model_launch_commands(config))
    notes = [f"warning: {sentence}" for sentence in (*config.origin.describe_deprecations(), *hints)]
    notes += [f"error: {problem}" for problem in problems] if not as_json else []
    print("".join(f"{escape_to_one_line(note)}\n" for note in notes), end="", file=sys.stderr, flush=True)
    if problems and not (as_json or html):
        raise typer.Exit(2)
    settings = step_settings(config, "plan.estimate", {})
    plan_settings = EstimateSettings.model_validate(settings.model_dump())
    estimated = add_evaluation_share(config, estimate(plan_settings))
    memory = estimate_training_memory(config, plan_settings)
    corpus: dict[str, Any] | str
    try:
        corpus = CorpusPlan(config).plan()
    except InputError as error:  # models can be planned where the texts are not available
        corpus = str(error)
    estimated |= {"proposals": memory.proposals}
    if html:
        write_plan_page(
            html, config.run.name, estimated, {name: one.model_dump() for name, one in memory.traced.items()}, corpus
        )
        print(f"wrote {html}", file=sys.stderr)
    if as_json:
        genres = {name: one.model_dump(mode="json") for name, one in config.estimated_genres().items()}
        peaks = {name: traced.peak_bytes for name, traced in memory.traced.items()}
        content = {"problems": problems, **estimated, "peak_memory_bytes": peaks, "corpus": corpus, "genres": genres}
        print_json(content)
    elif not problems:
        print("\n".join([*_format_model_summary(estimated, memory), "", *_format_corpus_summary(corpus)]))
        more = [] if html else [f"All figures, formulas and advice: polder plan {shown} --html plan.html"]
        print("\n".join([*describe_estimated_genres(config), *more]))
    raise typer.Exit(2 if problems else 0)


def find_configuration_problems(config: Config) -> list[str]:
    """Return what a run would be refused for."""
    launches, slurm = preflight.model_launch_commands(config), preflight.uses_slurm(config)
    return [*preflight.find_problems(config, launches, slurm=slurm)]


def _format_model_summary(estimated: dict[str, Any], memory: MemoryPlan) -> list[str]:
    """Return a column for each model; figures that no model has are named below, with what they need."""
    models, platform = estimated["models"], estimated["platform"]
    if not models:
        return ["no models"]
    rows = [["model (estimated)", *models]]
    unknown, unknown_shares = [], []
    for key, label in SHOWN.items():
        values = [format_time_bounds(model) if key == "interval" else model.get(key) for model in models.values()]
        if key in SHARE_NEEDS and None in values:
            unknown_shares.append(f"{label} ({SHARE_NEEDS[key]})")
            if all(value is None for value in values):
                continue
        values = [add_bound(key, model, value) for model, value in zip(models.values(), values, strict=True)]
        if all(value is None for value in values):
            unknown.append(label)
        else:
            rows.append(
                [label, *(value if isinstance(value, str) else format_quantity(key, value) for value in values)]
            )
    if memory.traced:
        size = platform["memory_bytes_per_device"]
        peaks = {name: format_memory(traced.peak_bytes, size) for name, traced in memory.traced.items()}
        rows.append(["memory of a device", *(peaks.get(name, "unknown") for name in models)])
    lines = [
        *align_columns(rows),
        format_evaluation_forecast(estimated["evaluation"]),
        *memory.notes,
        *format_proposals(estimated),
    ]
    if unknown_shares:
        lines.append(f"unknown: {'; '.join(unknown_shares)}")
    if unknown:
        missing = ", ".join(key for key in FIGURES if platform.get(key) is None)
        lines.append(f"unknown: {', '.join(unknown)}; workflow/platforms/{platform['name']}.yaml lacks {missing}")
        lines += ["measure the rates: run `polder platform measure` in a job on a node"] * ("matrix_flops" in missing)
    return lines


def _format_corpus_summary(corpus: dict[str, Any] | str) -> list[str]:
    if isinstance(corpus, str):
        return [f"cannot estimate the corpus: {corpus}"]
    rows = [["corpus (estimated)", "raw files", "text", "documents", "jobs", "hours", "disk ≤", "files"]]
    for name, one in corpus["corpora"].items():
        known = [step for step in one["steps"].values() if "high_seconds" in step]
        hours = sum(step["high_seconds"] for step in known) / 3600
        disk = sum(one["disk_bytes"].values())
        rows.append([name, f"{format_quantity('bytes', one['raw_bytes'])} in {one['files']:,}"])
        rows[-1] += [format_quantity("bytes", one["text_bytes"]), f"{one['documents']:,}"]
        rows[-1] += [f"{sum(step['jobs'] for step in one['steps'].values()):,}", f"{hours:.2g}" if known else "unknown"]
        rows[-1] += [format_quantity("bytes", disk), f"{one['result_files']:,}"]
    free = f"{format_quantity('bytes', corpus['free_bytes'])} of the disk are free. {format_file_count(corpus)}."
    return [*align_columns(rows), free, *(f"does not fit: {problem}" for problem in corpus["problems"])]
