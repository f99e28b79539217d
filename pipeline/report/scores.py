"""The scores of a model over its training: their curves, and which of them say something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from markupsafe import Markup

from pipeline.energy.energy_accounting import EnergyAccounting, Figure, sum_figures
from pipeline.evaluate.trends import FEWEST
from pipeline.report.charts import Series, lines
from pipeline.report.consumption import computed_by
from pipeline.report.read import Json, Material
from pipeline.report.training import branch_of

Score = tuple[str, str, str]
"""Suite, task and metric."""
SAYS, NOT_BETTER, NOT_COMPARED, NOTHING = (
    "says something",
    "grows, but is not better than every baseline",
    "grows; not compared with baselines",
    "no growth found",
)


def growth(material: Material) -> Json:
    """Return what grows while models train: a row per score, those that say something first, and how many these are.

    A score says something where it grows and the last checkpoint is better than every baseline. `too_few` names the
    models of fewer than three checkpoints; nothing is returned where there are no others.
    """
    found = [(row, result.link) for result in material.differences for row in result.content.get("trends", [])]
    last: dict[str, Json] = {results.content["model"]: results.content for results in material.evaluation}
    verdicts = {
        (model, task["suite"], task["task"], task["metric"]): task.get("verdict")
        for model, content in last.items()
        for task in content["tasks"]
    }
    rows = []
    for row, _ in found:
        verdict = verdicts.get((row["model"], row["suite"], row["task"], row["metric"]))
        told = {"better": SAYS, None: NOT_COMPARED}.get(verdict, NOT_BETTER) if row["grows"] else NOTHING
        rows.append({**row, "told": told, "is_better": verdict})
    rows.sort(key=lambda row: (SAYS, NOT_COMPARED, NOT_BETTER, NOTHING).index(row["told"]))
    models = [results.content["model"] for results in material.evaluation]
    return {
        "rows": rows,
        "says": sum(row["told"] == SAYS for row in rows),
        "link": found[0][1] if found else None,
        "too_few": sorted({model for model in models if models.count(model) < FEWEST}),
    }


def curves(material: Material, model: str, account: EnergyAccounting, told: Callable[[str], str]) -> Json:
    """Return what each evaluated checkpoint of a model had cost, and its score of each task, drawn over the tokens.

    Of each task the first of its metrics is drawn. FLOPs are those of the plan, by tokens; joules those of the segments
    up to the checkpoint, without attempts whose result was lost, and not known where a segment's are not. Nothing is
    returned of one checkpoint alone, or where the metrics do not tell the tokens.
    """
    steps, tokens, by_score = _over_training(material, model)
    if len(steps) < 2:
        return {}
    planned = (material.plan.content.get("models") or {}).get(model) or {}
    each = planned["model_flops"] / planned["tokens"] if planned.get("model_flops") and planned.get("tokens") else None
    columns = [
        {
            "step": step,
            "tokens": tokens[step],
            "flops": None if each is None else each * tokens[step],
            "energy": _energy_up_to(step, model, material, account),
        }
        for step in steps
    ]
    return {
        "columns": columns,
        "charts": [chart for _, chart in _charts({model: (tokens, by_score)}, told)],
        "rows": [
            (name, metric, [scores.get(step) for step in steps]) for (_, name, metric), scores in by_score.items()
        ],
        "formula": (material.plan.content.get("formulas") or {}).get("model_flops"),
    }


def curves_together(material: Material, told: Callable[[str], str]) -> list[Markup]:
    """Return a chart of each task that two models or more were asked at two checkpoints or more, a line per model."""
    models = dict.fromkeys(str(one.content["model"]) for one in material.evaluation)
    found = {model: _over_training(material, model) for model in models}
    drawn = {model: (tokens, by_score) for model, (steps, tokens, by_score) in found.items() if len(steps) > 1}
    return [chart for count, chart in _charts(drawn, told) if count > 1]


def _over_training(material: Material, model: str) -> tuple[list[int], dict[int, int], dict[Score, dict[int, Json]]]:
    """Return the evaluated steps of a model, the tokens by step, and the rows of each score by step.

    Nothing is returned where the metrics do not tell the tokens of each.
    """
    results = [one.content for one in material.evaluation if one.content["model"] == model]
    steps = [int(content["step"]) for content in results]
    metrics = next((one.lines for one in material.metrics if one.name == model), [])
    tokens = {int(line["step"]): line["tokens_seen"] for line in metrics if line.get("tokens_seen") is not None}
    if not tokens.keys() >= {*steps}:
        return [], {}, {}
    by_score: dict[Score, dict[int, Json]] = {}
    for content in results:
        for task in content["tasks"]:
            by_score.setdefault((task["suite"], task["task"], task["metric"]), {})[int(content["step"])] = task
    return steps, tokens, by_score


def _charts(
    models: dict[str, tuple[dict[int, int], dict[Score, dict[int, Json]]]], told: Callable[[str], str]
) -> Iterator[tuple[int, Markup]]:
    """Yield the first metric of each task over the tokens, with how many of the models it has lines of."""
    largest = max((max(tokens.values()) for tokens, _ in models.values()), default=0)
    units = (("billion tokens", 1e9), ("million tokens", 1e6))
    unit, size = next(((unit, size) for unit, size in units if largest >= size), ("tokens", 1.0))
    drawn = set()
    for suite, name, metric in dict.fromkeys(score for _, by_score in models.values() for score in by_score):
        series = []
        for model, (tokens, by_score) in models.items():
            scores = by_score.get((suite, name, metric), {})
            points = [(tokens[step] / size, task) for step, task in scores.items() if task["value"] is not None]
            if len(points) > 1:
                band = [(x, task["low"], task["high"]) for x, task in points if task.get("low") is not None]
                series.append(Series(model, [(x, task["value"]) for x, task in points], band))
        if series and (suite, name) not in drawn:
            drawn.add((suite, name))
            series = series if len(models) > 1 else [replace(series[0], name=name)]
            yield len(series), lines(name, told(unit), metric, series, told=told)


def _energy_up_to(step: int, model: str, material: Material, account: EnergyAccounting) -> Figure:
    """Return the joules of the segments up to a step of a model, a branch's base with it; unknown where one is."""
    records = {
        int(one.content["instance"]["step"]): one for one in material.records_of("pretrain.segment", model=model)
    }
    names = dict.fromkeys(computed_by(record) for end, record in records.items() if end <= step)
    figures = [account.of_attempt(name) for name in names]
    if branch := branch_of(model, [records[end].content for end in sorted(records)]):
        figures.append(_energy_up_to(branch[1], branch[0], material, account))
    is_known = step in records and all(figure.is_known for figure in figures)
    return sum_figures(figures) if is_known else Figure()
