"""What `polder plan` prints: mistakes first, then one screen, JSON or a page with all figures."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
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
    format_free_space,
    format_proposals,
    format_quantity,
    list_model_figures,
    list_model_rows,
    list_times_on_nodes,
)
from pipeline.plan.settings import EstimateSettings
from pipeline.report.plan_page import write_plan_page
from pipeline.slurm.corpus_estimate import CorpusPlan
from pipeline.workflow import preflight
from pipeline.workflow.settings_contradicted_by_text import describe_estimated_genres
from pipeline.workflow.steps import step_settings
from pipeline.workflow.training_memory import MemoryPlan, estimate_training_memory

SHARES = {
    "evaluation_share": ("evaluation", "no suite has local files"),
    "validation_share": ("validation", "training.validation_tokens"),
    "checkpoint_share": ("checkpoints", "storage_bytes_per_second"),
    "failure_share": ("failures", ""),
}
"""Shares of the time of training by their keys in the plan, each with its name and what an unknown one needs."""
SCREEN_COLUMNS = 80
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
    # The screen has no place for single cells of experiments, whose traces take seconds each.
    models = [*config.models] if as_json or html else [*config.compared_models()]
    memory = estimate_training_memory(config, plan_settings, models)
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
        cells = {name: [cell.name for cell in page.cells] for name, page in config.experiment_page_settings().items()}
        print("\n".join([*_format_model_summary(estimated, memory, cells), *_format_corpus_summary(corpus)]))
        more = [] if html else [f"All figures and advice: polder plan {shown} --html plan.html"]
        print("\n".join([*describe_estimated_genres(config), *more]))
    raise typer.Exit(2 if problems else 0)


def find_configuration_problems(config: Config) -> list[str]:
    """Return what a run would be refused for."""
    launches, slurm = preflight.model_launch_commands(config), preflight.uses_slurm(config)
    return [*preflight.find_problems(config, launches, slurm=slurm)]


def _format_model_summary(
    estimated: dict[str, Any], memory: MemoryPlan, experiments: Mapping[str, Collection[str]]
) -> list[str]:
    """Return a column for each model, other numbers of nodes and other settings; at last what is unknown.

    Models that are too wide together have a row each, and experiments one for all of their cells.
    """
    platform = estimated["platform"]
    cells = {cell for names in experiments.values() for cell in names}
    models = {name: model for name, model in estimated["models"].items() if name not in cells}
    if not models:
        return ["no models"]
    peaks = {name: traced.peak_bytes for name, traced in memory.traced.items()}
    columns = [list_model_figures(model, platform, peaks.get(name)) for name, model in models.items()]
    labels = {label: [column[label] for column in columns] for label in columns[0]}
    unknown = [label for label, values in labels.items() if not any(values)]
    known = {label: [value or "unknown" for value in values] for label, values in labels.items() if any(values)}
    shares, unknown_shares = _list_shares([*models.values()])
    rows = [*([label, *cells] for label, cells in known.items()), *shares, *list_times_on_nodes(estimated, models)]
    lines = align_columns([["model (estimated)", *models], *rows])
    if cells or max(map(len, lines)) > SCREEN_COLUMNS:
        lines = align_columns(list_model_rows(models, peaks, _label_experiments(estimated["models"], experiments)))
    else:
        lines += format_proposals(estimated)
        lines.append(format_evaluation_forecast(estimated["evaluation"]).partition("; `polder")[0])
    lines += memory.notes
    missing = [key for key in FIGURES if platform.get(key) is None]
    if unknown:
        lines.append(f"unknown: {', '.join(unknown)}; {platform['name']}.yaml lacks {', '.join(missing)}")
    if unknown_shares:
        lines.append(f"unknown shares of training: {', '.join(unknown_shares)}")
    if unknown and "matrix_flops_per_second" in missing:
        lines.append("measure the rates: run `polder platform measure` in a job on a node")
    return lines


def _label_experiments(
    planned: Mapping[str, Any], experiments: Mapping[str, Collection[str]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of the cells that run, by the name of their experiment with the number of its cells."""
    labels: dict[str, list[dict[str, Any]]] = {}
    for name, cells in experiments.items():
        running = [planned[cell] for cell in cells if cell in planned]
        number = f"{len(cells)}" if len(running) == len(cells) else f"{len(running)} of {len(cells)}"
        labels[f"{name}, {number} cells"] = running
    return labels


def _list_shares(models: list[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Return a row with the known shares of the time of training, and the unknown ones with what they need."""
    known = {key: label for key, (label, _) in SHARES.items() if any(model.get(key) is not None for model in models)}
    unknown = [f"{label} ({needs})" for key, (label, needs) in SHARES.items() if needs and key not in known]
    cells = [", ".join(_format_share(key, model) for key in known) + " of the time" for model in models]
    return [[", ".join(known.values()), *cells]] if known else [], unknown


def _format_share(key: str, model: dict[str, Any]) -> str:
    value = add_bound(key, model, model.get(key))
    return value if isinstance(value, str) else format_quantity(key, value)


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
    return [
        *align_columns(rows),
        format_free_space(corpus),
        *(f"does not fit: {problem}" for problem in corpus["problems"]),
    ]
