"""Return what the page shows of evaluation: tables of scores, comparisons of models, and samples of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.energy.energy_accounting_file import EnergyAccounting, EnergyFigure, sum_energy
from pipeline.evaluate.answer_comparison import compare_contaminated_with_clean
from pipeline.evaluate.item_results import ScoreKey, read_item_answers
from pipeline.evaluate.language_scores import (
    SeedScatter,
    aggregate_by_language,
    detectable_score_difference,
    measure_seed_scatter,
)
from pipeline.evaluate.score_formats import group_by_task
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.score_charts import main_scores, read_checkpoint_scores, score_key
from pipeline.report.training_section import find_parent_checkpoint

SHOWN_CHECKPOINTS = 4  # in the table of a model: the last ones


def summarize_checkpoint_costs(reader: RunReader, model: str, account: EnergyAccounting) -> Json:
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
    names = dict.fromkeys(record.computing_attempt for end, record in records.items() if end <= step)
    figures = [account.attempt_energy(name) for name in names]
    if branch := find_parent_checkpoint(model, [records[end] for end in sorted(records)]):
        figures.append(_cumulative_energy(branch[1], branch[0], reader, account))
    is_known = step in records and all(figure.is_known for figure in figures)
    return sum_energy(figures) if is_known else EnergyFigure()


def tabulate_scores(checkpoints: Sequence[Json], seeds: Sequence[Sequence[Json]]) -> Json:
    """Return the tables of a model: `main`, the score that stands for each task, and `more`, all its other scores.

    Args:
        checkpoints: the shown ones, the last one first, each with its `step` and `tasks`.
        seeds: the tasks of the last checkpoints of models that differ in their seed alone, its own among them.
    """
    main = {score_key(task): task for task in main_scores(checkpoints[0]["tasks"]).values()}
    of_seeds = [{score_key(task): task["value"] for task in tasks} for tasks in seeds]
    rows: dict[ScoreKey, dict[int, Json]] = {}
    for checkpoint in checkpoints:
        for task in checkpoint["tasks"]:
            rows.setdefault(score_key(task), {})[checkpoint["step"]] = task
    last = checkpoints[0]["step"]
    return {
        "main": [
            {
                "task": task,
                "scatter": measure_seed_scatter([values.get(key) for values in of_seeds]),
                "detectable": detectable_score_difference(task["low"], task["high"]),
            }
            for key, task in main.items()
        ],
        "more": [
            {
                "task": next(iter(by_step.values())),
                "results": [by_step.get(one["step"]) for one in reversed(checkpoints)],
                "is_main": key in main,
            }
            for key, by_step in sorted(rows.items())
            if key not in main or by_step.keys() > {last}
        ],
    }


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
        sum_energy(account.attempt_energy(name) for name in dict.fromkeys(one.computing_attempt for one in jobs))
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
    """Return, of the last checkpoint of each model, the scores on items that stood in its corpus and on the others.

    Args:
        reader: what the report is made of.
        corpora: by model, the corpus that it is trained on.
    """
    counted = {one.content["corpus"]: one.content.get("contamination") or {} for one in reader.statistics}
    later = {one.content["corpus"]: one.content["contamination"] for one in reader.later_suites}
    last = {path.parent.parent.name: path for path in sorted(reader.answers, key=lambda path: int(path.parent.name))}
    scored = []
    for model, path in sorted(last.items()):
        corpus = corpora.get(model, "")
        # Items of a data set of several files are named after their file, and no task goes by its name.
        found_items = {
            task: {int(name) - 1 for name in counts.get("found_items", []) if name.isdecimal()}
            for task, counts in (later.get(corpus, {}) | counted.get(corpus, {})).items()
        }
        trained_on = later.get(corpus, {}).keys() - counted.get(corpus, {}).keys()
        rows = [
            row | {"trained_on": row["task"] in trained_on}
            for row in compare_contaminated_with_clean(read_item_answers(path), found_items)
        ]
        scored.append({"model": model, "step": int(path.parent.name), "rows": rows})
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


def summarize_samples(reader: RunReader) -> list[Json]:
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
                task: found
                for task, rows in group_by_task(results.content["tasks"]).items()
                if (found := rows[0].get("protocol"))
            },
            "lm_eval_version": results.content.get("lm_eval_version"),
        }
        models.setdefault(results.content["model"], []).insert(0, entry)
    languages = {name: aggregate_by_language(checkpoints[0]["tasks"]) for name, checkpoints in models.items()}
    groups = find_seed_groups(reader)

    def scatter(name: str, language: str) -> SeedScatter | None:
        rows = [row for other in groups.get(name, []) for row in languages[other] if row.language == language]
        return measure_seed_scatter([row.value for row in rows])

    return [
        {
            "model": name,
            "checkpoints": checkpoints,
            "costs": summarize_checkpoint_costs(reader, name, account),
            "evaluation_cost": measure_evaluation_cost(reader, name, account),
            "languages": languages[name],
            "scatter": {row.language: scatter(name, row.language) for row in languages[name]},
            **tabulate_scores(
                checkpoints[:SHOWN_CHECKPOINTS], [models[one][0]["tasks"] for one in groups.get(name, [])]
            ),
        }
        for name, checkpoints in models.items()
    ]


def summarize_checkpoint_differences(reader: RunReader) -> Json:
    """Return the real differences between checkpoints, the counts of all, and the smallest detectable differences.

    Two models that differ in their seed alone are counted apart: nobody chose what differs.
    """
    comparisons = [(row, result.link) for result in reader.differences for row in result.content["comparisons"]]
    real = [row for row, _ in comparisons if row["better"] is not None]
    of_seeds = [row for row, _ in comparisons if row.get("differ_in_seed_alone")]
    real_of_seeds = sum(row["better"] is not None for row in of_seeds)
    detectable = [
        row["detectable_difference"]
        for row, _ in comparisons
        if "right_in_a_alone" in row and row["detectable_difference"] is not None
    ]
    return {
        "rows": real,
        "detectable": (min(detectable), max(detectable)) if detectable else None,
        "compared": len(comparisons) - len(of_seeds),
        "real": len(real) - real_of_seeds,
        "of_seeds": len(of_seeds),
        "real_of_seeds": real_of_seeds,
        "link": comparisons[0][1] if comparisons else None,
    }


def list_baselines(reader: RunReader) -> list[str]:
    """Return the names of what scores are compared with, in their order."""
    tasks = (task for results in reader.evaluation for task in results.content["tasks"])
    return list(dict.fromkeys(name for task in tasks for name in task.get("baselines") or ()))
