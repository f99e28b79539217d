"""Check and lock a run, and forget what is stale, before Snakemake reads the rules.

In this order: the configuration is validated; what is refused is refused before any record is forgotten; one
invocation takes the run; what it was planned with is kept; records that no longer say the truth are deleted.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config, load
from pipeline.config.keys import in_new_words
from pipeline.core.errors import InputError
from pipeline.core.lock_owner import Holder
from pipeline.core.yaml_files import load_yaml
from pipeline.energy import node_meter
from pipeline.forecast.calibration import forecast_plan
from pipeline.job import frozen
from pipeline.job.attempt import SNAKEMAKE
from pipeline.job.environments import Environment
from pipeline.provenance import evidence, seal
from pipeline.workflow import run_lock, start_cache
from pipeline.workflow.dag import Dag
from pipeline.workflow.snakemake_internals import LOCKS, action, locks_of
from pipeline.workflow.stale_records import Stale

Say = Callable[[str], None]
Image = Callable[[Config], Mapping[str, Environment] | None]


def load_run(raw: dict[str, Any], files: Iterable[Path | str]) -> Config:
    """Return the configuration of a run.

    Args:
        raw: what Snakemake has read.
        files: where it has read that, and profiles: Snakemake takes the last of two equal keys.

    Raises:
        InputError: it describes no run.
    """
    for file in files:
        load_yaml(Path(file))
    return load(raw)


class Startup:
    """One invocation of Snakemake. A process that it starts for a job says and changes nothing.

    Args:
        words: the command line.
        is_main_process: whether this is the process that a person started.
        warn: says a sentence.
    """

    def __init__(self, words: list[str], *, is_main_process: bool, warn: Say) -> None:
        self.is_main_process = is_main_process
        self.action = action(words) if is_main_process else "other"
        self._warn = warn
        self._said: set[str] = set()

    @property
    def executes(self) -> bool:
        """Whether it makes files."""
        return self.action == "execution"

    def say(self, sentence: str) -> None:
        """Say a sentence, in the process that a person started."""
        if self.is_main_process:
            self._warn(sentence)

    def say_once(self, sentence: str) -> None:
        """Say a sentence the first time."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def refuse(self, sentence: str) -> None:
        """Refuse to make files; a dry run says so and goes on.

        Raises:
            InputError: it is to make files.
        """
        if self.executes:
            raise InputError(sentence)
        self.say(f"This would be refused: {sentence}")

    def refuse_once(self, sentence: str) -> None:
        """Refuse to make files, and say so the first time."""
        if self.executes or sentence not in self._said:
            self._said.add(sentence)
            self.refuse(sentence)

    def plan(self, config: Config, environments_in_image: Image) -> Dag:
        """Return the jobs of a run, of which all that costs nothing is checked.

        What is not the lock's computes with other versions, so it is refused before any record is forgotten.

        Raises:
            InputError: something of the configuration cannot work.
        """
        start_cache.keep_versions()
        dag = Dag(config, self._in_image(config, environments_in_image))
        if other_than_lock := dag.other_than_lock():
            self.refuse(other_than_lock)
        dag.records()  # a source whose path names no file is told now, in one sentence
        forecast_plan(config)  # so is a calibration run that is none
        for scored in config.scored("quality"):
            config.seed_files(scored)  # and a file of seeds that is missing
        # And a model that is missing, or of another shape.
        for model in config.models if self.is_main_process else ():
            for turned in config.turned_positions(model):
                self.say(f"models.{model}: positions turn otherwise than in the model that it begins with: {turned}")
        _ = dag.task_files  # and an evaluation task
        return dag

    def _in_image(self, config: Config, environments_in_image: Image) -> Mapping[str, Environment] | None:
        """Return what is installed in the platform's image; of one that cannot be asked, nothing."""
        try:
            return environments_in_image(config)
        except InputError as error:
            self.refuse(str(error))
            return None

    def lock(self, config: Config, settle: Callable[[list[Holder]], None]) -> None:
        """Take the run for this process, or give its lock up.

        Args:
            config: the configuration.
            settle: waits for the jobs of starts that were killed, which are not to be submitted twice.

        Raises:
            InputError: another start works on the run, or its evidence cannot be continued.
        """
        run = config.directory
        if self.action == "unlock":
            run_lock.unlock(run, self._warn)
        if not self.executes:
            return
        held = run_lock.take(run, self._warn)
        seal.begin(run, config.provenance, self._warn)

        def seal_start() -> None:
            """Seal what this start leaves; the exit code says whether that was done."""
            if not seal.end(run, config.provenance, seal.say):
                held.release()
                seal.fail()

        # At the end of a start, also of one that had nothing to do or was refused, when its own meter has ended.
        atexit.register(seal_start)
        settle(held.dead)
        held.dead.clear()
        self._begin_meter(run)

    @staticmethod
    def _begin_meter(run: Path) -> None:
        """Meter what Snakemake itself uses, with all that runs below it: on a cluster, its share of the login node.

        In an allocation of Slurm its name says which. Its jobs say whose they are.
        """
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"snakemake.{began}.{os.getpid()}.{os.environ.get('SLURM_JOB_ID', '')}.{run.name}"
        os.environ[SNAKEMAKE] = name
        meter = node_meter.NodeMeter(node_meter.readings_file(run.absolute() / layout.READINGS, name))
        atexit.register(meter.end)

    def freeze(
        self, dag: Dag, raw: dict[str, Any], image: Callable[[dict[str, Any] | None], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what this run is now, and say what has changed since the last start.

        Jobs are those of the configuration and the code of this moment, however much is edited until they run.

        Args:
            dag: the jobs.
            raw: what Snakemake has read of the configuration.
            image: what identifies the platform's image, by what the last start was.
        """
        last = frozen.newest(dag.config.directory)
        if not self.is_main_process:
            return {}
        for sentence in [*in_new_words(raw)[1], *dag.finished.stays()]:
            self.say(sentence)
        now = dag.frozen() | image(last)
        for difference in frozen.differences(last or now, now):
            self.say(f"since the last start: {difference}")
        return now

    def forget_stale(self, dag: Dag, stale: Stale) -> None:
        """Delete what is of units that are no more, and the records that no longer say the truth.

        The truth is in the records, not in .snakemake: a step whose record is gone runs again. A dry run says so and
        deletes nothing.

        Raises:
            InputError: the evidence of what is deleted cannot be written.
        """
        # Neither does a start that Snakemake is about to refuse, because its own lock is there.
        self._keeps = not self.executes or bool(locks_of(dag.run, Path(LOCKS)))
        no_more = stale.of_units_no_more() if self.is_main_process else []
        if no_more:
            self.say(
                f"{len(no_more)} files are of units that the sources no longer have, such as {no_more[0]}: they are "
                "deleted"
            )
            if not self._keeps:
                evidence.attest_removed(dag.config.directory, no_more)
                for path in no_more:
                    path.unlink()
        self.make_again(stale.unfit(), "was made with other settings, code or environment, or is no record")
        self.make_again(stale.incomplete(), "names files that are not there as it says")
        self.make_again(stale.of_other_raw_files(), "read other raw files")

    def make_again(self, records: Iterable[Path], because: str) -> None:
        """Delete records, so that their steps run again."""
        if self.is_main_process:
            for path in records:
                self._warn(f"{path} {because}: its step runs again")
                if not self._keeps:
                    path.unlink()
