"""The jobs of a run: their names, their parameters, and the records that they leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.job import environments, versions
from pipeline.job.attempt import code_in
from pipeline.job.environments import Environment
from pipeline.layout import BATCH, RECORD
from pipeline.workflow.finished_training import Finished
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps import REPORTED, STAGES, STEPS


class Dag(RunFiles):
    """The names and parameters of one run's jobs.

    `in_image` has the environments of all steps where jobs compute in the platform's image, not here.
    """

    def __init__(self, config: Config, in_image: Mapping[str, Environment] | None = None) -> None:
        super().__init__(config)
        self._in_image = in_image
        self._versions: dict[tuple[Any, ...], tuple[str, str, str]] = {}
        self.finished = Finished(config, self._planned)

    def contract(self, step: str) -> Callable[[Wildcards], list[str]]:
        """Return the function of a job's wildcards that gives the options of the contract.

        Settings, code and environment: when one of them changes, Snakemake runs the job again, and for no other reason.
        """

        def options(wildcards: Wildcards) -> list[str]:
            instance = dict(wildcards.items())
            settings, code, environment = self.versions(step, instance)
            pairs = [f"{key}={value}" for key, value in instance.items()]
            return ["--settings", settings, "--code", code, "--environment", environment, "--instance", *pairs]

        return options

    def versions(self, step: str, instance: Wildcards) -> tuple[str, str, str]:
        """Return settings (sorted JSON), code version and environment version of a job.

        Those of all batches of a source are the same, and thousands of jobs ask for them. Finished training that stays
        has those that it was made with.
        """
        kept = STEPS[step].kept
        return (kept and kept(self, instance)) or self._planned(step, instance)

    def _planned(self, step: str, instance: Wildcards) -> tuple[str, str, str]:
        """Return the same as of today, of finished training too."""
        key = (step, *sorted(pair for pair in instance.items() if pair[0] != "batch"))
        if key not in self._versions:
            settings = STEPS[step].settings(self.config, instance).of_result()
            module = f"pipeline.{step}"
            self._versions[key] = (
                json.dumps(settings, sort_keys=True, ensure_ascii=False),
                versions.code_version(module),
                self._environment_version(step),
            )
        return self._versions[key]

    def _environment_version(self, step: str) -> str:
        if self._in_image:
            return self._in_image[step].version
        return versions.environment_version(f"pipeline.{step}", self.config.run.environment)

    def other_than_lock(self) -> str | None:
        """Return a sentence on a distribution that is missing or not the lock's, where jobs would refuse it."""
        lock, platform = self.config.run.environment, self.config.platform.name
        for step in STEPS:
            found = self._in_image[step] if self._in_image else environments.of_step(step, lock)
            try:
                found.refuse_others(step, lock, platform)
            except InputError as error:
                return str(error)
        return None

    def operation(self, step: str) -> Callable[[Wildcards], str]:
        """Return the function of a job's wildcards that gives its other settings: a change of these reruns nothing."""

        def options(wildcards: Wildcards) -> str:
            instance = dict(wildcards.items())
            more = STEPS[step].operation
            found = STEPS[step].settings(self.config, instance).of_operation() | (more(self, instance) if more else {})
            return json.dumps(found, sort_keys=True)

        return options

    def first_twin(self, step: str) -> Callable[[Wildcards], list[str]]:
        """Return the function that gives a batch of a corpus what the same step wrote for an earlier corpus, if alike.

        With the same settings it does the same with the same source: one of the two waits, and takes over.
        """

        def earlier(wildcards: Wildcards) -> list[str]:
            wildcards = dict(wildcards.items())
            corpus, source = wildcards["corpus"], wildcards["source"]
            for other in self.config.corpus:
                if other == corpus:
                    break
                instance = {"corpus": other, "source": source}
                read = self.config.reserving() if step == "opt_out.reserved" else self.config.corpus_sources(other)
                if source in read and self.versions(step, instance) == self.versions(step, {**instance, **wildcards}):
                    return [self.batch_of(step, other, source, wildcards["batch"])]
            return []

        return earlier

    def frozen(self) -> dict[str, Any]:
        """Return what this run is now: its configuration, its commit, and the versions of its steps."""
        versions_of = {
            step: {
                "code": versions.code_version(f"pipeline.{step}"),
                "environment": self._environment_version(step),
            }
            for step in STEPS
        }
        return {"configuration": self.config.written(), "versions": versions_of, "git": code_in(Path.cwd())}

    def record(self, step: str) -> str:
        """Return the record's path of a step, with its wildcards; of a unit, whose number %unit stands for."""
        return self.file(RECORD, job=STEPS[step].job.replace("{batch}", "%unit"))

    def batch(self, step: str) -> str:
        """Return the path of what a batch of a step wrote, with its wildcards; the units' records are their own."""
        return self.file(BATCH, job=STEPS[step].job)

    def unit_records(self) -> list[str]:
        """Return the records of the units, of which no rule knows but their batches."""
        return [
            self.record_of(name, *unit)
            for name, step in STEPS.items()
            if step.per.units is not None
            for unit in step.per.units(self.config)
        ]

    def all_batches(self) -> list[str]:
        """Return what all batches wrote, in the order of the steps."""
        return [
            self.batch_of(name, *batch)
            for name, step in STEPS.items()
            if step.per.units is not None
            for batch in step.per.jobs(self.config)
        ]

    def records(self, stages: Collection[str] = REPORTED) -> list[str]:
        """Return the records of all jobs of some stages that work on no batch, in the order of the steps."""
        return [
            self.record_of(name, *job)
            for name, step in STEPS.items()
            if step.per.units is None and step.stage in stages
            for job in step.per.jobs(self.config)
        ]

    def target(self, stage: str) -> list[str]:
        """Return what the target of a stage asks for: its results, and the records of all jobs up to it.

        So a step whose record is gone runs again. No target asks for batches, which are many: each is read by a step
        with a record of its own. The plan is a leaf, and the report is all that is before the provenance.
        """
        results = [
            self.file(output.place, **dict(zip(step.per.wildcards, job, strict=True)))
            for step in STEPS.values()
            if step.stage == stage
            for output in step.outputs
            if output.is_target
            for job in step.per.jobs(self.config)
        ]
        if stage == "provenance":
            return [*results, *self.target("report")]
        if stage == "report":
            return [*results, self.record_of("report.page"), *self.records()]
        stages = [stage] if stage == "plan" else STAGES[: STAGES.index(stage) + 1]
        return [*results, *self.records(stages)]
