"""Return what the page shows of evaluation: tables of scores, comparisons of models, and samples of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.energy.run_energy_report_reader import EnergyAccounting, EnergyFigure, sum_energy
from pipeline.evaluate.answer_comparison import compare_contaminated_with_clean
from pipeline.evaluate.item_results import ScoreKey, read_item_answers
from pipeline.evaluate.language_scores import (
    SeedScatter,
    aggregate_by_language,
    detectable_difference_between_models,
    measure_seed_scatter,
)
from pipeline.evaluate.score_export_formats import group_by_task
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.score_charts import main_scores, read_checkpoint_scores, score_key
from pipeline.report.training_section import find_parent_checkpoint

SHOWN_CHECKPOINTS = 4  # in the table of a model: the last ones
SHOWN_SAMPLES = 3  # of a model, fewer of three models or more; the file of samples has all
SHOWN_CONTINUATIONS = 6  # of all models
SHOWN_DIFFERENCES = 6  # between checkpoints


def summarize_training_cost_by_checkpoint(reader: RunReader, model: str, account: EnergyAccounting) -> Json:
    """Return the tokens, FLOPs and joules that each evaluated checkpoint of a model had cost.

    FLOPs are those of the plan, by tokens. Joules are those of the segments up to the checkpoint, without lost
    attempts, and unknown where those of a segment are. One checkpoint alone returns nothing, and so do metrics
    without tokens.
    """
    checkpoints = read_checkpoint_scores(reader)[model]
    if len(checkpoints) < 2 or any(one.tokens is None for one in checkpoints):
        return {}
    planned = (reader.plan.content.get("models") or {}).get(model) or {}
    each = planned["model_flops"] / planned["tokens"] if planned.get("model_flops") and planned.get("tokens") else None
    columns = [
        {
            "step": one.step,
            "tokens": one.tokens,
            "flops": None if each is None or one.tokens is None else each * one.tokens,
            "energy": _cumulative_energy(one.step, model, reader, account),
        }
        for one in checkpoints
    ]
    return {"columns": columns, "formula": (reader.plan.content.get("formulas") or {}).get("model_flops")}


def _cumulative_energy(step: int, model: str, reader: RunReader, account: EnergyAccounting) -> EnergyFigure:
    """Return the joules of the segments up to a step of a model, a branch's base with it; unknown where one is."""
    records = {int(one.instance["step"]): one for one in reader.segments(model=model)}
    names = dict.fromkeys(record.computing_attempt_file_name for end, record in records.items() if end <= step)
    figures = [account.attempt_energy(name) for name in names]
    if branch := find_parent_checkpoint(model, [records[end] for end in sorted(records)]):
        figures.append(_cumulative_energy(branch[1], branch[0], reader, account))
    is_known = step in records and all(figure.is_known for figure in figures)
    return sum_energy(figures) if is_known else EnergyFigure()


def tabulate_scores(models: Mapping[str, Sequence[Json]], seeds: Mapping[str, Sequence[str]]) -> Json:
    """Return the tables of all models, in which what models share is said once.

    Args:
        models: by model its checkpoints, the last one first, each with its `step` and `tasks`; models that differ in
            their seed alone follow one another.
        seeds: by model the models that differ from it in their seed alone, with itself.

    Returns:
        `main` has a group of rows for the score that stands for each task, a row for each model; `more` the groups of
        all other scores and of earlier checkpoints, together for models with the same steps; `parts` the main scores of
        parts of tasks, with a cell for each model; `protocols` each protocol with the models that were asked by it;
        `not_asked` each task that was left out, with its models.
    """
    last = {name: checkpoints[0] for name, checkpoints in models.items()}
    main = {
        name: {score_key(task): task for task in main_scores(checkpoint["tasks"]).values()}
        for name, checkpoint in last.items()
    }
    values = {name: {score_key(task): task["value"] for task in one["tasks"]} for name, one in last.items()}
    parts: dict[tuple[ScoreKey, str], dict[str, Json]] = {}
    groups: list[Json] = []
    for key in sorted({key for tasks in main.values() for key in tasks}):
        tasks = {name: tasks[key] for name, tasks in main.items() if key in tasks}
        groups.append({"task": next(iter(tasks.values())), "rows": _main_rows(key, tasks, values, seeds)})
        for name, task in tasks.items():
            for part in task["parts"]:
                parts.setdefault((key, part["part"]), {})[name] = part
    protocols: dict[tuple[str, str], Json] = {}
    not_asked: dict[str, Json] = {}
    for name, checkpoint in last.items():
        for task, protocol in checkpoint["protocols"].items():
            row = protocols.setdefault((task, protocol["sha256"]), {"task": task, "protocol": protocol, "models": []})
            row["models"].append(name)
        for one in checkpoint["not_asked"]:
            not_asked.setdefault(repr(sorted(one.items())), {"entry": one, "models": []})["models"].append(name)
    return {
        "main": groups,
        "more": _other_scores(models, main),
        "parts": [
            {"task": key[1], "part": part, "cells": [cells.get(name) for name in models]}
            for (key, part), cells in parts.items()
        ],
        "protocols": [protocols[key] for key in sorted(protocols)],
        "not_asked": [*not_asked.values()],
    }


def _main_rows(
    key: ScoreKey,
    tasks: Mapping[str, Json],
    values: Mapping[str, Mapping[ScoreKey, float | None]],
    seeds: Mapping[str, Sequence[str]],
) -> list[Json]:
    """Return a row for each model's score; the first of models with different seeds has their scatter, and its rows."""
    rows: list[Json] = []
    for name, task in tasks.items():
        group = [other for other in tasks if other in seeds.get(name, [name])]
        scatter = measure_seed_scatter([values[other].get(key) for other in seeds.get(name, [])])
        rows.append(
            {
                "model": name,
                "task": task,
                "detectable": detectable_difference_between_models(task["low"], task["high"]),
                "scatter": scatter,
                "scatter_rows": len(group) if name == group[0] else 0,
            }
        )
    return rows


def _other_scores(models: Mapping[str, Sequence[Json]], main: Mapping[str, Mapping[ScoreKey, Json]]) -> list[Json]:
    """Return the tables of scores that are no main score of a last checkpoint; a table for each list of steps."""
    tables: dict[tuple[int, ...], dict[ScoreKey, dict[str, dict[int, Json]]]] = {}
    for name, checkpoints in models.items():
        shown = [*reversed(checkpoints[:SHOWN_CHECKPOINTS])]
        scores = tables.setdefault(tuple(one["step"] for one in shown), {})
        for checkpoint in shown:
            for task in checkpoint["tasks"]:
                scores.setdefault(score_key(task), {}).setdefault(name, {})[checkpoint["step"]] = task
    return [
        {"steps": steps, "groups": groups}
        for steps, scores in tables.items()
        if (groups := [group for key, rows in sorted(scores.items()) if (group := _other_rows(key, rows, steps, main))])
    ]


def _other_rows(
    key: ScoreKey,
    rows: Mapping[str, Mapping[int, Json]],
    steps: Sequence[int],
    main: Mapping[str, Mapping[ScoreKey, Json]],
) -> Json | None:
    shown = [
        {
            "model": name,
            "task": by_step[max(by_step)],
            "results": [by_step.get(step) for step in steps],
            "is_main": key in main[name],
        }
        for name, by_step in rows.items()
        if key not in main[name] or by_step.keys() > {steps[-1]}
    ]
    return {"task": shown[0]["task"], "rows": shown} if shown else None


def find_seed_groups(reader: RunReader) -> dict[str, list[str]]:
    """Return the evaluated models that differ from each model in their seed alone, with itself; none for others."""
    evaluated = {result.content["model"] for result in reader.evaluation}
    groups = [
        [name for name in group if name in evaluated]
        for result in reader.differences
        for group in result.content.get("seeds", [])
    ]
    return {name: group for group in groups for name in group}


def measure_evaluation_cost(reader: RunReader, model: str, account: EnergyAccounting) -> Json | None:
    """Return the time and joules of a model's evaluation jobs, and their shares of those of its training.

    Shares are None where a part is unknown; without a record of an evaluation there is nothing.
    """
    records, segments = reader.records_of("evaluate.suites", model=model), reader.segments(model=model)
    if not records:
        return None
    energy, training = (
        sum_energy(
            account.attempt_energy(name) for name in dict.fromkeys(one.computing_attempt_file_name for one in jobs)
        )
        for jobs in (records, segments)
    )
    seconds, training_seconds = (sum(one.wall_seconds for one in jobs) for jobs in (records, segments))
    has_joules = energy.is_known and training.is_known and training.joules > 0
    return {
        "energy": energy,
        "time_share": seconds / training_seconds if training_seconds else None,
        "energy_share": energy.joules / training.joules if has_joules else None,
    }


def compare_contaminated_items(reader: RunReader, corpora: Mapping[str, str]) -> list[Json]:
    """Return, of the last checkpoint of each model, the scores on items that were in its corpus and on the others.

    A task has its main score alone, or all of its binary metrics if that has no such row.

    Args:
        reader: what the report is made of.
        corpora: by model, the corpus that it is trained on.
    """
    counted = {one.content["corpus"]: one.content.get("contamination") or {} for one in reader.statistics}
    later = {one.content["corpus"]: one.content["contamination"] for one in reader.later_suites}
    last = {path.parent.parent.name: path for path in sorted(reader.answers, key=lambda path: int(path.parent.name))}
    main = {
        (checkpoint.content["model"], checkpoint.content["step"], *score_key(task))
        for checkpoint in reader.evaluation
        for task in main_scores(checkpoint.content["tasks"]).values()
    }
    scored = []
    for model, path in sorted(last.items()):
        corpus = corpora.get(model, "")
        # Items of a data set of several files are named after their file, and no task goes by its name.
        contaminated_items = {
            task: {int(name) - 1 for name in counts.get("found_items", []) if name.isdecimal()}
            for task, counts in (later.get(corpus, {}) | counted.get(corpus, {})).items()
        }
        trained_on = later.get(corpus, {}).keys() - counted.get(corpus, {}).keys()
        rows = [
            row | {"trained_on": row["task"] in trained_on}
            for row in compare_contaminated_with_clean(read_item_answers(path), contaminated_items)
        ]
        step = int(path.parent.name)
        of_main = [row for row in rows if (model, step, *score_key(row)) in main]
        tasks = {score_key(row)[:2] for row in of_main}
        rows = [row for row in rows if row in of_main or score_key(row)[:2] not in tasks]
        scored.append({"model": model, "step": step, "rows": rows})
    return [entry for entry in scored if entry["rows"]]


def copied_share(counted: Json) -> float | None:
    """Return the share of the characters that are copied; None where there is no text."""
    return counted["copied_characters"] / counted["characters"] if counted["characters"] else None


def split_copied_text(text: str, parts: list[Json]) -> list[tuple[str, bool]]:
    """Return a text in pieces, each with whether it is copied from training documents."""
    copied = [False] * len(text)
    for part in parts:
        copied[part["start"] : part["end"]] = [True] * (part["end"] - part["start"])
    pieces: list[tuple[str, bool]] = []
    for letter, is_copied in zip(text, copied, strict=True):
        if pieces and pieces[-1][1] == is_copied:
            pieces[-1] = (pieces[-1][0] + letter, is_copied)
        else:
            pieces.append((letter, is_copied))
    return pieces


def summarize_copied_text_samples(reader: RunReader) -> list[Json]:
    """Return per model its samples with what is copied in them, the shares of both kinds of text, and more counts."""
    return [
        {
            "model": file.content["model"],
            "link": file.link,
            "minimum_characters": file.content["minimum_characters"],
            "minimum_letters": file.content.get("minimum_letters"),
            "written": file.content["written"] | {"share": copied_share(file.content["written"])},
            "held_out": file.content["held_out"] | {"share": copied_share(file.content["held_out"])},
            "memorization": file.content.get("memorization"),
            "rows": [
                row
                | {
                    "pieces": split_copied_text(row["continuation"], row["parts"]),
                    "share": copied_share(row | {"characters": len(row["continuation"])}),
                }
                for row in file.content["samples"]
            ],
        }
        for file in reader.samples
    ]


def merge_equal_rows(rows: Iterable[tuple[str, Json]]) -> list[Json]:
    """Return each row once, with the models that have it."""
    merged: list[Json] = []
    for model, row in rows:
        equal = next((one for one in merged if one["row"] == row), None)
        if equal is None:
            merged.append({"models": [model], "row": row})
        else:
            equal["models"].append(model)
    return merged


def tabulate_memorization(samples: Sequence[Json]) -> dict[str, list[Json]]:
    """Return by kind of text the counts of the models, equal ones once."""
    known = [one for one in samples if one["memorization"]]
    kinds = dict.fromkeys(kind for one in known for kind in one["memorization"]["kinds"])
    return {
        kind: merge_equal_rows((one["model"], one["memorization"]["kinds"][kind]) for one in known) for kind in kinds
    }


def tabulate_continuations(samples: Sequence[Json]) -> dict[str, list[Json]]:
    """Return by prompt what the models write, equal texts once; of the first prompts of each model."""
    count = max(1, min(SHOWN_SAMPLES, SHOWN_CONTINUATIONS // max(1, len(samples))))
    rows: dict[str, list[tuple[str, Json]]] = {}
    for one in samples:
        for row in one["rows"][:count]:
            rows.setdefault(row["prompt"], []).append((one["model"], row))
    return {prompt: merge_equal_rows(of_prompt) for prompt, of_prompt in rows.items()}


def summarize_evaluations(reader: RunReader, account: EnergyAccounting) -> list[Json]:
    """Return per model its checkpoints, the last one first, its mean scores by language, tables, and costs."""
    models: dict[str, list[Json]] = {}
    for results in reader.evaluation:
        entry = {
            "step": results.content["step"],
            "link": results.link,
            "tasks": sorted(results.content["tasks"], key=lambda task: (task["suite"], task["task"])),
            "not_asked": results.content.get("not_asked", []),
            "protocols": {
                task: protocol
                for task, rows in group_by_task(results.content["tasks"]).items()
                if (protocol := rows[0].get("protocol"))
            },
            "lm_eval_version": results.content.get("lm_eval_version"),
        }
        models.setdefault(results.content["model"], []).insert(0, entry)
    languages = {name: aggregate_by_language(checkpoints[0]["tasks"]) for name, checkpoints in models.items()}
    groups = find_seed_groups(reader)

    def measure_spread_over_seeds(name: str, language: str) -> SeedScatter | None:
        rows = [row for other in groups.get(name, []) for row in languages[other] if row.language == language]
        return measure_seed_scatter([row.value for row in rows])

    return [
        {
            "model": name,
            "checkpoints": models[name],
            "costs": summarize_training_cost_by_checkpoint(reader, name, account),
            "evaluation_cost": measure_evaluation_cost(reader, name, account),
            "languages": languages[name],
            "scatter": {row.language: measure_spread_over_seeds(name, row.language) for row in languages[name]},
        }
        for name in sorted(models, key=lambda name: (groups.get(name, [name])[0], name))
    ]


def summarize_checkpoint_differences(reader: RunReader) -> Json:
    """Return the real differences between checkpoints, the counts of all, and the smallest detectable differences.

    Two models that differ in their seed alone are counted apart: nobody chose what differs. Real differences are
    in the order of their size relative to what their items detect, the largest first. `imported` has all comparisons of
    a last checkpoint with the model that its training began with, which is step 0; they count in nothing else.
    """
    links = [result.link for result in reader.differences if result.content["comparisons"]]
    rows = [row for result in reader.differences for row in result.content["comparisons"]]
    imported = [row for row in rows if row["b"]["step"] == 0]
    comparisons = [row for row in rows if row["b"]["step"] != 0]
    real = [row for row in comparisons if row["better"] is not None]
    of_seeds = [row for row in comparisons if row.get("differ_in_seed_alone")]
    real_of_seeds = sum(row["better"] is not None for row in of_seeds)
    detectable = [
        row["detectable_difference"]
        for row in comparisons
        if "right_in_a_alone" in row and row["detectable_difference"] is not None
    ]

    def ratio_to_detectable_difference(row: Json) -> float:
        return abs(row["difference"]) / row["detectable_difference"] if row["detectable_difference"] else 0.0

    return {
        "rows": sorted(real, key=ratio_to_detectable_difference, reverse=True),
        "detectable": (min(detectable), max(detectable)) if detectable else None,
        "compared": len(comparisons) - len(of_seeds),
        "real": len(real) - real_of_seeds,
        "of_seeds": len(of_seeds),
        "real_of_seeds": real_of_seeds,
        "imported": sorted(imported, key=lambda row: (row["a"]["model"], *score_key(row))),
        "link": links[0] if links else None,
    }


def list_baselines(reader: RunReader) -> list[str]:
    """Return the names of what scores are compared with, in their order."""
    tasks = (task for results in reader.evaluation for task in results.content["tasks"])
    return list(dict.fromkeys(name for task in tasks for name in task.get("baselines") or ()))
