"""Rerun steps of a run, one by name or a random sample, and compare their outputs.

A rerun has a folder of its own. Settings, inputs, outputs, launch and versions come from the record. Inputs are linked
after their hashes were compared, so the run itself is not changed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.audit.rerun_inputs import RerunInputs, check_input
from pipeline.core.attestation_log import read_log
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import (
    DIGEST_PREFIX,
    command_option,
    command_options,
    settings_digest,
    settings_json,
)
from pipeline.core.job_records import Record, load_records
from pipeline.job import versions
from pipeline.job.job_execution import expand_paths, list_files
from pipeline.job.reach import file_of
from pipeline.job.versions import code_version
from pipeline.provenance.content_differences import compare_rerun

OUTSIDE_PREFIX = "…/"  # how records begin a path outside of the project
BATCH_OPTIONS = ("--units", "--batch", "--of")
MACHINE_OPTIONS = ("--recovery", "--staging")  # folders of a cluster: copies and recovery change no result
SHOWN_ERROR_LINES = 3
VERDICTS = ("identical", "differs", "could not be done again")
# Statistics from rows, papers and figures from records, joules from readings, the crate from all of them.
SUMMARY_STEPS = (
    *("corpus.statistics", "corpus.publish", "tokenizer.fertility", "tokens.index", "plan.estimate"),
    *("report.page", "provenance.crate"),
)


class RerunVerdict(IntEnum):
    """The result of a rerun, as exit code."""

    IDENTICAL = 0
    DIFFERS = 1
    COULD_NOT = 2


@dataclass
class RerunOutcome:
    """The result of rerunning one step."""

    name: str
    verdict: RerunVerdict
    lines: list[str] = field(default_factory=list)

    def format_lines(self) -> list[str]:
        return [f"{self.name}: {VERDICTS[self.verdict]}", *(f"  {line}" for line in self.lines)]


class StepRerun:
    """A rerun of one step in an empty folder.

    Args:
        run_directory: the folder of the run, which is only read.
        raw: the folder of raw files from outside of the project; None if they have not moved.
    """

    def __init__(self, run_directory: Path, record: Record, folder: Path, raw: Path | None) -> None:
        self.run_directory = run_directory.absolute()
        self.record = record
        self.raw = raw
        self.options = command_options(record.full_command)
        self.prefix = (command_option(record.command, "--record") or "").rpartition(f"/{layout.RECORDS}/")[0]
        self.folder = folder
        self.rerun_folder = folder / "results" / Path(self.prefix).name  # private texts are found relative to it
        self.module = f"pipeline.{record.step}"
        self.unit = str(record.instance.get("unit", ""))
        self.inputs = RerunInputs(self.run_directory, record, self.rerun_folder)
        self.warnings: list[str] = []

    def run(self) -> RerunOutcome:
        """Rerun the step and compare its outputs."""
        try:
            command = self.build_command()
            self.inputs.link_inputs(self.find_listings())
            self.check_raw_files(command)
            seconds = self.execute(command)
        except InputError as error:
            return RerunOutcome(self.record.name, RerunVerdict.COULD_NOT, [str(error), *self.warnings])
        differences, notes = compare_rerun(self.run_directory, self.record, self.rerun_folder, self.command_settings())
        lines = [*differences, *self.warnings, *notes, f"{len(self.record.outputs)} files in {seconds:.1f} s"]
        return RerunOutcome(self.record.name, RerunVerdict.DIFFERS if differences else RerunVerdict.IDENTICAL, lines)

    def command_settings(self) -> dict[str, Any]:
        """Return the settings in the command, or those with their digest in the attestation log."""
        text = command_option(self.record.full_command, "--settings") or "{}"
        if not text.startswith(DIGEST_PREFIX):
            return dict(json.loads(text))
        for line in read_log(self.run_directory):
            definition = line.statement.predicate.buildDefinition
            settings: dict[str, Any] = definition.externalParameters.get("settings", {}) if definition else {}
            if settings_digest(settings_json(settings)) == text:
                return settings
        return {}

    def relocate_paths(self, word: str) -> str:
        """Return a word of the command with paths in the folder of the rerun.

        Raises:
            InputError: it is outside of the project and --raw is missing.
        """
        listing, path = word[: word.startswith("@")], word.removeprefix("@").replace("%unit", self.unit)
        if path.startswith(OUTSIDE_PREFIX):
            if self.raw is None:
                raise InputError(f"{path} is outside of the project: name its folder with --raw FOLDER")
            return f"{listing}{self.raw / path.removeprefix(OUTSIDE_PREFIX)}"
        below = path == self.prefix or path.startswith(f"{self.prefix}/")
        return (
            f"{listing}{self.rerun_folder}{path.removeprefix(self.prefix)}"
            if below
            else word.replace("%unit", self.unit)
        )

    def build_command(self) -> list[str]:
        """Return the command line for the rerun, with recorded settings and current versions.

        Raises:
            InputError: the step is no longer there, or the record does not say what it was given.
        """
        if not self.prefix:
            raise InputError(
                f"the command in {self.record.file} names no record below a run: it cannot be given other paths"
            )
        if file_of(self.module) is None:
            raise InputError(f"there is no step {self.record.step} here: check out {self.describe_commit()}")
        recorded_code, recorded_environment = self.record.code_version, self.record.environment_version
        code = versions.code_version(self.module)
        environment = versions.environment_version(self.module, recorded_environment.rpartition("-")[0])
        for what, here, recorded in (
            ("code", code, recorded_code),
            ("environment", environment, recorded_environment),
        ):
            if recorded != here:
                self.warnings.append(
                    f"warning: the {what} is {here} here and {recorded} in the record, of {self.describe_commit()}: "
                    "a difference may come from that"
                )
        given = {
            "--settings": [json.dumps(self.record.settings)],
            "--operation": [json.dumps(self.record.operation)],
            "--code": [code],
            "--environment": [environment],
            "--instance": [f"{key}={value}" for key, value in self.record.instance.items()],
            "--scratch": [str(self.folder / layout.SCRATCH)],
            "--private": [str(self.folder / "private.parquet")],
            "--launch": [self.record.launch] if self.record.launch else [],
        }
        words = [sys.executable, "-m", "pipeline", *self.record.step.split(".")]
        for option, values in self.options:
            if option in (*BATCH_OPTIONS, *MACHINE_OPTIONS) or (option == "--launch" and not self.record.launch):
                continue
            if option == "--raw" and self.raw is not None and values[0].startswith((OUTSIDE_PREFIX, "/")):
                values = [str(self.raw)]
            elif option in ("--input", "--output"):
                values = [*values[:1], *map(self.relocate_paths, values[1:])]
            else:
                values = given.get(option, [self.relocate_paths(value) for value in values])
            words += [f"{option}={values[0]}"] if len(values) == 1 and option != "--instance" else [option, *values]
        if (
            self.record.launch
            and shutil.which(self.record.launch.split()[0], path=_clean_environment()["PATH"]) is None
        ):
            raise InputError(
                f"its processes were started with `{self.record.launch}`, which this machine does not have"
            )
        return words

    def describe_commit(self) -> str:
        git = self.record.git or {}
        changes = ", with changes that were not committed" if git.get("dirty") else ""
        return f"commit {git['commit']}{changes}" if git.get("commit") else "a commit that the record does not name"

    def find_listings(self) -> list[str]:
        """Return the listings that the command names, as paths relative to the run."""
        words = [word for option, values in self.options if option == "--input" for word in values[1:]]
        listed = [word.removeprefix("@").replace("%unit", self.unit) for word in words if word.startswith("@")]
        return [path.removeprefix(f"{self.prefix}/") for path in listed]

    def check_raw_files(self, command: list[str]) -> None:
        """Compare the raw files of the command with the record.

        Raises:
            InputError: one is missing, has other bytes, or there are others.
        """
        raw = command_option(command, "--raw")
        files = [
            (values[0], file)
            for option, values in command_options(command)
            if option == "--input"
            for path in expand_paths(values[1:], raw)
            for file in list_files(path)
        ]
        if [name for name, _ in files] != [entry.name for entry in self.record.inputs]:
            raise InputError(
                f"its command stands for {len(files)} files, and the record names {len(self.record.inputs)}: "
                "the record or a listing was changed"
            )
        for (_, file), entry in zip(files, self.record.inputs, strict=True):
            if entry.is_outside_run:
                check_input(file, entry.path.removeprefix("data:"), entry.sha256)

    def execute(self, command: list[str]) -> float:
        """Run the step and return how many seconds it took.

        Raises:
            InputError: it failed.
        """
        began = time.monotonic()
        done = subprocess.run(command, env=_clean_environment(), text=True, capture_output=True)
        if done.returncode:
            said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-SHOWN_ERROR_LINES:]
            raise InputError(f"it ended with exit code {done.returncode}: {' / '.join(said) or 'it says nothing'}")
        return time.monotonic() - began


def _clean_environment() -> dict[str, str]:
    """The variables of this process without those of another run of the pipeline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")}
    return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])}


def find_record_by_name(records: list[Record], step: str) -> Record:
    """Return the record of a name, such as `corpus.filter.main.laws.0`, or title.

    Raises:
        InputError: there is none.
    """
    by_name = {word: record for record in records for word in (record.title, record.name)}
    name = step.removesuffix(".json").rpartition("/")[2]
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(step, by_name, n=3, cutoff=0.3)
    raise InputError(f"the run has no record {step}: {'did you mean ' + ' or '.join(near) if near else 'name one'}?")


def sample_records(records: list[Record], number: int, seed: str) -> list[Record]:
    """Return a reproducible sample: the records with the smallest SHA-256 of `SEED NAME`."""

    def hash_record_name(record: Record) -> str:
        return hashlib.sha256(f"{seed} {record.name}".encode()).hexdigest()

    return sorted(records, key=hash_record_name)[:number]


def reproduce(run_directory: Path, record: Record, folder: Path | None = None, raw: Path | None = None) -> RerunOutcome:
    """Rerun one step, in a new folder below `folder` or in a temporary one."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as temporary:
        place = (folder or Path(temporary)) / record.name
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            return RerunOutcome(
                record.name, RerunVerdict.COULD_NOT, [f"{place} is there already: name another --folder"]
            )
        return StepRerun(run_directory, record, place.absolute(), raw).run()


def rerun_summary_steps(run_directory: Path) -> Iterator[RerunOutcome]:
    """Rerun the steps that conclude from other files of a run, if the code is that of their records."""
    for record in load_records(run_directory):
        if record.step not in SUMMARY_STEPS:
            continue
        if code_version(f"pipeline.{record.step}") == record.code_version:
            yield reproduce(run_directory, record)
        else:
            commit = (record.git or {}).get("commit") or "that its record does not name"
            yield RerunOutcome(
                record.name, RerunVerdict.COULD_NOT, [f"its code is another one: check out the commit {commit}"]
            )


def choose_records(
    run_directory: Path, step: str | None = None, sample: int | None = None, seed: str | None = None
) -> tuple[list[Record], list[str], str | None]:
    """Return the records to reproduce, the names of those that were not drawn, and the seed of the draw.

    Raises:
        InputError: neither or both of a step and a sample are given, or there are no such records.
    """
    if (step is None) == (sample is None):
        raise InputError("name a step, or how many are to be drawn: reproduce RUN STEP, or reproduce RUN --sample N")
    records = load_records(run_directory)
    if step is not None:
        return [find_record_by_name(records, step)], [], None
    assert sample is not None
    if not 1 <= sample <= len(records):
        raise InputError(f"--sample {sample}: the run has {len(records)} steps, name a number up to that")
    crate = run_directory / layout.CRATE
    if seed is None and not crate.is_file():
        raise InputError(f"{crate} is missing, and its hash is the seed of the sample: give another one with --seed")
    seed = seed or hash_file(crate)
    chosen = sample_records(records, sample, seed)
    return chosen, sorted(record.name for record in records if record not in chosen), seed
