"""The jobs of a run: their names, parameters, versions and records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.config.genre_estimation_from_samples import SNAPSHOT_KEY
from pipeline.core.errors import InputError
from pipeline.job import environment_lock_comparison, versions
from pipeline.job.attempt import anonymized_git_state
from pipeline.job.environment_lock_comparison import Environment
from pipeline.layout import RECORD, UNIT_RECORDS
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.finished_training_protection import FinishedTraining
from pipeline.workflow.steps import REPORTED, STAGES, STEPS


class Dag(RunFiles):
    """The names and parameters of one run's jobs.

    `image_environments` has the environments of all steps if jobs run in the platform's image.
    """

    def __init__(self, config: Config, image_environments: Mapping[str, Environment] | None = None) -> None:
        super().__init__(config)
        self._in_image = image_environments
        self._versions: dict[tuple[Any, ...], tuple[str, str, str]] = {}
        self.finished = FinishedTraining(config, self._current_versions)

    def make_command_line_options(self, step: str) -> Callable[[Wildcards], list[str]]:
        """Return the function from a job's wildcards to the options of the contract.

        Snakemake runs a job again when settings, code or environment change, and for no other reason.
        """

        def options(wildcards: Wildcards) -> list[str]:
            instance = dict(wildcards.items())
            settings, code, environment = self.job_settings_and_versions(step, instance)
            pairs = [f"{key}={value}" for key, value in instance.items()]
            return ["--settings", settings, "--code", code, "--environment", environment, "--instance", *pairs]

        return options

    def job_settings_and_versions(self, step: str, instance: Wildcards) -> tuple[str, str, str]:
        """Return settings (sorted JSON), code version and environment version of a job.

        All batches of a source have the same versions. Finished training that stays keeps its versions.
        """
        kept = STEPS[step].kept_versions
        return (kept and kept(self, instance)) or self._current_versions(step, instance)

    def _current_versions(self, step: str, instance: Wildcards) -> tuple[str, str, str]:
        """Return the versions of today, also of finished training."""
        key = (step, *sorted(pair for pair in instance.items() if pair[0] != "batch"))
        if key not in self._versions:
            settings = STEPS[step].settings(self.config, instance).result_settings()
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

    def find_lock_mismatch(self) -> str | None:
        """Return a sentence about a distribution that differs from the lock, because jobs would refuse to run."""
        lock, platform = self.config.run.environment, self.config.platform.name
        for step in STEPS:
            environment = (
                self._in_image[step] if self._in_image else environment_lock_comparison.step_environment(step, lock)
            )
            try:
                environment.check_against_lock(step, lock, platform)
            except InputError as error:
                if STEPS[step].instances.jobs(self.config):
                    return str(error)
        return None

    def non_result_settings(self, step: str) -> Callable[[Wildcards], str]:
        """Return the function from a job's wildcards to its operation settings, whose changes rerun nothing."""

        def format_operation_settings(wildcards: Wildcards) -> str:
            instance = dict(wildcards.items())
            added = STEPS[step].operation
            operation = STEPS[step].settings(self.config, instance).non_result_settings() | (
                added(self, instance) if added else {}
            )
            return json.dumps(operation, sort_keys=True)

        return format_operation_settings

    def identical_earlier_batch(self, step: str) -> Callable[[Wildcards], list[str]]:
        """Return the function from a batch of a corpus to the identical batch of an earlier corpus, if there is one.

        With the same settings and source both give the same files: the later one waits, and reuses them.
        """

        def find_identical_batch_record(wildcards: Wildcards) -> list[str]:
            wildcards = dict(wildcards.items())
            corpus, source = wildcards["corpus"], wildcards["source"]
            for other in self.config.corpus:
                if other == corpus:
                    break
                instance = {"corpus": other, "source": source}
                read = (
                    self.config.sources_with_opt_out_list()
                    if step == "opt_out.reserved"
                    else self.config.corpus_sources(other)
                )
                if source in read and self.job_settings_and_versions(step, instance) == self.job_settings_and_versions(
                    step, {**instance, **wildcards}
                ):
                    return [self.batch_record_path(step, other, source, wildcards["batch"])]
            return []

        return find_identical_batch_record

    def build_snapshot_content(self) -> dict[str, Any]:
        """Return the configuration, the commit and the versions of all steps."""
        versions_of = {
            step: {
                "code": versions.code_version(f"pipeline.{step}"),
                "environment": self._environment_version(step),
            }
            for step in STEPS
        }
        estimated = self.config.estimated_genres()
        return {
            "configuration": self.config.dump_explicit_settings(),
            "versions": versions_of,
            "git": anonymized_git_state(Path.cwd()),
            **(
                {SNAPSHOT_KEY: {name: one.model_dump(mode="json") for name, one in sorted(estimated.items())}}
                if estimated
                else {}
            ),
        }

    def record_path_template(self, step: str) -> str:
        """Return the path of a step's record, with its wildcards; %unit is the number of a unit."""
        return self.file(RECORD, job=STEPS[step].job_name_template.replace("{batch}", "%unit"))

    def unit_record_paths(self) -> list[str]:
        """Return the records of all units; rules know only their batches."""
        return [
            self.record_path(name, *unit)
            for name, step in STEPS.items()
            if step.instances.units is not None
            for unit in step.instances.units(self.config)
        ]

    def all_batch_record_paths(self) -> list[str]:
        """Return the files of all batches, in the order of the steps."""
        return [self.batch_record_path(*batch) for batch in self._batches()]

    def unit_record_list_paths(self) -> list[str]:
        """Return the lists of the records of units, of all batches, in the order of the steps."""
        return [self.file(UNIT_RECORDS, job=".".join(batch)) for batch in self._batches()]

    def _batches(self, stages: Collection[str] = STAGES) -> Iterator[tuple[str, ...]]:
        for name, step in STEPS.items():
            if step.instances.units is not None and step.stage in stages:
                yield from ((name, *batch) for batch in step.instances.jobs(self.config))

    def _missing_batches(self, stages: Collection[str]) -> list[str]:
        paths = (self.batch_record_path(*batch) for batch in self._batches(stages))
        return [path for path in paths if not os.path.exists(path)]

    def non_batch_record_paths(self, stages: Collection[str] = REPORTED) -> list[str]:
        """Return the records of all jobs of some stages that are not batches, in the order of the steps."""
        return [
            self.record_path(name, *job)
            for name, step in STEPS.items()
            if step.instances.units is None and step.stage in stages
            for job in step.instances.jobs(self.config)
        ]

    def target_files(self, stage: str) -> list[str]:
        """Return the files of a stage's target: its results, and the records of all jobs up to it.

        A step without its record therefore runs again, and so does a batch without its file: Snakemake does not make an
        intermediate file again where all that follows is there. Other batches are left out, because they are many. The
        plan is a leaf; the report covers everything before the provenance.
        """
        results = [
            self.file(output.place, **dict(zip(step.instances.wildcards, job, strict=True)))
            for step in STEPS.values()
            if step.stage == stage
            for output in step.outputs
            if output.is_target
            for job in step.instances.jobs(self.config)
        ]
        if stage == "provenance":
            return [*results, *self.target_files("report")]
        if stage == "report":
            return [
                *results,
                self.record_path("report.page"),
                *self.non_batch_record_paths(),
                *self._missing_batches(STAGES),
            ]
        stages = [stage] if stage == "plan" else STAGES[: STAGES.index(stage) + 1]
        return [*results, *self.non_batch_record_paths(stages), *self._missing_batches(stages)]
