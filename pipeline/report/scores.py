"""The scores of a model over its training: their curves, and which of them say something."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.energy.figures import Account, Figure, together
from pipeline.evaluate.trends import FEWEST
from pipeline.report.charts import Series, lines
from pipeline.report.consumption import computed_by
from pipeline.report.read import Json, Material

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


def curves(material: Material, model: str, account: Account, told: Callable[[str], str]) -> Json:
    """Return what each evaluated checkpoint of a model had cost, and its score of each task, drawn over the tokens.

    Of each task the first of its metrics is drawn. FLOPs are those of the plan, by tokens; joules those of the segments
    up to the checkpoint, without attempts whose result was lost, and not known where a segment's are not. Nothing is
    returned of one checkpoint alone, or where the metrics do not tell the tokens.
    """
    results = [one.content for one in material.evaluation if one.content["model"] == model]
    steps = [int(content["step"]) for content in results]
    metrics = next((one.lines for one in material.metrics if one.name == model), [])
    tokens = {int(line["step"]): line["tokens_seen"] for line in metrics if line.get("tokens_seen") is not None}
    if len(results) < 2 or not tokens.keys() >= {*steps}:
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
    by_score: dict[tuple[str, str, str], dict[int, Json]] = {}
    for content in results:
        for task in content["tasks"]:
            by_score.setdefault((task["suite"], task["task"], task["metric"]), {})[int(content["step"])] = task
    unit, size = next(
        (
            (unit, size)
            for unit, size in (("billion tokens", 1e9), ("million tokens", 1e6))
            if tokens[steps[-1]] >= size
        ),
        ("tokens", 1.0),
    )
    charts, drawn = [], set()
    for (suite, name, metric), scores in by_score.items():
        points = [(tokens[step] / size, task) for step, task in scores.items() if task["value"] is not None]
        if (suite, name) in drawn or len(points) < 2:
            continue
        drawn.add((suite, name))
        line = Series(
            name,
            [(x, task["value"]) for x, task in points],
            [(x, task["low"], task["high"]) for x, task in points if task.get("low") is not None],
        )
        charts.append(lines(name, told(unit), metric, [line], told=told))
    return {
        "columns": columns,
        "charts": charts,
        "rows": [
            (name, metric, [scores.get(step) for step in steps]) for (_, name, metric), scores in by_score.items()
        ],
        "formula": (material.plan.content.get("formulas") or {}).get("model_flops"),
    }


def _energy_up_to(step: int, model: str, material: Material, account: Account) -> Figure:
    """Return the joules of the segments of a model up to a step; unknown where those of one are."""
    records = {
        int(one.content["instance"]["step"]): one for one in material.records_of("pretrain.segment", model=model)
    }
    names = dict.fromkeys(computed_by(record) for end, record in records.items() if end <= step)
    figures = [account.of_attempt(name) for name in names]
    is_known = step in records and all(figure.is_known for figure in figures)
    return together(figures) if is_known else Figure()
