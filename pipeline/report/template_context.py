"""Return what page, model card and papers show, section by section."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pipeline.core.job_records import Record
from pipeline.core.settings import flatten_settings, merge_result_and_nonresult_settings
from pipeline.corpus.documents import HARMFUL, RIGHTS_REASONS
from pipeline.energy.run_energy_report_reader import EnergyAccounting, sum_energy
from pipeline.report import charts, power_timeline, training_section
from pipeline.report.data_section import (
    compare_tokenizers,
    count_tokens_by_license,
    list_language_codes,
    list_removals,
    source_level_licenses,
    summarize_corpus,
    summarize_sources,
)
from pipeline.report.energy_accounting import compare_forecast
from pipeline.report.evaluation_section import (
    SHOWN_DIFFERENCES,
    compare_contaminated_items,
    find_seed_groups,
    list_baselines,
    summarize_checkpoint_differences,
    summarize_copied_text_samples,
    summarize_evaluations,
    tabulate_continuations,
    tabulate_memorization,
    tabulate_scores,
)
from pipeline.report.footprint import compute_footprint, group_nodes_by_power_model, list_meters
from pipeline.report.jobs_section import (
    group_machines,
    list_environment_lock_differences,
    list_libraries,
    summarize_slurm_jobs,
)
from pipeline.report.key_figures import list_conservation_checks
from pipeline.report.run_reader import Artifact, Json, RunReader
from pipeline.report.settings import PageSettings
from pipeline.report.training_section import compare_with_plan
from pipeline.tokens.data_order import tabulate_epochs


def _last_value(metrics: list[Json], key: str) -> Any:
    return next((line[key] for line in reversed(metrics) if line.get(key) is not None), None)


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def summarize_model(
    reader: RunReader, metrics: Artifact, account: EnergyAccounting, gettext: Callable[[str], str]
) -> Json:
    """Return a model: its settings and segments from records, its curves from metrics, its joules from the account."""
    segments = reader.segments(model=metrics.name)
    segments.sort(key=lambda record: int(record.instance["step"]))
    last = segments[-1] if segments else None
    counts = last.counts if last else {}
    planned = reader.plan.content.get("models")
    estimate = planned.get(metrics.name) if isinstance(planned, dict) else None
    parameters = counts.get("parameters") or (estimate or {}).get("parameters")
    recorded = merge_result_and_nonresult_settings(last.settings, last.operation) if last else {}
    read, seed = reader.find_token_index(segments), recorded.get("seed")
    index, training = read.content if read else {}, recorded.get("training") or {}
    energy = sum_energy(
        {
            one.computing_attempt_file_name: account.attempt_energy(one.computing_attempt_file_name) for one in segments
        }.values()
    )
    joules = account.training.get(metrics.name, {})
    steps = [{**line, "energy_joules": joules.get(line["step"])} for line in metrics.lines]

    branch = training_section.find_parent_checkpoint(metrics.name, segments)
    counted, before = _last_value(steps, "step") or 0, branch[1] if branch else 0
    validated: Json = next((line for line in reversed(steps) if line.get("validation_loss") is not None), {})
    held_out = counts.get("validation") or {}
    samples = reader.records_of("evaluate.samples", model=metrics.name)

    def collect_metric_values(key: str) -> list[float]:
        return [line[key] for line in steps if line.get(key) is not None]

    summary = {
        "name": metrics.name,
        "link": metrics.link,
        "parameters": parameters if isinstance(parameters, int) else None,
        "active_parameters": counts.get("active_parameters") or parameters,
        "steps": _last_value(steps, "step"),
        **{key: _last_value(steps, key) for key in ("tokens_seen", "loss", "validation_bits_per_byte")},
        **{
            key: _median(collect_metric_values(key))
            for key in ("tokens_per_second", "model_flops_utilization", "device_utilization")
        },
        "branch_of": branch,
        "own_steps": max(counted - before, 0),
        "own_tokens": (_last_value(steps, "tokens_seen") or 0) * max(counted - before, 0) // max(counted, 1),
        "validation_loss": validated.get("validation_loss"),
        "memory_bytes": max(collect_metric_values("memory_bytes"), default=None),
        "seed": seed,
        "settings": [("seed", str(seed))] * (seed is not None)
        + [*flatten_settings({key: recorded[key] for key in ("architecture", "training") if key in recorded})],
        "segments": segments,
        "energy": energy,
        **{key: training.get(key) for key in ("strategy", "sequence_length", "recomputation")},
        "trivial": training_section.compare_with_baselines(validated, index.get("vocabulary_size"), held_out),
        "held_out": held_out,
        "mask_documents": (training.get("sampling") or {}).get("mask_documents"),
        "read_times": tabulate_epochs(index, training, int(last.instance["step"])) if last and index else [],
        "without_held_out": training_section.sources_without_validation(index) if index else [],
        "charts": training_section.draw_training_charts(steps, energy.label, gettext),
        "figures": training_section.summarize_metrics(steps),
        "validation": training_section.read_last_validation(steps),
        "energy_label": energy.label if collect_metric_values("energy_joules") else None,
        **{key: counts.get(key) for key in ("device", "peak_flops_per_second", "deterministic")},
        "libraries": list_libraries(segments),
        "export": next((r.counts["export"] for r in samples if r.counts.get("export")), None),
        "processes": counts.get("world_size"),
        "interruptions": training_section.list_interruptions(segments),
    }
    return summary | {"planned": compare_with_plan(reader, account, summary, steps, estimate or {})}


def summarize_plan(content: Json) -> Json:
    """Return the plan's figures: a row per figure with its value for each model and in total, and its formula."""
    columns = {**content.get("models", {}), "total": content.get("totals", {})}
    formulas = content.get("formulas", {})
    keys = [*formulas, *sorted({key for column in columns.values() for key in column} - formulas.keys())]
    rows = [
        (key, [column.get(key) for column in columns.values()], formulas.get(key))
        for key in keys
        if any(key in column for column in columns.values())
    ]
    assumed = [*flatten_settings({key: content[key] for key in ("platform", "energy") if key in content})]
    return {"columns": list(columns), "rows": rows, "assumed": assumed}


def build_template_context(
    reader: RunReader, settings: PageSettings, account: EnergyAccounting, gettext: Callable[[str], str]
) -> Json:
    """Return everything that the templates show; `gettext` says a sentence in the language of the page."""
    checks = list_conservation_checks(reader, account)
    models = [summarize_model(reader, metrics, account, gettext) for metrics in reader.metrics]
    bases = {one["name"]: (one["branch_of"] or [None])[0] for one in models}
    for one in models:
        first = one["name"]
        while base := bases.get(first):
            first = base
        one["began_with"] = training_section.describe_base_model(reader, first, settings.pretrained.get(first))
    evaluated, samples = summarize_evaluations(reader, account), summarize_copied_text_samples(reader)
    steps: dict[str, list[Record]] = {}
    for record in sorted(reader.records, key=lambda record: (record.started, record.file)):
        steps.setdefault(record.step, []).append(record)
    moments = [moment for record in reader.records for moment in (record.started, record.ended)]
    gits = [record.git for record in reader.records]
    return {
        "settings": settings,
        "configuration_sha256": hashlib.sha256(settings.configuration.encode()).hexdigest(),
        "reader": reader,
        "checks": checks,
        "failed_checks": [check for check in checks if not check.holds],
        "energy": compute_footprint(reader, account, settings, models),
        "account": account,
        "meters": list_meters(account, account.meters),
        "power_models": group_nodes_by_power_model(account),
        "forecast": compare_forecast(reader, account),
        "timeline": power_timeline.draw_timeline(reader, account, gettext),
        "dag": charts.draw_step_graph(
            reader.records,
            lambda jobs: f"{jobs:,} {gettext('job' if jobs == 1 else 'jobs')}",
            gettext("The DAG of steps"),
            gettext("Each box is a step with its number of jobs; arrows lead to the steps that read its outputs"),
        ),
        "slurm": summarize_slurm_jobs(reader),
        "machines": group_machines(reader),
        "other_than_lock": list_environment_lock_differences(reader),
        "sources": summarize_sources(reader),
        "source_level_licenses": source_level_licenses(reader),
        "tokens_by_license": count_tokens_by_license,
        "languages": list_language_codes(reader, settings),
        "corpora": [summarize_corpus(statistics, reader.later_suites) for statistics in reader.statistics],
        "tokenizers": compare_tokenizers(reader),
        "models": models,
        "evaluations": evaluated,
        "score_tables": tabulate_scores(
            {one["model"]: one["checkpoints"] for one in evaluated}, find_seed_groups(reader)
        ),
        "contaminated": compare_contaminated_items(reader, settings.corpora),
        "checkpoint_differences": summarize_checkpoint_differences(reader),
        "loss_chart": training_section.draw_training_loss_by_model(reader, gettext),
        "baselines": list_baselines(reader),
        "samples": samples,
        "memorized": tabulate_memorization(samples),
        "continuations": tabulate_continuations(samples),
        "shown_differences": SHOWN_DIFFERENCES,
        "steps": steps,
        "commits": sorted({(git["commit"], bool(git["dirty"])) for git in gits if git and git["commit"]}),
        "hosts": sorted({record.host for record in reader.records if record.host}),
        "first": min(moments, default=""),
        "last": max(moments, default=""),
        "plan": summarize_plan(reader.plan.content),
        "removed_for_reservation": list_removals(reader, *RIGHTS_REASONS),
        "removed_as_harmful": list_removals(reader, HARMFUL),
    }
