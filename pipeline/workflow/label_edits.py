"""Tells of a dry run after an edit of labels, which only show whose text it is, that nothing is made from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pipeline.sources.settings import Source
from pipeline.workflow import deferred_jobs, preflight
from pipeline.workflow.dag import Dag
from pipeline.workflow.deferred_jobs import BEHIND, STAGE_OF

LABELS = {"language", "license", "rights"}
OF_SOURCES = {rule for rule, stage in STAGE_OF.items() if stage == "sources"}
SHOWING = {"corpus_statistics", "corpus_publish"}


def _read(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def _versions(dag: Dag, record: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the settings that a record's job would have today, and whether its code and environment are today's."""
    settings, *versions = dag.versions(record["step"], record["instance"])
    return json.loads(settings), versions == [record["code_version"], record["environment_version"]]


def _changes_labels(dag: Dag, source: Source) -> bool:
    """Return whether nothing of a source has changed since its manifest was made but labels that decide nothing."""
    if source.opt_out is not None:  # the list may be another, or name the holder
        return False
    record = _read(dag.record("sources.manifest").format(source=source.name))
    settings, is_same = _versions(dag, record)
    written = record["settings"]
    changed = {key for key in settings.keys() | written.keys() if settings.get(key) != written.get(key)}
    units = Path(dag.run, "sources", source.name, "units").glob("*.json") if "license" in changed else ()
    return is_same and changed <= LABELS and not any(_read(unit)["license"] for unit in units)


def _jobs_behind(dag: Dag) -> Counter[str]:
    """Return how many jobs behind the sources have other settings, code or environment than their records, by rule."""
    found: Counter[str] = Counter()
    for name in [*dag.records(BEHIND["sources_complete"]), *dag.all_batches()]:
        record = _read(name)
        rule = record["step"].replace(".", "_")
        if STAGE_OF[rule] in BEHIND["sources_complete"]:
            settings, is_same = _versions(dag, record)
            found[rule] += settings != record["settings"] or not is_same
    return +found


def sentence(dag: Dag, planned: Collection[str]) -> str | None:
    """Return what runs behind the sources where labels alone have changed; None where more has, or may have.

    Args:
        planned: the rules of the jobs that are planned.
    """
    if "sources_complete" not in planned or {*planned} & OF_SOURCES != {"sources_manifest"}:
        return None
    try:
        behind = _jobs_behind(dag) if all(_changes_labels(dag, source) for source in dag.config.sources) else None
    except (OSError, ValueError, KeyError, TypeError):  # a record is not there, or of an earlier version
        return None
    if behind is None or behind.keys() - SHOWING:
        return None
    listed = ", ".join(f"{rule} ({number})" for rule, number in behind.items()) or "nothing"
    return f"Of the sources, labels alone have changed. Behind them runs: {listed}"


def of_the_plan(dag: Dag, planned: Counter[str], others: Counter[str]) -> Iterator[str]:
    """Yield what a dry run leaves out: what may follow, and what a start would refuse.

    That is what costs nothing to know: by the configuration and the platform's file alone.

    Args:
        dag: the jobs.
        planned: how many jobs of each rule are planned.
        others: how many jobs of each rule have nothing to do so far.
    """
    config = dag.config
    would_be = preflight.launches(config)
    on_a_cluster = bool(config.platform.partitions) or config.slurm.nodes > 1
    problems = [*preflight.problems(config, would_be, slurm=on_a_cluster)]
    if behind := sentence(dag, planned) or deferred_jobs.sentence(planned.elements(), others.elements()):
        yield behind
    yield from preflight.hints(config, would_be)
    yield from (f"This would be refused: {problem}" for problem in problems)
