"""Check and lock a run, and delete stale records, before Snakemake reads the rules.

In this order: validate the configuration; refuse what cannot work; take the lock of the run; write a snapshot of
configuration and versions; delete stale records.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.genre_estimation_from_samples import known_genres
from pipeline.core.archived_run_files import FileStore
from pipeline.core.errors import InputError, InputErrors
from pipeline.core.lock_owner import LockOwner
from pipeline.core.output_archives import OutputArchives
from pipeline.core.yaml_files import load_yaml
from pipeline.energy import meter_recorder
from pipeline.forecast.forecast_inputs import collect_forecast_inputs
from pipeline.job import invocation_snapshots
from pipeline.job.attempt import SNAKEMAKE_VARIABLE
from pipeline.job.environment_lock_comparison import Environment
from pipeline.provenance import evidence_attestation, run_signing_and_log_checkpoint
from pipeline.workflow import cache_between_invocations, preflight, run_lock
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.settings_contradicted_by_text import describe_estimated_genres
from pipeline.workflow.snakemake_internals import (
    LOCKS_FOLDER,
    Invocation,
    find_locks,
    read_invocation,
)
from pipeline.workflow.stale_records import StaleRecords

TRAINING_TARGETS = {"all", "pretrain", "evaluate", "report", "provenance"}
"""Targets that need trained models."""
MISTAKE = 2
"""The exit code of an invocation that is refused."""

Warn = Callable[[str], None]
ImageEnvironments = Callable[[Config], Mapping[str, Environment] | None]


def load_run_configuration(raw: dict[str, Any], files: Sequence[Path], profiles: Iterable[Path]) -> Config:
    """Return the configuration of a run.

    Args:
        raw: the configuration that Snakemake has read.
        files: its files, which are checked for keys that occur twice.
        profiles: Snakemake's, which are checked too.

    Raises:
        InputError: the configuration is not valid.
    """
    for file in (*files, *profiles):
        load_yaml(file)
    return parse_configuration(raw, files)


@contextmanager
def report_input_errors() -> Iterator[None]:
    """End Snakemake with one line for each mistake of the user, without the place in the rules where it was found."""
    try:
        yield
    except InputError as error:
        for sentence in error.sentences:
            print(f"error: {sentence}", file=sys.stderr, flush=True)  # Snakemake's log of a dry run is its output
        raise SystemExit(MISTAKE) from None


class Startup:
    """One invocation of Snakemake. A process that Snakemake starts for a job prints and changes nothing.

    Args:
        words: the command line.
        is_main_process: whether the user started this process.
        warn: prints a sentence.
    """

    def __init__(self, words: list[str], *, is_main_process: bool, warn: Warn) -> None:
        self.is_main_process = is_main_process
        self.invocation = read_invocation(words) if is_main_process else Invocation("other", False, [], "")
        self.action = self.invocation.action
        self._warn = warn
        self._printed: set[str] = set()

    @property
    def executes(self) -> bool:
        """Whether this invocation runs jobs."""
        return self.action == "execution"

    def warn(self, sentence: str) -> None:
        """Print a sentence, in the main process only."""
        if self.is_main_process:
            self._warn(sentence)

    def warn_once(self, sentence: str) -> None:
        """Print a sentence the first time."""
        if sentence not in self._printed:
            self._printed.add(sentence)
            self.warn(sentence)

    def refuse(self, sentence: str) -> None:
        """Refuse to run jobs; a dry run prints the reason and continues.

        Raises:
            InputError: this invocation would run jobs.
        """
        if self.executes:
            raise InputError(sentence)
        self.warn(f"This would be refused: {sentence}")

    def refuse_once(self, sentence: str) -> None:
        """Refuse to run jobs; a dry run prints the reason once."""
        if self.executes or sentence not in self._printed:
            self._printed.add(sentence)
            self.refuse(sentence)

    def refuse_problems(self, config: Config) -> None:
        """Refuse a run, or its dry run, that cannot work by its configuration, its files and its platform.

        Raises:
            InputErrors: each problem, in one sentence.
        """
        if not self.executes and not self.invocation.is_dry_run:
            return
        trains = not self.invocation.targets or {*self.invocation.targets} & TRAINING_TARGETS
        own_launch = "launch=" in self.invocation.set_resources  # jobs are checked with it before they start
        launched = preflight.model_launch_commands(config) if trains and not own_launch else {}
        # The executor is not known while rules are read: an execution checks what Slurm needs when it begins.
        slurm = preflight.uses_slurm(config) if self.invocation.is_dry_run else None
        if problems := [*preflight.find_problems(config, launched, slurm=slurm)]:
            raise InputErrors(problems)

    def build_dag(self, config: Config, environments_in_image: ImageEnvironments) -> Dag:
        """Return the jobs of a run after all checks that cost nothing.

        An environment that differs from the lock is refused before any record is deleted.

        Raises:
            InputError: the configuration cannot work.
        """
        cache_between_invocations.cache_code_versions()
        dag = Dag(config, self._find_image_environments(config, environments_in_image))
        if mismatch := dag.find_lock_mismatch():
            self.refuse(mismatch)
        dag.non_batch_record_paths()  # reports a source path without files
        collect_forecast_inputs(config)  # reports a calibration run that is not a run
        for scored in config.corpora_with_score("quality"):
            config.quality_training_files(scored)  # reports a missing file of seeds
        for scored in config.corpora_with_score("classifiers"):
            for name in config.corpus[scored].classifiers:
                config.classifier_files(scored, name)  # reports a missing file of a model
        # Reports a pretrained model that is missing or has another shape.
        for model in config.models if self.is_main_process else ():
            for turned in config.list_rope_changes(model):
                self.warn(f"models.{model}: positions turn otherwise than in the model that it begins with: {turned}")
        _ = dag.task_definition_files  # reports a missing evaluation task
        return dag

    def _find_image_environments(
        self, config: Config, environments_in_image: ImageEnvironments
    ) -> Mapping[str, Environment] | None:
        """Return the environments in the platform's image; None if it has none or does not start."""
        try:
            return environments_in_image(config)
        except InputError as error:
            self.refuse(str(error))
            return None

    def lock_run(self, config: Config, settle: Callable[[list[LockOwner]], None]) -> None:
        """Take the lock of the run for this process, or give it up with --unlock.

        Args:
            config: the configuration.
            settle: waits for the jobs of killed invocations, so that they are not submitted twice.

        Raises:
            InputError: another invocation works on the run, or its evidence cannot be continued.
        """
        run = config.run_directory
        if self.action == "unlock":
            run_lock.break_stale_lock(run, self._warn)
        if not self.executes:
            return
        held = run_lock.acquire_run_lock(run, self._warn)
        run_signing_and_log_checkpoint.begin_signing(run, config.provenance, self._warn)

        def sign_evidence() -> None:
            """Sign the evidence of this invocation; a failure sets the exit code."""
            if not run_signing_and_log_checkpoint.finish_signing(
                run, config.provenance, run_signing_and_log_checkpoint.print_to_stderr
            ):
                held.release()
                run_signing_and_log_checkpoint.exit_with_failure()

        # At the end of every invocation, after its own meter has ended.
        atexit.register(sign_evidence)
        settle(held.dead)
        held.dead.clear()
        self._start_energy_meter(run)

    @staticmethod
    def _start_energy_meter(run: Path) -> None:
        """Meter Snakemake itself and its child processes: on a cluster, its share of the login node.

        The name has the number of the Slurm job that Snakemake runs in, if any. Jobs refer to the name.
        """
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"snakemake.{began}.{os.getpid()}.{os.environ.get('SLURM_JOB_ID', '')}.{run.name}"
        os.environ[SNAKEMAKE_VARIABLE] = name
        meter = meter_recorder.NodeMeter(meter_recorder.readings_file(run.absolute() / layout.READINGS, name))
        atexit.register(meter.end)

    def take_snapshot(self, dag: Dag, image: Callable[[dict[str, Any] | None], dict[str, Any]]) -> dict[str, Any]:
        """Return a snapshot of the run, and print what has changed since the last invocation.

        Jobs run with the configuration and code of this moment, whatever is edited before they run.

        Args:
            dag: the jobs.
            image: returns the identity of the platform's image, given the last snapshot.
        """
        last = invocation_snapshots.read_newest_snapshot(dag.config.run_directory)
        if not self.is_main_process:
            return {}
        known = known_genres(last or {})
        defaults = describe_estimated_genres(dag.config, known)
        old_names = dag.config.origin.describe_deprecations()
        for sentence in [*old_names, *dag.finished.describe_kept_models(), *defaults]:
            self.warn(sentence)
        now = dag.build_snapshot_content() | image(last)
        for difference in invocation_snapshots.list_changes(last or now, now):
            self.warn(f"since the last invocation: {difference}")
        return now

    def delete_stale_records(self, dag: Dag, stale: StaleRecords) -> None:
        """Delete files of units that no longer exist, and stale records.

        The records decide, not .snakemake: a step without a record runs again. A dry run prints the list and deletes
        nothing.

        Raises:
            InputError: the evidence of the deletion cannot be written.
        """
        # Snakemake is about to refuse an invocation if its own lock is there: then nothing is deleted either.
        self._keeps_files = not self.executes or bool(find_locks(dag.run, Path(LOCKS_FOLDER)))
        for problem in stale.find_damaged_archives() if self.is_main_process else []:
            self.refuse(f"{problem}: restore it from a backup, or delete it, and its units run again")
        removed = stale.find_removed_units() if self.is_main_process else []
        if removed:
            self.warn(
                f"{len(removed)} files belong to units that the sources no longer have, such as "
                f"{removed[0]}: they are deleted"
            )
            if not self._keeps_files:
                evidence_attestation.attest_batch_record_removal(dag.config.run_directory, removed)
                for path in removed:
                    path.unlink(missing_ok=True)
                run = dag.config.run_directory
                inside = [path.relative_to(run).as_posix() for path in removed if path.is_relative_to(run)]
                FileStore(run).remove_from_archives(inside)
                OutputArchives(run).remove(inside)
        self.delete_records(stale.find_outdated(), "has other settings, code or environment, or is damaged")
        self.delete_records(stale.find_missing_outputs(), "lists files that are missing or changed")
        self.delete_records(stale.find_batches_with_changed_raw_files(), "read other raw files")

    def delete_records(self, records: Iterable[Path], because: str) -> None:
        """Delete records, so that their steps run again."""
        if self.is_main_process:
            for path in records:
                self._warn(f"{path} {because}: its step runs again")
                if not self._keeps_files:
                    path.unlink()
