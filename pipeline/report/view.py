"""What the three documents say, section by section, computed from the material."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pipeline import layout
from pipeline.core.settings import joined
from pipeline.corpus.removal_reasons import HARMFUL, OF_RIGHTS
from pipeline.energy.energy_accounting import EnergyAccounting, sum_figures
from pipeline.evaluate.items import ANSWER_BITS
from pipeline.report import dag, timeline, training
from pipeline.report.checks import conservation_checks
from pipeline.report.comparison import contaminated, side_by_side
from pipeline.report.consumption import computed_by
from pipeline.report.efficiency import efficiency
from pipeline.report.footprint import footprint
from pipeline.report.forecast import comparison
from pipeline.report.machines import differences, libraries, machines
from pipeline.report.planned import beside
from pipeline.report.read import Artefact, Json, Material
from pipeline.report.samples import samples
from pipeline.report.scores import curves, curves_together, growth
from pipeline.report.settings import PageSettings
from pipeline.report.sources import languages, licenses_of_sources, sources, tokens_by_license
from pipeline.report.tokenizers import compared
from pipeline.tokens.data_order import count_reads


def flattened(settings: Json, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of nested settings as dotted names and values, in order."""
    rows: list[tuple[str, Any]] = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            rows += flattened(value, f"{name}.")
        else:
            rows.append((name, value))
    return rows


def corpus(statistics: Artefact, later_suites: list[Artefact]) -> Json:
    """Return a corpus: its totals, its sources, and per source the reasons of removal of all steps.

    Items of suites that the decontamination does not know stand in it, after those whose documents were removed.
    """
    content = statistics.content
    later = [one.content["contamination"] for one in later_suites if one.content["corpus"] == content["corpus"]]
    removed = content.get("contamination") or {}
    return {
        "name": content["corpus"],
        "link": statistics.link,
        "totals": content["totals"],
        "sources": sorted(content["sources"].items()),
        "languages": sorted((content.get("languages") or {}).items()),
        "licenses": sorted((content.get("licenses") or {}).items()),
        "refused": [
            (name, rows) for name, part in sorted(content["sources"].items()) if (rows := part.get("refused_licenses"))
        ],
        "damaged": [
            (name, part, row)
            for name, part in sorted(content["sources"].items())
            for row in part.get("quarantined", [])
        ],
        "identified": _identified(content),
        "quality": _quality(content),
        "scores": [
            (name, score, told)
            for name, part in sorted(content["sources"].items())
            for score, told in sorted(part.get("scores", {}).items(), reverse=True)
        ],
        "personal_data": sorted((content.get("personal_data") or {}).items()),
        "flags": sorted((content.get("flags") or {}).items()),
        "contamination": [
            (task, {**counts, "stay": stay})
            for stay, tasks in ((False, removed), *((True, tasks) for tasks in later))
            for task, counts in sorted(tasks.items())
        ],
    }


def _identified(content: Json) -> Json | None:
    """Return what the language model said of the documents that came to it, the most bytes first, and what is left."""
    told = content.get("identified")
    if told is None:
        return None
    left = content.get("languages") or {}
    rows = [
        {"language": code, **sizes, "left": left.get(code, {}).get("documents", 0)}
        for code, sizes in told["languages"].items()
    ]
    ordered = sorted(rows, key=lambda row: (-row["bytes"], row["language"]))
    return {**told, "rows": ordered, "bytes": sum(row["bytes"] for row in rows)}


def _quality(content: Json) -> list[Json]:
    """Return what a classifier and what is trivial are worth, on texts of its files and of others, by language."""
    languages = content["quality"]["languages"] if "quality" in content else {}
    return [
        {"language": code, "place": place, "method": method, "texts": told[place], **figures}
        for code, told in sorted(languages.items())
        for place in ("held_out", "other_files")
        if told[place] is not None
        for method, figures in told[place]["methods"].items()
    ]


def removed(material: Material, *reasons: str) -> list[tuple[str, str, int]]:
    """Return (corpus, step and reason, documents) of every step that removed documents for one of the reasons."""
    return [
        (statistics.content["corpus"], f"{step['stage']}: {reason}", count)
        for statistics in material.statistics
        for step in statistics.content["totals"]["stages"]
        for reason in reasons
        if (count := step["removed"].get(reason))
    ]


def _last(metrics: list[Json], key: str) -> Any:
    return next((line[key] for line in reversed(metrics) if line.get(key) is not None), None)


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def model(material: Material, metrics: Artefact, account: EnergyAccounting, told: Callable[[str], str]) -> Json:
    """Return a model: its settings and segments from records, its curves from metrics, its joules from the account."""
    segments = material.records_of("pretrain.segment", model=metrics.name)
    segments.sort(key=lambda record: int(record.content["instance"]["step"]))
    last = segments[-1].content if segments else {}
    planned = material.plan.content.get("models")
    estimate = planned.get(metrics.name) if isinstance(planned, dict) else None
    parameters = (last.get("counts") or {}).get("parameters") or (estimate or {}).get("parameters")
    recorded = joined(last.get("settings", {}), last.get("operation", {}))
    index, seed = _index_read(material, segments), recorded.get("seed")
    energy = sum_figures({name: account.of_attempt(name) for name in map(computed_by, segments)}.values())
    joules = account.training.get(metrics.name, {})
    steps = [{**line, "energy_joules": joules.get(line["step"])} for line in metrics.lines]

    branch = training.branch_of(metrics.name, [record.content for record in segments])
    counted, before = _last(steps, "step") or 0, branch[1] if branch else 0
    validated: Json = next((line for line in reversed(steps) if line.get("validation_loss") is not None), {})
    held_out = (last.get("counts") or {}).get("validation") or {}

    def values(key: str) -> list[float]:
        return [line[key] for line in steps if line.get(key) is not None]

    shown = {
        "name": metrics.name,
        "link": metrics.link,
        "parameters": parameters if isinstance(parameters, int) else None,
        "active_parameters": (last.get("counts") or {}).get("active_parameters") or parameters,
        "steps": _last(steps, "step"),
        "tokens_seen": _last(steps, "tokens_seen"),
        "branch_of": branch,
        "own_steps": max(counted - before, 0),
        "own_tokens": (_last(steps, "tokens_seen") or 0) * max(counted - before, 0) // max(counted, 1),
        "loss": _last(steps, "loss"),
        "validation_loss": validated.get("validation_loss"),
        "validation_bits_per_byte": _last(steps, "validation_bits_per_byte"),
        "tokens_per_second": _median(values("tokens_per_second")),
        "model_flops_utilization": _median(values("model_flops_utilization")),
        "device_utilization": _median(values("device_utilization")),
        "memory_bytes": max(values("memory_bytes"), default=None),
        "seed": seed,
        "settings": [("seed", str(seed))] * (seed is not None)
        + flattened({key: recorded[key] for key in ("architecture", "training") if key in recorded}),
        "segments": segments,
        "energy": energy,
        "strategy": (recorded.get("training") or {}).get("strategy"),
        "trivial": training.trivial(validated, index.get("vocabulary_size"), held_out),
        "held_out": held_out,
        "sequence_length": (recorded.get("training") or {}).get("sequence_length"),
        "mask_documents": ((recorded.get("training") or {}).get("sampling") or {}).get("mask_documents"),
        "read_times": count_reads(index, recorded.get("training") or {}, int(last["instance"]["step"]))
        if index
        else [],
        "without_held_out": training.without_held_out(index) if index else [],
        "charts": training.charts(steps, energy.label, told),
        "figures": training.figures(steps),
        "validation": training.validation(steps),
        "energy_label": energy.label if values("energy_joules") else None,
        "device": (last.get("counts") or {}).get("device"),
        "peak_flops_per_second": (last.get("counts") or {}).get("peak_flops_per_second"),
        "libraries": libraries(segments),
        "processes": (last.get("counts") or {}).get("world_size"),
        "deterministic": (last.get("counts") or {}).get("deterministic"),
        "interruptions": training.interruptions([record.content for record in segments]),
        "recomputation": (recorded.get("training") or {}).get("recomputation"),
    }
    return shown | {"planned": beside(material, account, shown, steps, estimate or {})}


def evaluations(material: Material, account: EnergyAccounting, told: Callable[[str], str]) -> list[Json]:
    """Return per model its checkpoints, the last one first, each with tasks and electricity, and its curves."""
    models: dict[str, list[Json]] = {}
    for results in material.evaluation:
        instance = {key: str(results.content[key]) for key in ("model", "step")}
        records = material.records_of("evaluate.suites", **instance)
        asked = {
            (task["suite"], task["task"]): task["examples"] + task.get("examples_without_value", 0)
            for task in results.content["tasks"]
        }
        entry = {
            "step": results.content["step"],
            "link": results.link,
            "tasks": sorted(results.content["tasks"], key=lambda task: (task["suite"], task["task"], task["metric"])),
            "not_asked": results.content.get("not_asked", []),
            "lm_eval_version": results.content.get("lm_eval_version"),
            "energy": sum_figures(account.of_attempt(computed_by(record)) for record in records),
            "examples": sum(asked.values()),
        }
        models.setdefault(results.content["model"], []).insert(0, entry)
    return [
        {"model": name, "checkpoints": checkpoints, "curves": curves(material, name, account, told)}
        for name, checkpoints in models.items()
    ]


def checkpoint_differences(material: Material) -> Json:
    """Return the comparisons between checkpoints, the real ones first, how many are real, and both of two seeds.

    Those of two seeds are not among the real ones: the models do not differ in anything that was chosen.
    """
    found = [(row, result.link) for result in material.differences for row in result.content["comparisons"]]
    rows = [row for row, _ in sorted(found, key=lambda pair: pair[0]["better"] is None)]
    link = found[0][1] if found else None
    of_seeds = [row for row in rows if row.get("differ_in_seed_alone")]
    found_in, of_seeds_found = (sum(row["better"] is not None for row in some) for some in (rows, of_seeds))
    return {
        "rows": rows,
        "compared": len(rows) - len(of_seeds),
        "real": found_in - of_seeds_found,
        "of_seeds": len(of_seeds),
        "real_of_seeds": of_seeds_found,
        "link": link,
    }


def baselines(material: Material) -> list[str]:
    """Return the names of what scores are compared with, in their order."""
    tasks = (task for results in material.evaluation for task in results.content["tasks"])
    return list(dict.fromkeys(name for task in tasks for name in task.get("baselines") or ()))


def plan(content: Json) -> Json:
    """Return the plan's figures: a row per figure with its value for each model and in total, and its formula."""
    columns = {**content.get("models", {}), "total": content.get("totals", {})}
    formulas = content.get("formulas", {})
    keys = [*formulas, *sorted({key for column in columns.values() for key in column} - formulas.keys())]
    rows = [
        (key, [column.get(key) for column in columns.values()], formulas.get(key))
        for key in keys
        if any(key in column for column in columns.values())
    ]
    assumed = flattened({key: content[key] for key in ("platform", "energy") if key in content})
    return {"columns": list(columns), "rows": rows, "assumed": assumed}


def _index_read(material: Material, segments: list[Artefact]) -> Json:
    """Return the index of the tokens that a model read; nothing where that is not known."""
    read = {entry["path"] for record in segments for entry in record.content["inputs"]}
    return next((i.content for i in material.indexes if layout.TOKEN_INDEX.name(tokens=i.name) in read), {})


def context(material: Material, settings: PageSettings, account: EnergyAccounting, told: Callable[[str], str]) -> Json:
    """Return everything that the templates show; `told` says a sentence in the language of the page."""
    checks = conservation_checks(material, account)
    models = [model(material, metrics, account, told) for metrics in material.metrics]
    bases = {one["name"]: (one["branch_of"] or [None])[0] for one in models}
    for one in models:
        first = one["name"]
        while base := bases.get(first):
            first = base
        one["began_with"] = training.began_with(material, first, settings.pretrained.get(first))
    evaluated, differing = evaluations(material, account, told), checkpoint_differences(material)
    steps: dict[str, list[Artefact]] = {}
    for record in sorted(material.records, key=lambda artefact: (artefact.content["started"], artefact.link)):
        steps.setdefault(record.content["step"], []).append(record)
    moments = [record.content[key] for record in material.records for key in ("started", "ended")]
    gits = [record.content.get("git") for record in material.records]
    return {
        "settings": settings,
        "configuration_sha256": hashlib.sha256(settings.configuration.encode()).hexdigest(),
        "material": material,
        "checks": checks,
        "failed_checks": [check for check in checks if not check.holds],
        "energy": footprint(material, account, settings, models),
        "account": account,
        "forecast": comparison(material, account),
        "timeline": timeline.of_run(material, account, told),
        "dag": dag.drawing(
            material.records,
            lambda jobs: f"{jobs:,} {told('job' if jobs == 1 else 'jobs')}",
            told("The DAG of steps"),
            told("Each box is a step with its number of jobs; an arrow leads to a step that read what it wrote"),
        ),
        "slurm": efficiency(material),
        "machines": machines(material),
        "other_than_lock": differences(material),
        "sources": sources(material),
        "source_licenses": licenses_of_sources(material),
        "tokens_by_license": tokens_by_license,
        "languages": languages(material, settings),
        "corpora": [corpus(statistics, material.later_suites) for statistics in material.statistics],
        "tokenizers": compared(material),
        "models": models,
        "evaluations": evaluated,
        "side_by_side": side_by_side(evaluated, differing["rows"]),
        "contaminated": contaminated(material, settings.corpora),
        "checkpoint_differences": differing,
        "early_sign": ANSWER_BITS,
        "growth": growth(material),
        "curves_together": curves_together(material, told),
        "baselines": baselines(material),
        "samples": samples(material),
        "steps": steps,
        "commits": sorted({(git["commit"], bool(git["dirty"])) for git in gits if git and git["commit"]}),
        "hosts": sorted({record.content["host"] for record in material.records if record.content.get("host")}),
        "first": min(moments, default=""),
        "last": max(moments, default=""),
        "plan": plan(material.plan.content),
        "removed_for_reservation": removed(material, *OF_RIGHTS),
        "removed_as_harmful": removed(material, HARMFUL),
    }
