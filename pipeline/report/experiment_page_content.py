"""Return what the page of an experiment shows: cells, curves, comparisons, and the best by score, speed and joule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations as pairs_of
from statistics import fmean, median, stdev
from typing import Any

from markupsafe import Markup

from pipeline.energy.run_energy_report_reader import EnergyAccounting, sum_energy
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint, read_checkpoint_answers
from pipeline.evaluate.item_results import BITS
from pipeline.experiment.cell_comparison import (
    VALIDATION,
    add_corrected_cell_p_values,
    compare_cells,
    find_pareto_front,
    read_validation_answers,
)
from pipeline.experiment.settings import Cell, ExperimentPage, Values
from pipeline.report.charts import LINE_STYLES, Series, draw_line_chart
from pipeline.report.run_reader import Json, RunReader

FINISHED, NOT_RUN = "finished", "not run"
SCORES = {
    "validation_bits_per_byte": "Validation loss, bits per byte",
    "validation_loss": "Validation loss, nats per token",
    "loss": "Training loss, nats per token",
}
"""Scores that rank combinations where no metric is named: the first one that a cell has."""
MOST_PAIRED = 16
"""Of up to this many combinations every pair is compared by document; of more, each with that of `compare.to`."""
NO_SCORE = "none: the cells' held-out texts differ, so name a metric (compare: {metrics: [TASK/METRIC]})"
AXES = ("score", "speed", "joules")
TIE_TOLERANCE = 1e-5
"""Relative difference from summing in another order, as micro-batches and strategies do."""


def summarize_experiment(
    reader: RunReader, name: str, page: ExperimentPage, account: EnergyAccounting, gettext: Callable[[str], str]
) -> Json:
    """Return what the page of an experiment shows, from records, metrics, answers and the account.

    Raises:
        InputError: a file of answers is no table of items.
    """
    cells = [_summarize_cell(reader, cell, page, account) for cell in page.cells]
    combinations: list[Json] = []
    for cell in cells:
        if not combinations or combinations[-1]["values"] != cell["values"]:
            label = name_combination(cell["values"]) or page.base
            combinations.append({"values": cell["values"], "label": label, "cells": []})
        combinations[-1]["cells"].append(cell)
    losses = {} if page.training_texts_differ else _read_document_losses(reader, cells)
    by_document = _compare_by_document(losses, combinations, page)
    rows = [*by_document, *_compare_combinations(reader, combinations, page)]
    add_corrected_cell_p_values(rows, page.alpha)
    loss = next((key for key in SCORES if any(cell[key] is not None for cell in cells)), "loss")
    has_metric = page.metrics[:1] not in ([], [f"{VALIDATION}/{BITS}"])
    key = "score" if has_metric or page.training_texts_differ else loss
    _rank_combinations(combinations, key, page.alpha)
    return {
        "name": name,
        "page": page,
        "cells": cells,
        "combinations": combinations,
        "by_document": sorted(by_document, key=lambda row: row["better"] is None),
        "of_scores": sorted(rows[len(by_document) :], key=lambda row: row["better"] is None),
        "has_all_pairs": len(combinations) <= MOST_PAIRED,
        "most_paired": MOST_PAIRED,
        "without_document_losses": sorted(name for name, checkpoint in losses.items() if not checkpoint.likely),
        "comparisons": len(rows),
        "real": sum(row["better"] is not None for row in rows),
        "one_seed": sorted(
            {
                label
                for row in rows
                if len(row["seeds"]) == 1
                for label in (row["label"], row.get("other", row["label"]))
            }
        ),
        "to": name_combination(page.to) or page.base,
        "not_found": sorted({*page.metrics} - {f"{row['task']}/{row['metric']}" for row in rows}),
        "loss": loss,
        "loss_title": SCORES[loss],
        "charts": _draw_loss_curves(combinations, sorted({loss, "loss"}, key=[*SCORES].index), gettext),
        "figures": draw_figure_charts(cells, gettext),
        "score": page.metrics[0] if has_metric else gettext(NO_SCORE if page.training_texts_differ else SCORES[key]),
        "higher_is_better": any(cell["score"] and cell["score"]["higher_is_better"] for cell in cells),
        "rounded": max((abs(cell.rounded) for cell in page.cells), default=0.0),
    }


def _summarize_cell(reader: RunReader, cell: Cell, page: ExperimentPage, account: EnergyAccounting) -> Json:
    """Return a row of the table of cells; with its outcome and the score that ranks it."""
    records = sorted(reader.segments(model=cell.name), key=lambda record: int(record.instance["step"]))
    counts = [record.counts for record in records]
    ended = next((one["outcome"] for one in counts if one.get("outcome")), None)
    metrics = next((one for one in reader.metrics if one.name == cell.name), None)
    steps = metrics.lines if metrics else []
    results = [one for one in reader.evaluation if one.content["model"] == cell.name]

    def last_value(key: str) -> Any:
        return next((line[key] for line in reversed(steps) if line.get(key) is not None), None)

    def median_over_steps(key: str) -> float | None:
        values = [line[key] for line in steps if line.get(key) is not None]
        return median(values) if values else None

    outcome = NOT_RUN if cell.refused else ended["status"] if ended else FINISHED
    speed, processes = median_over_steps("tokens_per_second"), counts[-1].get("world_size") if counts else None
    joules = account.training.get(cell.name, {}).values()
    return {
        "name": cell.name,
        "values": cell.values,
        "seed": cell.seed,
        "planned_steps": cell.steps,
        "outcome": outcome,
        "reason": cell.refused or (ended["reason"] if ended else None),
        "link": metrics.link if metrics else None,
        "samples": next((one.link for one in reader.samples if one.content["model"] == cell.name), None),
        "segments": records,
        "parameters": counts[-1].get("parameters") if counts else None,
        "active_parameters": counts[-1].get("active_parameters", counts[-1].get("parameters")) if counts else None,
        "steps": last_value("step") or 0,
        "tokens_seen": last_value("tokens_seen") or 0,
        "lines": steps,
        "loss": last_value("loss"),
        **{key: last_value(key) for key in ("validation_loss", "validation_bits_per_byte")},
        "score": _find_deciding_score(results[-1].content["tasks"], page) if results and outcome == FINISHED else None,
        "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / processes if speed and processes else None,
        "model_flops_utilization": median_over_steps("model_flops_utilization"),
        "memory_bytes": max((line["memory_bytes"] for line in steps if line.get("memory_bytes")), default=None),
        "step_joules": median(joules) if joules else None,
        "energy": sum_energy(
            {
                one.computing_attempt_file_name: account.attempt_energy(one.computing_attempt_file_name)
                for one in records
            }.values()
        ),
    }


def _find_deciding_score(tasks: list[Json], page: ExperimentPage) -> Json | None:
    """Return the score of the first named metric, which ranks the cells."""
    return next((task for task in tasks if page.metrics[:1] == [f"{task['task']}/{task['metric']}"]), None)


def _merit(cell: Json, key: str, axis: str) -> float | None:
    """Return how good a cell is, more being better: by its score or loss, its speed, or its joules."""
    value: float | None
    if axis == "speed":
        value, higher_is_better = cell["tokens_per_second"], True
    elif axis == "joules":
        value, higher_is_better = cell["energy"].joules if cell["energy"].is_known else None, False
    elif key == "score":
        task = cell["score"] or {"value": None, "higher_is_better": True}
        value, higher_is_better = task["value"], task["higher_is_better"]
    else:
        value, higher_is_better = cell[key], False
    return value if value is None or higher_is_better else -value


def _is_tied(merits_S: list[float], best_merits_S: list[float], level: float) -> bool:
    """Return whether merits over seeds do not differ from the best ones, by a t-test at a level.

    Welch's (Biometrika 34, 1947); where one side is of one seed, Student's with the scatter of the other; of single
    seeds rounding alone counts.
    """
    if math.isclose(fmean(merits_S), fmean(best_merits_S), rel_tol=TIE_TOLERANCE):
        return True
    deviations = [stdev(merits) if len(merits) > 1 else 0.0 for merits in (merits_S, best_merits_S)]
    if not any(deviations):
        return False
    from scipy.stats import ttest_ind_from_stats  # here, for it loads for half a second

    test = ttest_ind_from_stats(
        *(fmean(merits_S), deviations[0], len(merits_S)),
        *(fmean(best_merits_S), deviations[1], len(best_merits_S)),
        equal_var=min(len(merits_S), len(best_merits_S)) == 1,
    )
    return bool(test.pvalue >= level)


def _rank_combinations(combinations: list[Json], key: str, alpha: float) -> None:
    """Add the means of the finished cells of each combination, and by what it is best.

    Combinations within the seed noise of the best are as good, at `alpha` for all combinations together
    (Bonferroni). `undominated` are those that no other is as good as in score, speed and joules and better in one; what
    is not known of all is left out of that.
    """
    merits: dict[tuple[str, str], list[float]] = {}
    for one in combinations:
        finished = [cell for cell in one["cells"] if cell["outcome"] == FINISHED]
        one |= {"finished": len(finished), "best": [], "undominated": False}
        one["energy_label"] = sum_energy(cell["energy"] for cell in finished).label
        for axis in AXES:
            known = [merit for cell in finished if (merit := _merit(cell, key, axis)) is not None]
            one[axis] = fmean(known) if known and len(known) == len(finished) else None
            one[f"{axis}_spread"] = stdev(known) if len(known) > 1 else None
            merits[one["label"], axis] = known
    done = [one for one in combinations if one["finished"]]
    axes = [axis for axis in AXES if done and all(one[axis] is not None for one in done)]
    for axis in axes:
        most = max(done, key=lambda one: one[axis])
        best = merits[most["label"], axis]
        for one in done:
            one["best"] += [axis] * _is_tied(merits[one["label"], axis], best, alpha / max(len(done) - 1, 1))
    most_of = {axis: max((one[axis] for one in done), default=0.0) for axis in axes}
    rows = [[most_of[axis] if axis in one["best"] else one[axis] for axis in axes] for one in done]
    for one, is_undominated in zip(done, find_pareto_front(rows), strict=True):
        one["undominated"] = is_undominated and len(axes) > 1


def _compare_combinations(reader: RunReader, combinations: list[Json], page: ExperimentPage) -> list[Json]:
    """Return the rows of all combinations against the one of `compare.to`, judged together."""
    last = {path.parent.parent.name: path for path in sorted(reader.answers, key=lambda path: int(path.parent.name))}
    answered = {
        one["label"]: {
            cell["seed"]: read_checkpoint_answers(last[cell["name"]])
            for cell in one["cells"]
            if cell["outcome"] == FINISHED and cell["name"] in last
        }
        for one in combinations
    }
    to = next(one["label"] for one in combinations if one["values"] == page.to)
    rows = [
        {**row, "label": label}
        for label, checkpoints in answered.items()
        if label != to
        for row in compare_cells(checkpoints, answered[to], page.metrics)
    ]
    return rows


def _read_document_losses(reader: RunReader, cells: list[Json]) -> dict[str, EvaluatedCheckpoint]:
    """Return the losses by document of each finished cell that was validated; none of an earlier version's cell."""
    return {
        cell["name"]: read_validation_answers(reader.document_losses[cell["name"]], cell["name"], cell["steps"])
        for cell in cells
        if cell["outcome"] == FINISHED
        and cell["validation_loss"] is not None
        and cell["name"] in reader.document_losses
    }


def _compare_by_document(
    losses: dict[str, EvaluatedCheckpoint], combinations: list[Json], page: ExperimentPage
) -> list[Json]:
    """Return the rows of pairs of combinations on their held-out documents, those with the lower loss first.

    Args:
        losses: those by document, by the name of the cell.
    """
    by_seed: dict[str, dict[int, EvaluatedCheckpoint]] = {}
    mean: dict[str, float] = {}
    for one in combinations:
        cells = [cell for cell in one["cells"] if cell["name"] in losses and losses[cell["name"]].likely]
        if cells:
            by_seed[one["label"]] = {cell["seed"]: losses[cell["name"]] for cell in cells}
            mean[one["label"]] = fmean(cell["validation_loss"] for cell in cells)
    to = next(one["label"] for one in combinations if one["values"] == page.to)
    return [
        {**row, "label": label, "other": other}
        for label, other in pairs_of(sorted(mean, key=mean.__getitem__), 2)
        if len(combinations) <= MOST_PAIRED or to in (label, other)
        for row in compare_cells(by_seed[label], by_seed[other], page.metrics)
    ]


def _draw_charts(
    title: str, x_label: str, unit: str, lines: list[Series], gettext: Callable[[str], str], *, from_zero: bool = False
) -> list[Markup]:
    """Return charts of lines, each with at most `LINE_STYLES` lines."""
    return [
        draw_line_chart(gettext(title), x_label, gettext(unit), group, from_zero=from_zero, gettext=gettext)
        for group in (lines[start : start + LINE_STYLES] for start in range(0, len(lines), LINE_STYLES))
    ]


def _mean_line(name: str, values_of: dict[float, list[float]], *, has_band: bool) -> Series:
    """Return the means of values, with the least and the most of them as a band."""
    points = sorted(values_of.items())
    band = [(x, min(values), max(values)) for x, values in points] if has_band else []
    return Series(name, [(x, fmean(values)) for x, values in points], band)


def _draw_loss_curves(combinations: list[Json], keys: list[str], gettext: Callable[[str], str]) -> list[Markup]:
    """Return charts of losses over the tokens: of each combination the mean of its seeds, and their spread."""
    charts = []
    for key in keys:
        lines = [line for one in combinations if (line := _loss_curve(one, key)).points]
        charts += _draw_charts(SCORES[key], gettext("tokens"), SCORES[key].rpartition(", ")[2], lines, gettext)
    return charts


def _loss_curve(combination: Json, key: str) -> Series:
    """Return a figure of the cells of a combination over the tokens."""
    losses: dict[float, list[float]] = {}
    for cell in combination["cells"]:
        tokens = {line["step"]: line["tokens_seen"] for line in cell["lines"] if line.get("tokens_seen") is not None}
        for line in cell["lines"]:
            if line.get(key) is not None and line["step"] in tokens:
                losses.setdefault(tokens[line["step"]], []).append(line[key])
    return _mean_line(combination["label"], losses, has_band=len(combination["cells"]) > 1)


# By the key of a cell: the title of the chart, its unit, and what the figure is multiplied by.
CHARTED_FIGURES = {
    "tokens_per_second_per_device": ("Speed", "tokens per second of a device", 1.0),
    "model_flops_utilization": ("Model FLOPs utilization (MFU)", "%", 100.0),
    "memory_bytes": ("Memory of the largest process", "GB", 1e-9),
    "step_joules": ("Electricity of a step", "J per step", 1.0),
}


def name_combination(values: Values) -> str:
    """Return a combination in words: the last word of each key with its value."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in texts.items())


def draw_figure_charts(cells: list[Json], gettext: Callable[[str], str]) -> list[Markup]:
    """Return the charts over the first key that has numbers, of the finished cells; none where there is no such key.

    What no cell knows has no chart.
    """
    key = _find_numeric_key(cells)
    if key is None:
        return []
    charts = []
    for figure, (title, unit, factor) in CHARTED_FIGURES.items():
        lines = _figure_lines(cells, key, figure, factor)
        charts += _draw_charts(title, key.rpartition(".")[2], unit, lines, gettext, from_zero=True)
    return charts


def _find_numeric_key(cells: list[Json]) -> str | None:
    """Return the first key of which all values are numbers, two of them or more."""
    for key in cells[0]["values"] if cells else ():
        numbers = {cell["values"][key] for cell in cells if isinstance(cell["values"][key], int | float)}
        if len(numbers) > 1 and all(type(cell["values"][key]) in (int, float) for cell in cells):
            return str(key)
    return None


def _figure_lines(cells: list[Json], key: str, figure: str, factor: float) -> list[Series]:
    """Return a line for each combination of the other keys: the mean of its seeds, and their band."""
    values_by_name: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if cell["outcome"] == FINISHED and cell[figure] is not None:
            others = {name: value for name, value in cell["values"].items() if name != key}
            points = values_by_name.setdefault(name_combination(others), {})
            points.setdefault(cell["values"][key], []).append(factor * cell[figure])
    return [
        _mean_line(name, points, has_band=any(len(values) > 1 for values in points.values()))
        for name, points in values_by_name.items()
    ]
