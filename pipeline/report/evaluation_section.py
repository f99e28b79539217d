"""Return what the page shows of evaluation: scores, their curves, comparisons of models, and samples of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from markupsafe import Markup

from pipeline.energy.energy_accounting_file import EnergyAccounting, EnergyFigure, sum_energy
from pipeline.evaluate.answer_comparison import compare_contaminated_with_clean
from pipeline.evaluate.item_results import ScoreKey, read_item_answers
from pipeline.evaluate.score_trends import LEAST_CHECKPOINTS
from pipeline.evaluate.trivial_baseline_tests import is_mostly_truncated
from pipeline.report.charts import Series, draw_line_chart
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.training_section import find_parent_checkpoint

SHOWN_CHECKPOINTS = 4  # in the table of a model: the last ones
METRICS = {
    "acc": "share of items with the right answer as the most probable one",
    "acc_norm": "as acc, with the log-probability per character",
    "acc_slor": "share of pairs with the correct sentence ahead, corrected for word frequency (SLOR)",
    "answer_bits_per_byte": "bits per byte of the right answers; an early sign, not tested",
    "bits_per_byte": "bits per byte of the text",
    "claims_found": "share of sentences with numbers and most words from one given passage: copying, not truth",
    "bleu": "overlap of word sequences with a reference, 0 to 100",
    "chrf": "overlap of character sequences with a reference, 0 to 100",
    "sari": "words kept, added and deleted as in the references, 0 to 100",
    "rouge_l": "longest common sequence of words with a reference",
    "lix": "readability from the lengths of words and sentences",
}
"""Metrics in words, by their names in results."""
INFORMATIVE, NOT_BETTER, NOT_COMPARED, NO_GROWTH = (
    "informative",
    "grows, not better than every baseline",
    "grows, not compared with baselines",
    "no growth found",
)


def summarize_score_growth(reader: RunReader) -> Json:
    """Return what grows while models train: a row per score, the informative ones first, and how many these are.

    A score is informative if it grows and the last checkpoint is better than every baseline. `too_few` names the
    models of fewer than three checkpoints; nothing is returned where there are no others.
    """
    trends = [(row, result.link) for result in reader.differences for row in result.content.get("trends", [])]
    last: dict[str, Json] = {results.content["model"]: results.content for results in reader.evaluation}
    verdicts = {
        (model, task["suite"], task["task"], task["metric"]): task.get("verdict")
        for model, content in last.items()
        for task in content["tasks"]
    }
    rows = []
    for row, _ in trends:
        verdict = verdicts.get((row["model"], row["suite"], row["task"], row["metric"]))
        outcome = {"better": INFORMATIVE, None: NOT_COMPARED}.get(verdict, NOT_BETTER) if row["grows"] else NO_GROWTH
        rows.append({**row, "outcome": outcome, "is_better": verdict})
    rows.sort(key=lambda row: (INFORMATIVE, NOT_COMPARED, NOT_BETTER, NO_GROWTH).index(row["outcome"]))
    models = [results.content["model"] for results in reader.evaluation]
    return {
        "rows": rows,
        "informative": sum(row["outcome"] == INFORMATIVE for row in rows),
        "link": trends[0][1] if trends else None,
        "too_few": sorted({model for model in models if models.count(model) < LEAST_CHECKPOINTS}),
    }


def summarize_checkpoint_costs(reader: RunReader, model: str, account: EnergyAccounting) -> Json:
    """Return the tokens, FLOPs and joules that each evaluated checkpoint of a model had cost.

    FLOPs are those of the plan, by tokens. Joules are those of the segments up to the checkpoint, without lost
    attempts, and unknown where those of a segment are. One checkpoint alone returns nothing, and so do metrics
    without tokens.
    """
    steps, tokens, _ = _scores_by_step(reader, model)
    if len(steps) < 2:
        return {}
    planned = (reader.plan.content.get("models") or {}).get(model) or {}
    each = planned["model_flops"] / planned["tokens"] if planned.get("model_flops") and planned.get("tokens") else None
    columns = [
        {
            "step": step,
            "tokens": tokens[step],
            "flops": None if each is None else each * tokens[step],
            "energy": _cumulative_energy(step, model, reader, account),
        }
        for step in steps
    ]
    return {"columns": columns, "formula": (reader.plan.content.get("formulas") or {}).get("model_flops")}


def draw_score_curves(reader: RunReader, gettext: Callable[[str], str]) -> list[Markup]:
    """Return a chart of each task over the tokens, a line for each model with two checkpoints or more."""
    names = dict.fromkeys(str(one.content["model"]) for one in reader.evaluation)
    scores = {model: _scores_by_step(reader, model) for model in names}
    curves = {model: (tokens, by_score) for model, (steps, tokens, by_score) in scores.items() if len(steps) > 1}
    return [*_draw_score_charts(curves, gettext)]


def _scores_by_step(reader: RunReader, model: str) -> tuple[list[int], dict[int, int], dict[ScoreKey, dict[int, Json]]]:
    """Return the evaluated steps of a model, the tokens by step, and the rows of each score by step.

    Nothing is returned where the metrics lack the tokens of a step.
    """
    results = [one.content for one in reader.evaluation if one.content["model"] == model]
    steps = [int(content["step"]) for content in results]
    metrics = next((one.lines for one in reader.metrics if one.name == model), [])
    tokens = {int(line["step"]): line["tokens_seen"] for line in metrics if line.get("tokens_seen") is not None}
    if not tokens.keys() >= {*steps}:
        return [], {}, {}
    by_score: dict[ScoreKey, dict[int, Json]] = {}
    for content in results:
        for task in content["tasks"]:
            by_score.setdefault((task["suite"], task["task"], task["metric"]), {})[int(content["step"])] = task
    return steps, tokens, by_score


def _draw_score_charts(
    models: dict[str, tuple[dict[int, int], dict[ScoreKey, dict[int, Json]]]], gettext: Callable[[str], str]
) -> Iterator[Markup]:
    """Yield a chart of the first metric of each task over the tokens."""
    largest = max((max(tokens.values()) for tokens, _ in models.values()), default=0)
    units = (("billion tokens", 1e9), ("million tokens", 1e6))
    unit, size = next(((unit, size) for unit, size in units if largest >= size), ("tokens", 1.0))
    drawn_tasks = set()
    for suite, name, metric in dict.fromkeys(score for _, by_score in models.values() for score in by_score):
        series = []
        for model, (tokens, by_score) in models.items():
            scores = by_score.get((suite, name, metric), {})
            points = [(tokens[step] / size, task) for step, task in scores.items() if task["value"] is not None]
            if len(points) > 1:
                band = [(x, task["low"], task["high"]) for x, task in points if task.get("low") is not None]
                series.append(Series(model, [(x, task["value"]) for x, task in points], band))
        if series and (suite, name) not in drawn_tasks:
            drawn_tasks.add((suite, name))
            yield draw_line_chart(name, gettext(unit), metric, series, gettext=gettext)


def _cumulative_energy(step: int, model: str, reader: RunReader, account: EnergyAccounting) -> EnergyFigure:
    """Return the joules of the segments up to a step of a model, a branch's base with it; unknown where one is."""
    records = {int(one.instance["step"]): one for one in reader.segments(model=model)}
    names = dict.fromkeys(record.computing_attempt for end, record in records.items() if end <= step)
    figures = [account.attempt_energy(name) for name in names]
    if branch := find_parent_checkpoint(model, [records[end] for end in sorted(records)]):
        figures.append(_cumulative_energy(branch[1], branch[0], reader, account))
    is_known = step in records and all(figure.is_known for figure in figures)
    return sum_energy(figures) if is_known else EnergyFigure()


def aggregate_by_language(tasks: list[Json]) -> list[Json]:
    """Return the mean score of each language, from 0 for guessing to 100 for right answers alone, with its interval.

    Each task counts once, by its first metric with a chance level, as (score - chance) / (1 - chance). Tasks without a
    chance level, or with mostly truncated prompts, are left out. The interval combines those of the tasks, which are
    independent (Zou and Donner, Statistics in Medicine 27, 2008, p. 1693).
    """
    languages: dict[str, dict[tuple[str, str], Json]] = {}
    for task in tasks:
        chance, value = task["chance_level"], task["value"]
        is_comparable = chance is not None and chance < 1 and task["higher_is_better"] and task.get("aim") is None
        if is_comparable and value is not None and not is_mostly_truncated(task):
            languages.setdefault(task["language"], {}).setdefault((task["suite"], task["task"]), task)
    rows = []
    for language, chosen in sorted(languages.items()):
        scores, below, above = [], [], []
        for task in chosen.values():
            scale = 100 / (1 - task["chance_level"])
            scores.append(scale * (task["value"] - task["chance_level"]))
            if task["low"] is not None:
                below.append(scale * (task["value"] - task["low"]))
                above.append(scale * (task["high"] - task["value"]))
        mean, number = sum(scores) / len(scores), len(scores)
        has_interval = len(below) == number
        rows.append(
            {
                "language": language,
                "value": mean,
                "low": mean - math.hypot(*below) / number if has_interval else None,
                "high": mean + math.hypot(*above) / number if has_interval else None,
                "tasks": number,
                "tested": sum(task["verdict"] is not None for task in chosen.values()),
                "better": sum(task["verdict"] == "better" for task in chosen.values()),
            }
        )
    return rows


def _scores_of_checkpoints(checkpoints: list[Json]) -> list[Json]:
    """Return a row for each score: its last result, and its result at each checkpoint, the first one first."""
    by_score: dict[ScoreKey, dict[int, Json]] = {}
    for checkpoint in checkpoints:
        for task in checkpoint["tasks"]:
            by_score.setdefault((task["suite"], task["task"], task["metric"]), {})[checkpoint["step"]] = task
    return [
        {"task": next(iter(results.values())), "results": [results.get(one["step"]) for one in reversed(checkpoints)]}
        for _, results in sorted(by_score.items())
    ]


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
    """Return per model its checkpoints, the last one first, each with tasks and electricity, and its scores."""
    models: dict[str, list[Json]] = {}
    for results in reader.evaluation:
        instance = {key: str(results.content[key]) for key in ("model", "step")}
        records = reader.records_of("evaluate.suites", **instance)
        examples_by_task = {
            (task["suite"], task["task"]): task["examples"] + task.get("examples_without_value", 0)
            for task in results.content["tasks"]
        }
        entry = {
            "step": results.content["step"],
            "link": results.link,
            "tasks": sorted(results.content["tasks"], key=lambda task: (task["suite"], task["task"], task["metric"])),
            "not_asked": results.content.get("not_asked", []),
            "lm_eval_version": results.content.get("lm_eval_version"),
            "energy": sum_energy(account.attempt_energy(record.computing_attempt) for record in records),
            "examples": sum(examples_by_task.values()),
        }
        models.setdefault(results.content["model"], []).insert(0, entry)
    return [
        {
            "model": name,
            "checkpoints": checkpoints,
            "costs": summarize_checkpoint_costs(reader, name, account),
            "languages": aggregate_by_language(checkpoints[0]["tasks"]),
            "scores": _scores_of_checkpoints(checkpoints[:SHOWN_CHECKPOINTS]),
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
