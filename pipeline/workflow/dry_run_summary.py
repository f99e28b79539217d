"""Report what Snakemake's table of a dry run omits: deferred jobs, hints, and what an invocation would refuse.

Deferred jobs are those after a checkpoint of Snakemake. They run again only if the checkpoint's file changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from pipeline.config.configuration import Config
from pipeline.core.archived_run_files import FileStore
from pipeline.core.display_text import align_columns, format_duration, pluralize
from pipeline.core.errors import InputError
from pipeline.core.job_records import BatchRecord, Record, select_record_files
from pipeline.core.settings import flatten_settings
from pipeline.layout import ENERGY_ACCOUNT, PLAN, SOURCE_UNITS, UNIT_RECORDS
from pipeline.sources.settings import Source
from pipeline.workflow import preflight
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.job_time_estimates import JobTimes
from pipeline.workflow.steps import STAGES_BEHIND, STEPS

STEP_OF = {step.rule_name: name for name, step in STEPS.items()}
PARAMETERS_CHANGED = "params have changed since last execution"
# Snakemake's reasons for a job, and ours. The first that applies is shown.
REASONS = {
    "forced": "forced on the command line",
    PARAMETERS_CHANGED: "",  # explained by the record
    "output files have to be generated": "no result yet",
    "incomplete output files": "an earlier try did not finish",
    "set of input files has changed since last execution": "other input files",
    "updated input files": "newer input files",
    "input files updated by another job": "after other listed jobs",
}
SHOWN_KEYS = 3  # settings that a row names
NAMED_RUNS = 3  # finished runs that the hint on forecasts names


RULES = [*STEP_OF]
RULES.insert(RULES.index("sources_manifest") + 1, "sources_complete")


class PlannedJob(NamedTuple):
    """A job that a dry run would run, with Snakemake's reasons."""

    rule: str
    wildcards: Mapping[str, str]
    reasons: Collection[str]


def plan_lines(dag: Dag, jobs: list[PlannedJob], finished: int, times: JobTimes) -> list[str]:
    """Return the summary of a dry run in lines.

    Args:
        dag: the jobs of the run.
        jobs: the jobs that would run.
        finished: the number of jobs with valid results.
        times: the estimates of job durations.
    """
    steps = {rule: planned for rule in RULES if (planned := [job for job in jobs if job.rule == rule])}
    rows = [["step", "jobs", "time", "why"]]
    known, unknown = 0.0, []
    for rule, planned in steps.items():
        step = STEP_OF.get(rule)
        mean = times.mean_seconds(step) if step else 0.0
        if mean is None:
            unknown.append(str(step))
        else:
            known += mean * len(planned)
        duration = "not known" if mean is None else format_duration(mean * len(planned))
        rows.append(
            [step or rule, str(len(planned)), duration if step else "", ", ".join(_order_reasons(dag, planned))]
        )
    total = f"at least {format_duration(known)}" if unknown else format_duration(known)
    rows.append(["total", str(len(jobs)), total if known >= 1 or not unknown else "not known", ""])
    head = f"{pluralize(len(jobs), 'job')} of {len(jobs) + finished} would run; {finished} have valid results."
    by = "Times are sums over jobs, by earlier jobs of each step or the plan's forecast; parallel jobs take less."
    notes = [by] * (known > 0) + [_calibration_hint(dag.config)] * bool(unknown)
    return [head, "", *align_columns(rows), "", *notes]


def _calibration_hint(config: Config) -> str:
    """Return what is missing for a forecast: the key with the newest finished runs, the stage plan, or other runs."""
    run_directory = config.run_directory
    if config.emission_settings.calibration:
        if not PLAN.path(run_directory).is_file():
            return "The stage plan reads the runs of energy.calibration: run the target plan, then times are known."
        return "The runs of energy.calibration lack some steps or sizes: add one of these steps on more or less text."
    reports = sorted(run_directory.parent.glob(f"*/{ENERGY_ACCOUNT}"), key=lambda report: report.stat().st_mtime)
    finished = [str(path) for path in (report.parents[1] for report in reports) if path != run_directory]
    key = {"calibration": finished[-NAMED_RUNS:] or ["results/NAME"]}
    return (
        f"The forecast needs a finished run: energy: {yaml.safe_dump(key, default_flow_style=True, width=1000).strip()}"
    )


def _order_reasons(dag: Dag, jobs: list[PlannedJob]) -> list[str]:
    """Return the reasons of the jobs of a step, those of their own before those of others."""
    return sorted(_reasons(dag, jobs), key=lambda reason: reason == REASONS["input files updated by another job"])


def _reasons(dag: Dag, jobs: list[PlannedJob]) -> Iterator[str]:
    """Yield the reasons of the jobs of a step, each once."""
    seen = set()
    for job in jobs:
        reason = next((text for name, text in REASONS.items() if name in job.reasons), ", ".join(job.reasons))
        if PARAMETERS_CHANGED in job.reasons:
            if "changed" in seen:
                continue
            seen.add("changed")
            reason = _changes(dag, job) if job.rule in STEP_OF else "other parameters"
        if reason not in seen:
            seen.add(reason)
            yield reason


def _changes(dag: Dag, job: PlannedJob) -> str:
    """Return which parameters of a job differ from its record."""
    step = STEP_OF[job.rule]
    instance = {name: job.wildcards[name] for name in STEPS[step].instances.wildcards}
    settings, code, environment = dag.job_settings_and_versions(step, instance)
    try:
        record, before = _load_record_settings(dag, step, instance)
    except InputError:
        return "other parameters"
    changes = []
    if before is None or before != json.loads(settings):
        changes.append(f"settings changed{_changed_keys(before, json.loads(settings))}")
    if record.code_version != code:
        changes.append("code changed")
    if record.environment_version != environment:
        changes.append("environment changed")
    return " and ".join(changes) or "other input data"


def _load_record_settings(
    dag: Dag, step: str, instance: dict[str, str]
) -> tuple[Record | BatchRecord, dict[str, object] | None]:
    """Return the record of a job with its settings; of a batch, those of its first unit."""
    if STEPS[step].instances.units is None:
        record = Record.load(Path(dag.record_path(step, *instance.values())))
        return record, record.settings
    batch = BatchRecord.load(Path(dag.batch_record_path(step, *instance.values())))
    parents = ".".join((step, *list(instance.values())[:-1], ""))
    units = UNIT_RECORDS.path(dag.config.run_directory, job=batch.name)
    files = select_record_files(FileStore(dag.config.run_directory, parents), [units] if units.is_file() else [])
    return batch, Record.load(files[0]).settings if files else batch.settings


def _changed_keys(before: dict[str, object] | None, now: dict[str, object]) -> str:
    old, new = dict(flatten_settings(before or {})), dict(flatten_settings(now))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    shown = keys[:SHOWN_KEYS] + ([f"{len(keys) - SHOWN_KEYS} more"] if len(keys) > SHOWN_KEYS else [])
    return f" ({', '.join(shown)})" if before is not None and shown else ""


STAGE_OF = {step.rule_name: step.stage for step in STEPS.values()}
LABEL_SETTINGS = {"language", "license", "rights"}  # settings of a source that do not change which documents pass
RULES_SHOWING_LABELS = {"corpus_statistics", "corpus_publish"}


def report_plan(dag: Dag, jobs: Iterable[PlannedJob], others: Counter[str]) -> Iterator[str]:
    """Yield the summary of a dry run, then sentences about deferred jobs, hints and problems.

    Args:
        dag: the jobs.
        jobs: the jobs that would run.
        others: the number of jobs of each rule with valid results.
    """
    config, times = dag.config, JobTimes(dag.config)
    shown = [job for job in jobs if job.rule in RULES]
    planned = Counter(job.rule for job in shown)
    if shown:
        yield from plan_lines(dag, shown, sum(others[rule] for rule in RULES), times)
    launches = preflight.model_launch_commands(config)
    if sentence := _describe_label_edits(dag, planned) or describe_deferred_jobs(planned, others, times):
        yield sentence
    yield from preflight.find_hints(config, launches)


def describe_deferred_jobs(planned: Collection[str], others: Counter[str], times: JobTimes) -> str | None:
    """Return a sentence about jobs that may also run; None if the plan is complete.

    Args:
        planned: the rules of the jobs that are planned.
        others: how many jobs of each rule have nothing to do so far.
        times: the estimates of job durations.
    """
    stages = {stage for rule in planned for stage in STAGES_BEHIND.get(rule, ())}
    deferred = {rule: others[rule] for rule in RULES if others[rule] and STAGE_OF.get(rule) in stages}
    if not deferred:
        return None
    seconds, unknown = times.sum_job_seconds({STEP_OF[rule]: number for rule, number in deferred.items()})
    duration = "" if unknown else f" (about {format_duration(seconds)}, summed over jobs)"
    return f"The plan ends at a checkpoint. These jobs may run after it{duration}: {_format_jobs(deferred)}"


def _format_jobs(jobs: dict[str, int]) -> str:
    return ", ".join(f"{STEP_OF[rule]} ({number})" for rule, number in jobs.items())


def _describe_label_edits(dag: Dag, planned: Collection[str]) -> str | None:
    """Return the jobs that run after the sources if only labels have changed; None otherwise."""
    of_sources = {rule for rule in planned if STAGE_OF.get(rule) == "sources"}
    if "sources_complete" not in planned or of_sources != {"sources_manifest"}:
        return None
    try:
        jobs = (
            _count_changed_jobs(dag)
            if all(_only_labels_changed(dag, source) for source in dag.config.sources)
            else None
        )
    except (InputError, OSError, ValueError, KeyError):  # a record is missing, or of an earlier version
        return None
    if jobs is None or jobs.keys() - RULES_SHOWING_LABELS:
        return None
    return f"Only labels of the sources have changed. After them runs: {_format_jobs(jobs) or 'nothing'}"


def _only_labels_changed(dag: Dag, source: Source) -> bool:
    """Return whether only labels of a source have changed since its manifest, and they do not filter documents."""
    if source.opt_out is not None:  # the list may be another, or name the holder
        return False
    record = Record.load(Path(dag.record_path("sources.manifest", source.name)))
    settings, *versions = dag.job_settings_and_versions(record.step, record.instance)
    now, then = json.loads(settings), record.settings
    changed = {key for key in now.keys() | then.keys() if now.get(key) != then.get(key)}
    units = SOURCE_UNITS.path(Path(dag.run), source=source.name).glob("*.json") if "license" in changed else ()
    decides = any(json.loads(unit.read_text(encoding="utf-8"))["license"] for unit in units)
    return versions == [*record.planned_settings_and_versions[1:]] and changed <= LABEL_SETTINGS and not decides


def _count_changed_jobs(dag: Dag) -> Counter[str]:
    """Return the number of jobs after the sources whose settings, code or environment changed, by rule."""
    made: list[Record | BatchRecord] = [
        Record.load(Path(path)) for path in dag.non_batch_record_paths(STAGES_BEHIND["sources_complete"])
    ]
    made += [BatchRecord.load(Path(path)) for path in dag.all_batch_record_paths()]
    jobs = Counter(
        STEPS[record.step].rule_name
        for record in made
        if STEPS[record.step].stage in STAGES_BEHIND["sources_complete"]
        and not record.matches_versions(dag.job_settings_and_versions(record.step, record.instance))
    )
    return jobs
