"""Report what Snakemake's table of a dry run omits: deferred jobs, hints, and what an invocation would refuse.

Deferred jobs are those after a checkpoint of Snakemake. They run again only if the checkpoint's file changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.job_records import BatchRecord, Record
from pipeline.layout import SOURCE_UNITS
from pipeline.sources.settings import Source
from pipeline.workflow import preflight
from pipeline.workflow.dag import Dag
from pipeline.workflow.plan_summary import RULES, PlannedJob, plan_lines
from pipeline.workflow.steps import STEPS

STAGE_OF = {step.rule: step.stage for step in STEPS.values()}
# The stages that Snakemake plans again after a checkpoint, by its rule.
STAGES_BEHIND = {
    "sources_complete": ("corpus", "tokenizer", "tokens", "pretrain", "evaluate"),
    "tokens_index": ("pretrain", "evaluate"),
}
LABEL_SETTINGS = {"language", "license", "rights"}  # settings of a source that do not change which documents pass
RULES_SHOWING_LABELS = {"corpus_statistics", "corpus_publish"}


def report_plan(dag: Dag, jobs: Iterable[PlannedJob], others: Counter[str]) -> Iterator[str]:
    """Yield the summary of a dry run, then sentences about deferred jobs, hints and problems.

    Args:
        dag: the jobs.
        jobs: the jobs that would run.
        others: the number of jobs of each rule with valid results.
    """
    config = dag.config
    shown = [job for job in jobs if job.rule in RULES]
    planned = Counter(job.rule for job in shown)
    if shown:
        yield from plan_lines(dag, shown, sum(others[rule] for rule in RULES))
    launches = preflight.model_launch_commands(config)
    if sentence := _describe_label_edits(dag, planned) or describe_deferred_jobs(planned, others):
        yield sentence
    yield from preflight.find_hints(config, launches)


def describe_deferred_jobs(planned: Collection[str], others: Counter[str]) -> str | None:
    """Return a sentence about jobs that may also run; None if the plan is complete.

    Args:
        planned: the rules of the jobs that are planned.
        others: how many jobs of each rule have nothing to do so far.
    """
    stages = {stage for rule in planned for stage in STAGES_BEHIND.get(rule, ())}
    deferred = {rule: number for rule, number in others.items() if STAGE_OF.get(rule) in stages}
    if not deferred:
        return None
    return f"The plan ends at a checkpoint. After it may also run: {_format_jobs(deferred)}"


def _format_jobs(jobs: dict[str, int]) -> str:
    return ", ".join(f"{rule} ({number})" for rule, number in jobs.items())


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
    settings, *versions = dag.job_versions(record.step, record.instance)
    now, then = json.loads(settings), record.settings
    changed = {key for key in now.keys() | then.keys() if now.get(key) != then.get(key)}
    units = SOURCE_UNITS.path(Path(dag.run), source=source.name).glob("*.json") if "license" in changed else ()
    decides = any(json.loads(unit.read_text(encoding="utf-8"))["license"] for unit in units)
    return versions == [*record.planned_versions[1:]] and changed <= LABEL_SETTINGS and not decides


def _count_changed_jobs(dag: Dag) -> Counter[str]:
    """Return the number of jobs after the sources whose settings, code or environment changed, by rule."""
    made: list[Record | BatchRecord] = [
        Record.load(Path(path)) for path in dag.record_paths(STAGES_BEHIND["sources_complete"])
    ]
    made += [BatchRecord.load(Path(path)) for path in dag.all_batch_record_paths()]
    jobs = Counter(
        STEPS[record.step].rule
        for record in made
        if STEPS[record.step].stage in STAGES_BEHIND["sources_complete"]
        and not record.matches_versions(dag.job_versions(record.step, record.instance))
    )
    return jobs
