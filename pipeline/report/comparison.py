"""The scores of models side by side, and of items that stood in the corpus beside the others."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.evaluate.answer_comparison import compare_contaminated
from pipeline.evaluate.items import read_answers
from pipeline.report.read import Json, Material


def side_by_side(evaluations: list[Json], comparisons: list[Json]) -> list[Json]:
    """Return a row for each score that the last checkpoints of two models or more have, by language and suite.

    Args:
        evaluations: per model its checkpoints, the last one first.
        comparisons: between checkpoints, of which `better` says where the difference is real; of models that differ in
            their seed alone it is told apart.
    """
    last = {entry["model"]: entry["checkpoints"][0] for entry in evaluations}
    found: dict[tuple[str, ...], Json] = {}
    for model, checkpoint in last.items():
        for task in checkpoint["tasks"]:
            score = (task["language"], task["suite"], task["task"], task["metric"])
            found.setdefault(score, {"scores": {}, "better_than": {}, "better_seed_than": {}})["scores"][model] = task
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
        for key, entry in found.items():
            if key[1:] == (comparison["suite"], comparison["task"], comparison["metric"]):
                entry[kind].setdefault(better["model"], []).append(worse["model"])
    names = ("language", "suite", "task", "metric")
    return [
        dict(zip(names, key, strict=True)) | entry for key, entry in sorted(found.items()) if len(entry["scores"]) > 1
    ]


def contaminated(material: Material, corpora: Mapping[str, str]) -> list[Json]:
    """Return, of the last checkpoint of each model, the scores on items that stood in its corpus and on the others.

    Args:
        material: what the report is made of.
        corpora: by model, the corpus that it is trained on.
    """
    counted = {one.content["corpus"]: one.content.get("contamination") or {} for one in material.statistics}
    later = {one.content["corpus"]: one.content["contamination"] for one in material.later_suites}
    last = {path.parent.parent.name: path for path in sorted(material.answers, key=lambda path: int(path.parent.name))}
    scored = []
    for model, path in sorted(last.items()):
        corpus = corpora.get(model, "")
        # Items of a data set of several files are named after their file, and no task goes by its name.
        found = {
            task: {int(name) - 1 for name in counts.get("found_items", []) if name.isdecimal()}
            for task, counts in (later.get(corpus, {}) | counted.get(corpus, {})).items()
        }
        trained_on = later.get(corpus, {}).keys() - counted.get(corpus, {}).keys()
        rows = [
            row | {"trained_on": row["task"] in trained_on} for row in compare_contaminated(read_answers(path), found)
        ]
        scored.append({"model": model, "step": int(path.parent.name), "rows": rows})
    return [entry for entry in scored if entry["rows"]]
