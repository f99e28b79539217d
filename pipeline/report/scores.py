"""The scores of a model over its training: which of them say something."""

from __future__ import annotations

from pipeline.report.read import Json, Material

SAYS, NOT_BETTER, NOT_COMPARED, NOTHING = (
    "says something",
    "grows, but is not better than every baseline",
    "grows; not compared with baselines",
    "no growth found",
)
FEWEST = 3  # checkpoints of a model whose scores are told as growing


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
