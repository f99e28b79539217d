"""Return what page, model card and papers show, section by section."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pipeline.core.records import Record
from pipeline.core.settings import joined
from pipeline.corpus.documents import HARMFUL, RIGHTS_REASONS
from pipeline.energy.energy_accounting import EnergyAccounting, sum_figures
from pipeline.evaluate.items import ANSWER_BITS
from pipeline.report import charts, timeline, training_section
from pipeline.report.data_section import (
    compare_tokenizers,
    corpus,
    languages,
    licenses_of_sources,
    removed,
    sources,
    tokens_by_license,
)
from pipeline.report.energy_section import compare_forecast
from pipeline.report.evaluation_section import (
    baselines,
    checkpoint_differences,
    compare_contaminated_items,
    compare_models,
    curves_together,
    evaluations,
    measure_growth,
    samples,
)
from pipeline.report.footprint import footprint
from pipeline.report.jobs_section import efficiency, libraries, library_differences, machines
from pipeline.report.key_figures import conservation_checks
from pipeline.report.run_reader import Artefact, Json, RunReader
from pipeline.report.settings import PageSettings
from pipeline.report.training_section import compare_with_plan
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


def _last(metrics: list[Json], key: str) -> Any:
    return next((line[key] for line in reversed(metrics) if line.get(key) is not None), None)


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def model(material: RunReader, metrics: Artefact, account: EnergyAccounting, gettext: Callable[[str], str]) -> Json:
    """Return a model: its settings and segments from records, its curves from metrics, its joules from the account."""
    segments = material.segments(model=metrics.name)
    segments.sort(key=lambda record: int(record.instance["step"]))
    last = segments[-1] if segments else None
    counts = last.counts if last else {}
    planned = material.plan.content.get("models")
    estimate = planned.get(metrics.name) if isinstance(planned, dict) else None
    parameters = counts.get("parameters") or (estimate or {}).get("parameters")
    recorded = joined(last.settings, last.operation) if last else {}
    read, seed = material.index_read(segments), recorded.get("seed")
    index, training = read.content if read else {}, recorded.get("training") or {}
    energy = sum_figures({one.computed_by: account.of_attempt(one.computed_by) for one in segments}.values())
    joules = account.training.get(metrics.name, {})
    steps = [{**line, "energy_joules": joules.get(line["step"])} for line in metrics.lines]

    branch = training_section.branch_of(metrics.name, segments)
    counted, before = _last(steps, "step") or 0, branch[1] if branch else 0
    validated: Json = next((line for line in reversed(steps) if line.get("validation_loss") is not None), {})
    held_out = counts.get("validation") or {}

    def values(key: str) -> list[float]:
        return [line[key] for line in steps if line.get(key) is not None]

    shown = {
        "name": metrics.name,
        "link": metrics.link,
        "parameters": parameters if isinstance(parameters, int) else None,
        "active_parameters": counts.get("active_parameters") or parameters,
        "steps": _last(steps, "step"),
        **{key: _last(steps, key) for key in ("tokens_seen", "loss", "validation_bits_per_byte")},
        **{key: _median(values(key)) for key in ("tokens_per_second", "model_flops_utilization", "device_utilization")},
        "branch_of": branch,
        "own_steps": max(counted - before, 0),
        "own_tokens": (_last(steps, "tokens_seen") or 0) * max(counted - before, 0) // max(counted, 1),
        "validation_loss": validated.get("validation_loss"),
        "memory_bytes": max(values("memory_bytes"), default=None),
        "seed": seed,
        "settings": [("seed", str(seed))] * (seed is not None)
        + flattened({key: recorded[key] for key in ("architecture", "training") if key in recorded}),
        "segments": segments,
        "energy": energy,
        **{key: training.get(key) for key in ("strategy", "sequence_length", "recomputation")},
        "trivial": training_section.compare_with_baselines(validated, index.get("vocabulary_size"), held_out),
        "held_out": held_out,
        "mask_documents": (training.get("sampling") or {}).get("mask_documents"),
        "read_times": count_reads(index, training, int(last.instance["step"])) if last and index else [],
        "without_held_out": training_section.without_held_out(index) if index else [],
        "charts": training_section.training_charts(steps, energy.label, gettext),
        "figures": training_section.training_figures(steps),
        "validation": training_section.last_validation(steps),
        "energy_label": energy.label if values("energy_joules") else None,
        **{key: counts.get(key) for key in ("device", "peak_flops_per_second", "deterministic")},
        "libraries": libraries(segments),
        "processes": counts.get("world_size"),
        "interruptions": training_section.interruptions(segments),
    }
    return shown | {"planned": compare_with_plan(material, account, shown, steps, estimate or {})}


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


def context(
    material: RunReader, settings: PageSettings, account: EnergyAccounting, gettext: Callable[[str], str]
) -> Json:
    """Return everything that the templates show; `gettext` says a sentence in the language of the page."""
    checks = conservation_checks(material, account)
    models = [model(material, metrics, account, gettext) for metrics in material.metrics]
    bases = {one["name"]: (one["branch_of"] or [None])[0] for one in models}
    for one in models:
        first = one["name"]
        while base := bases.get(first):
            first = base
        one["began_with"] = training_section.initial_model(material, first, settings.pretrained.get(first))
    evaluated, differing = evaluations(material, account, gettext), checkpoint_differences(material)
    steps: dict[str, list[Record]] = {}
    for record in sorted(material.records, key=lambda record: (record.started, record.file)):
        steps.setdefault(record.step, []).append(record)
    moments = [moment for record in material.records for moment in (record.started, record.ended)]
    gits = [record.git for record in material.records]
    return {
        "settings": settings,
        "configuration_sha256": hashlib.sha256(settings.configuration.encode()).hexdigest(),
        "material": material,
        "checks": checks,
        "failed_checks": [check for check in checks if not check.holds],
        "energy": footprint(material, account, settings, models),
        "account": account,
        "forecast": compare_forecast(material, account),
        "timeline": timeline.draw_timeline(material, account, gettext),
        "dag": charts.draw_step_graph(
            material.records,
            lambda jobs: f"{jobs:,} {gettext('job' if jobs == 1 else 'jobs')}",
            gettext("The DAG of steps"),
            gettext("Each box is a step with its number of jobs; an arrow leads to a step that read what it wrote"),
        ),
        "slurm": efficiency(material),
        "machines": machines(material),
        "other_than_lock": library_differences(material),
        "sources": sources(material),
        "source_licenses": licenses_of_sources(material),
        "tokens_by_license": tokens_by_license,
        "languages": languages(material, settings),
        "corpora": [corpus(statistics, material.later_suites) for statistics in material.statistics],
        "tokenizers": compare_tokenizers(material),
        "models": models,
        "evaluations": evaluated,
        "side_by_side": compare_models(evaluated, differing["rows"]),
        "contaminated": compare_contaminated_items(material, settings.corpora),
        "checkpoint_differences": differing,
        "early_sign": ANSWER_BITS,
        "growth": measure_growth(material),
        "curves_together": curves_together(material, gettext),
        "baselines": baselines(material),
        "samples": samples(material),
        "steps": steps,
        "commits": sorted({(git["commit"], bool(git["dirty"])) for git in gits if git and git["commit"]}),
        "hosts": sorted({record.host for record in material.records if record.host}),
        "first": min(moments, default=""),
        "last": max(moments, default=""),
        "plan": plan(material.plan.content),
        "removed_for_reservation": removed(material, *RIGHTS_REASONS),
        "removed_as_harmful": removed(material, HARMFUL),
    }
