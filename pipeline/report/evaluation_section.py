"""Return what the page shows of evaluation: scores, their curves, comparisons of models, and samples of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from markupsafe import Markup

from pipeline.energy.energy_accounting import EnergyAccounting, EnergyFigure, sum_energy
from pipeline.evaluate.answer_comparison import compare_contaminated
from pipeline.evaluate.items import ScoreKey, read_item_answers
from pipeline.evaluate.score_trends import LEAST_CHECKPOINTS
from pipeline.report.charts import Series, draw_line_chart
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.training_section import find_parent_checkpoint

INFORMATIVE, NOT_BETTER, NOT_COMPARED, NO_GROWTH = (
    "says something",
    "grows, but is not better than every baseline",
    "grows; not compared with baselines",
    "no growth found",
)


def measure_growth(reader: RunReader) -> Json:
    """Return what grows while models train: a row per score, those that say something first, and how many these are.

    A score says something where it grows and the last checkpoint is better than every baseline. `too_few` names the
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
        rows.append({**row, "told": outcome, "is_better": verdict})
    rows.sort(key=lambda row: (INFORMATIVE, NOT_COMPARED, NOT_BETTER, NO_GROWTH).index(row["told"]))
    models = [results.content["model"] for results in reader.evaluation]
    return {
        "rows": rows,
        "says": sum(row["told"] == INFORMATIVE for row in rows),
        "link": trends[0][1] if trends else None,
        "too_few": sorted({model for model in models if models.count(model) < LEAST_CHECKPOINTS}),
    }


def summarize_score_curves(
    reader: RunReader, model: str, account: EnergyAccounting, gettext: Callable[[str], str]
) -> Json:
    """Return what each evaluated checkpoint of a model had cost, and its score of each task, drawn over the tokens.

    Of each task the first of its metrics is drawn. FLOPs are those of the plan, by tokens; joules those of the segments
    up to the checkpoint, without attempts whose result was lost, and not known where a segment's are not. Nothing is
    returned of one checkpoint alone, or where the metrics do not tell the tokens.
    """
    steps, tokens, by_score = _scores_by_step(reader, model)
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
    return {
        "columns": columns,
        "charts": [chart for _, chart in _draw_score_charts({model: (tokens, by_score)}, gettext)],
        "rows": [
            (name, metric, [scores.get(step) for step in steps]) for (_, name, metric), scores in by_score.items()
        ],
        "formula": (reader.plan.content.get("formulas") or {}).get("model_flops"),
    }


def compare_score_curves(reader: RunReader, gettext: Callable[[str], str]) -> list[Markup]:
    """Return a chart of each task that two models or more were asked at two checkpoints or more, a line per model."""
    models = dict.fromkeys(str(one.content["model"]) for one in reader.evaluation)
    scores = {model: _scores_by_step(reader, model) for model in models}
    curves = {model: (tokens, by_score) for model, (steps, tokens, by_score) in scores.items() if len(steps) > 1}
    return [chart for count, chart in _draw_score_charts(curves, gettext) if count > 1]


def _scores_by_step(reader: RunReader, model: str) -> tuple[list[int], dict[int, int], dict[ScoreKey, dict[int, Json]]]:
    """Return the evaluated steps of a model, the tokens by step, and the rows of each score by step.

    Nothing is returned where the metrics do not tell the tokens of each.
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
) -> Iterator[tuple[int, Markup]]:
    """Yield the first metric of each task over the tokens, with how many of the models it has lines of."""
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
            series = series if len(models) > 1 else [replace(series[0], name=name)]
            yield len(series), draw_line_chart(name, gettext(unit), metric, series, gettext=gettext)


def _cumulative_energy(step: int, model: str, reader: RunReader, account: EnergyAccounting) -> EnergyFigure:
    """Return the joules of the segments up to a step of a model, a branch's base with it; unknown where one is."""
    records = {int(one.instance["step"]): one for one in reader.segments(model=model)}
    names = dict.fromkeys(record.computed_by for end, record in records.items() if end <= step)
    figures = [account.attempt_energy(name) for name in names]
    if branch := find_parent_checkpoint(model, [records[end] for end in sorted(records)]):
        figures.append(_cumulative_energy(branch[1], branch[0], reader, account))
    is_known = step in records and all(figure.is_known for figure in figures)
    return sum_energy(figures) if is_known else EnergyFigure()


def compare_models(evaluations: list[Json], comparisons: list[Json]) -> list[Json]:
    """Return a row for each score that the last checkpoints of two models or more have, by language and suite.

    Args:
        evaluations: per model its checkpoints, the last one first.
        comparisons: between checkpoints, of which `better` says where the difference is real; of models that differ in
            their seed alone it is told apart.
    """
    last = {entry["model"]: entry["checkpoints"][0] for entry in evaluations}
    rows: dict[tuple[str, ...], Json] = {}
    for model, checkpoint in last.items():
        for task in checkpoint["tasks"]:
            score = (task["language"], task["suite"], task["task"], task["metric"])
            rows.setdefault(score, {"scores": {}, "better_than": {}, "better_seed_than": {}})["scores"][model] = task
    for comparison in comparisons:
        if comparison["better"] is None:
            continue
        better, worse = comparison["a"], comparison["b"]
        if comparison["better"] == "b":
            better, worse = worse, better
        are_last = all(last.get(side["model"], {}).get("step") == side["step"] for side in (better, worse))
        if not are_last or better["model"] == worse["model"]:
            continue
        kind = "better_seed_than" if comparison.get("differ_in_seed_alone") else "better_than"
        for key, entry in rows.items():
            if key[1:] == (comparison["suite"], comparison["task"], comparison["metric"]):
                entry[kind].setdefault(better["model"], []).append(worse["model"])
    names = ("language", "suite", "task", "metric")
    return [
        dict(zip(names, key, strict=True)) | entry for key, entry in sorted(rows.items()) if len(entry["scores"]) > 1
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
            for row in compare_contaminated(read_item_answers(path), found_items)
        ]
        scored.append({"model": model, "step": int(path.parent.name), "rows": rows})
    return [entry for entry in scored if entry["rows"]]


def copied_share(counted: Json) -> float | None:
    """Return the share of the characters that are copied; None where there is no text."""
    return counted["copied_characters"] / counted["characters"] if counted["characters"] else None


def split_copied_text(text: str, parts: list[Json]) -> list[tuple[str, bool]]:
    """Return a text in pieces, each with whether it stands in training documents."""
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


def summarize_evaluations(reader: RunReader, account: EnergyAccounting, gettext: Callable[[str], str]) -> list[Json]:
    """Return per model its checkpoints, the last one first, each with tasks and electricity, and its curves."""
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
            "energy": sum_energy(account.attempt_energy(record.computed_by) for record in records),
            "examples": sum(examples_by_task.values()),
        }
        models.setdefault(results.content["model"], []).insert(0, entry)
    return [
        {"model": name, "checkpoints": checkpoints, "curves": summarize_score_curves(reader, name, account, gettext)}
        for name, checkpoints in models.items()
    ]


def summarize_differences(reader: RunReader) -> Json:
    """Return the comparisons between checkpoints, the real ones first, how many are real, and both of two seeds.

    Those of two seeds are not among the real ones: the models do not differ in anything that was chosen.
    """
    comparisons = [(row, result.link) for result in reader.differences for row in result.content["comparisons"]]
    rows = [row for row, _ in sorted(comparisons, key=lambda pair: pair[0]["better"] is None)]
    link = comparisons[0][1] if comparisons else None
    of_seeds = [row for row in rows if row.get("differ_in_seed_alone")]
    real_all, real_of_seeds = (sum(row["better"] is not None for row in group) for group in (rows, of_seeds))
    return {
        "rows": rows,
        "compared": len(rows) - len(of_seeds),
        "real": real_all - real_of_seeds,
        "of_seeds": len(of_seeds),
        "real_of_seeds": real_of_seeds,
        "link": link,
    }


def list_baselines(reader: RunReader) -> list[str]:
    """Return the names of what scores are compared with, in their order."""
    tasks = (task for results in reader.evaluation for task in results.content["tasks"])
    return list(dict.fromkeys(name for task in tasks for name in task.get("baselines") or ()))
