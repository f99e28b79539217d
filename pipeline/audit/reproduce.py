"""Does steps of a run again, one by name or a draw of all, and says whether they write the same.

A step is done in a folder of its own: its record says settings, inputs, outputs, launch and versions, its command how
they were given. What it read is linked there after its bytes were compared with the record, so that nothing of the run
is changed.
"""

from __future__ import annotations

import argparse
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
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.attestation_log import BEGAN, lines
from pipeline.core.command_lines import DIGEST, command_option, command_options, settings_digest, settings_json
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.paths import shorten
from pipeline.core.records import Attempt, FileEntry, Record, load_records
from pipeline.job import versions
from pipeline.job.contract import files_below, given_paths
from pipeline.job.reach import file_of
from pipeline.job.versions import code_version
from pipeline.provenance.contents import compared

ELSEWHERE = "…/"  # how records begin a path outside of the project
OF_THE_BATCH = ("--units", "--batch", "--of")
OF_THE_MACHINE = ("--recovery", "--staging")  # folders of a cluster: copies and recovery change no result
GROWS = (layout.LOGS, layout.SCRATCH, layout.BATCHES, layout.FROZEN, layout.RECORDS)
SHOWN_ERROR_LINES = 3
VERDICTS = ("identical", "differs", "could not be done again")
# Statistics from rows, papers and figures from records, joules from readings, the crate from all of them.
CONCLUDING = (
    *("corpus.statistics", "corpus.publish", "tokenizer.fertility", "tokens.index", "plan.estimate"),
    *("report.page", "provenance.crate"),
)


class Verdict(IntEnum):
    """What came of it, as the exit code."""

    IDENTICAL = 0
    DIFFERS = 1
    COULD_NOT = 2


@dataclass
class Outcome:
    """What came of doing one step again."""

    name: str
    verdict: Verdict
    lines: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        """The verdict and what explains it, as lines."""
        return [f"{self.name}: {VERDICTS[self.verdict]}", *(f"  {line}" for line in self.lines)]


class Again:
    """One step that is done again in `folder`, which is empty.

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
        self.again = folder / "results" / Path(self.prefix).name  # as deep as the run that its private texts lie beside
        self.module = f"pipeline.{record.step}"
        self.unit = str(record.instance.get("unit", ""))
        self.warnings: list[str] = []

    def outcome(self) -> Outcome:
        """Do the step again and compare what it wrote."""
        try:
            command = self.command()
            self.link()
            self.refuse_other_inputs(command)
            seconds = self.execute(command)
        except InputError as error:
            return Outcome(self.record.name, Verdict.COULD_NOT, [str(error), *self.warnings])
        differences, notes = compared(self.run_directory, self.record, self.again, self.planned_settings())
        lines = [*differences, *self.warnings, *notes, f"{len(self.record.outputs)} files in {seconds:.1f} s"]
        return Outcome(self.record.name, Verdict.DIFFERS if differences else Verdict.IDENTICAL, lines)

    def planned_settings(self) -> dict[str, Any]:
        """Return the settings that the command had: by its words, or by the line of the log that has their digest."""
        told = command_option(self.record.full_command, "--settings") or "{}"
        if not told.startswith(DIGEST):
            return dict(json.loads(told))
        for line in lines(self.run_directory):
            definition = line.statement.predicate.buildDefinition
            settings: dict[str, Any] = definition.externalParameters.get("settings", {}) if definition else {}
            if settings_digest(settings_json(settings)) == told:
                return settings
        return {}

    def here(self, word: str) -> str:
        """A word of the command with the paths of the other folder.

        Raises:
            InputError: the path is outside of the project, and no folder of raw files is given.
        """
        listing, path = word[: word.startswith("@")], word.removeprefix("@").replace("%unit", self.unit)
        if path.startswith(ELSEWHERE):
            if self.raw is None:
                raise InputError(f"{path} lies outside of the project: name its folder with --raw FOLDER")
            return f"{listing}{self.raw / path.removeprefix(ELSEWHERE)}"
        below = path == self.prefix or path.startswith(f"{self.prefix}/")
        return f"{listing}{self.again}{path.removeprefix(self.prefix)}" if below else word.replace("%unit", self.unit)

    def command(self) -> list[str]:
        """The command line of the step for the other folder, with the settings of the record and the versions here.

        Raises:
            InputError: the step is no longer there, or the record does not say what it was given.
        """
        if not self.prefix:
            raise InputError(
                f"the command in {self.record.file} names no record below a run: it cannot be given other paths"
            )
        if file_of(self.module) is None:
            raise InputError(f"there is no step {self.record.step} here: check out {self.commit()}")
        recorded_code, recorded_environment = self.record.code_version, self.record.environment_version
        code = versions.code_version(self.module)
        environment = versions.environment_version(self.module, recorded_environment.rpartition("-")[0])
        for what, here, recorded in (
            ("code", code, recorded_code),
            ("environment", environment, recorded_environment),
        ):
            if recorded != here:
                self.warnings.append(
                    f"warning: the {what} is {here} here and {recorded} in the record, of {self.commit()}: "
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
            if option in (*OF_THE_BATCH, *OF_THE_MACHINE) or (option == "--launch" and not self.record.launch):
                continue
            if option == "--raw" and self.raw is not None:
                values = [str(self.raw)]
            elif option in ("--input", "--output"):
                values = [*values[:1], *map(self.here, values[1:])]
            else:
                values = given.get(option, [self.here(value) for value in values])
            words += [f"{option}={values[0]}"] if len(values) == 1 and option != "--instance" else [option, *values]
        if self.record.launch and shutil.which(self.record.launch.split()[0], path=_environment()["PATH"]) is None:
            raise InputError(
                f"its processes were started with `{self.record.launch}`, which this machine does not have"
            )
        return words

    def commit(self) -> str:
        """The commit of the record's code in words."""
        git = self.record.git or {}
        changes = ", with changes that were not committed" if git.get("dirty") else ""
        return f"commit {git['commit']}{changes}" if git.get("commit") else "a commit that the record does not name"

    def _link(self, path: str) -> None:
        target = self.again / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(self.run_directory / path)

    def _checked(self, path: str, sha256: str) -> None:
        """Link a file of the run."""
        _refuse_other(self.run_directory / path, path, sha256)
        self._link(path)

    def link(self) -> None:
        """Link what the step reads: its inputs, what an input names, and of a step that reads the whole run all.

        Raises:
            InputError: a file of it is gone or has other bytes than were read.
        """
        (self.again / layout.RECORDS).mkdir(parents=True)
        for entry in self.record.inputs:
            if not entry.is_outside:
                self._checked(entry.path, entry.sha256)
                if layout.TOKEN_INDEX.parse(entry.path):
                    self.link_shards(entry)
        for option, values in self.options:
            for word in values[1:] if option == "--input" else []:
                listing = word.removeprefix("@").replace("%unit", self.unit).removeprefix(f"{self.prefix}/")
                if word.startswith("@") and (self.run_directory / listing).is_file():
                    self._link(listing)
        if not self.record.instance:
            self.link_run()
            self.copy_log()

    def link_shards(self, index: FileEntry) -> None:
        """Link the shards that an index of tokens names, with their hashes."""
        folder = Path(index.path).parent
        content = json.loads((self.run_directory / index.path).read_text(encoding="utf-8"))
        for shard in (shard for split in ("train", "validation") for shard in content[split]["shards"]):
            self._checked((folder / shard["path"]).as_posix(), shard["sha256"])

    def link_run(self) -> None:
        """Link the other files of the run as they were when the step began, for a step that reads all that is there."""
        outputs = {entry.path for entry in self.record.outputs}
        for path in files_below(self.run_directory):
            below = path.relative_to(self.run_directory).as_posix()
            grows = any(below.startswith(f"{folder}/") for folder in GROWS)
            if below in (*outputs, layout.CRATE, layout.ATTESTATION_LOG) or grows or path.name.startswith(".partial"):
                continue
            if path.name == self.record.attempt or (
                below.startswith(f"{layout.ATTEMPTS}/") and Attempt.load(path).started >= self.record.started
            ):
                continue
            if below.startswith(f"{layout.READINGS}/"):
                self.cut(below)
            else:
                self._link(below)

    def copy_log(self) -> None:
        """Copy the lines of the log of attestations that were there when the step began."""
        log, own = self.run_directory / layout.ATTESTATION_LOG, f"{layout.ATTEMPTS}/{self.record.attempt}"
        began = (line for line in lines(self.run_directory) if line.statement.kind == BEGAN)
        first = next((line.number for line in began if line.statement.subject[0].name == own), None)
        if first is not None:
            with log.open("rb") as text:
                (self.again / layout.ATTESTATION_LOG).write_bytes(b"".join(islice(text, first - 1)))

    def cut(self, readings: str) -> None:
        """Copy of a meter's readings what it had written when the step ended: it went on after that."""
        until = self.record.ended_seconds
        lines = (self.run_directory / readings).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and _ended(line, until) <= until]
        if kept:
            (self.again / readings).parent.mkdir(parents=True, exist_ok=True)
            (self.again / readings).write_text("".join(kept), encoding="utf-8")

    def refuse_other_inputs(self, command: list[str]) -> None:
        """Compare the raw files that the command stands for with the record.

        Raises:
            InputError: one is missing, has other bytes, or there are others.
        """
        raw = command_option(command, "--raw")
        files = [
            (values[0], file)
            for option, values in command_options(command)
            if option == "--input"
            for path in given_paths(values[1:], raw)
            for file in files_below(path)
        ]
        if [name for name, _ in files] != [entry.name for entry in self.record.inputs]:
            raise InputError(
                f"its command stands for {len(files)} files, and the record names {len(self.record.inputs)}: "
                "the record or a listing was changed"
            )
        for (_, file), entry in zip(files, self.record.inputs, strict=True):
            if entry.is_outside:
                _refuse_other(file, entry.path.removeprefix("data:"), entry.sha256)

    def execute(self, command: list[str]) -> float:
        """Run the step and return how many seconds it took.

        Raises:
            InputError: it failed.
        """
        began = time.monotonic()
        done = subprocess.run(command, env=_environment(), text=True, capture_output=True)
        if done.returncode:
            said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-SHOWN_ERROR_LINES:]
            raise InputError(f"it ended with exit code {done.returncode}: {' / '.join(said) or 'it says nothing'}")
        return time.monotonic() - began


def _ended(line: str, otherwise: float) -> float:
    """Return when the interval of a line of readings ended; of a line that is none, what is given."""
    try:
        return float(json.loads(line)["ended"])
    except (ValueError, KeyError, TypeError):
        return otherwise


def _refuse_other(file: Path, path: str, sha256: str) -> None:
    if not file.is_file():
        raise InputError(f"its input {path} is missing: put it back, or run the step that makes it")
    if sha256_of(file) != sha256:
        raise InputError(f"its input {path} has other bytes than it read (sha256 {sha256}): put those back")


def _environment() -> dict[str, str]:
    """The variables of this process without those of another run of the pipeline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")}
    return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])}


def named(records: list[Record], step: str) -> Record:
    """The record of that name, such as `corpus.filter.main.laws.0`, or title.

    Raises:
        InputError: there is none.
    """
    by_name = {word: record for record in records for word in (record.title, record.name)}
    name = step.removesuffix(".json").rpartition("/")[2]
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(step, by_name, n=3, cutoff=0.3)
    raise InputError(f"the run has no record {step}: {'did you mean ' + ' or '.join(near) if near else 'name one'}?")


def draw(records: list[Record], number: int, seed: str) -> list[Record]:
    """Some of the records: those with the smallest sha256 of `SEED NAME`, so that anybody can draw the same again."""

    def place(record: Record) -> str:
        return hashlib.sha256(f"{seed} {record.name}".encode()).hexdigest()

    return sorted(records, key=place)[:number]


def reproduce(run_directory: Path, record: Record, folder: Path | None = None, raw: Path | None = None) -> Outcome:
    """Do one step again, in a new folder below `folder`, or in one that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as temporary:
        place = (folder or Path(temporary)) / record.name
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            return Outcome(record.name, Verdict.COULD_NOT, [f"{place} is there already: name another --folder"])
        return Again(run_directory, record, place.absolute(), raw).outcome()


def recomputed(run_directory: Path) -> Iterator[Outcome]:
    """Do again what draws conclusions from other files of a run, where the code here is that of its record."""
    for record in load_records(run_directory):
        if record.step not in CONCLUDING:
            continue
        if code_version(f"pipeline.{record.step}") == record.code_version:
            yield reproduce(run_directory, record)
        else:
            commit = (record.git or {}).get("commit") or "that its record does not name"
            yield Outcome(record.name, Verdict.COULD_NOT, [f"its code is another one: check out the commit {commit}"])


def main(arguments: list[str]) -> int:
    """`python -m pipeline reproduce RUN STEP`: 0 if all is identical, 1 if something differs, 2 if it could not."""
    parser = argparse.ArgumentParser(prog="python -m pipeline reproduce", description=__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("step", nargs="?", help="the name of its record, such as corpus.filter.main.laws.0")
    parser.add_argument("--sample", type=int, metavar="N", help="do N steps again, drawn with equal chances")
    parser.add_argument("--seed", help="of the draw; by default the sha256 of the crate's metadata")
    parser.add_argument("--raw", type=Path, help="where raw files outside of the project lie here")
    parser.add_argument("--folder", type=Path, help="keep what is written, below this folder")
    options = parser.parse_args(arguments)
    if (options.step is None) == (options.sample is None):
        raise InputError("name a step, or how many are to be drawn: reproduce RUN STEP, or reproduce RUN --sample N")
    records = load_records(options.run_directory)
    chosen = [named(records, options.step)] if options.step else []
    if options.sample is not None:
        if not 1 <= options.sample <= len(records):
            raise InputError(f"--sample {options.sample}: the run has {len(records)} steps, name a number up to that")
        crate = options.run_directory / layout.CRATE
        if options.seed is None and not crate.is_file():
            raise InputError(f"{crate} is missing, whose hash is the seed of the draw: name one with --seed")
        seed = options.seed or sha256_of(crate)
        chosen = draw(records, options.sample, seed)
        print(f"drawn with the seed {seed}: {len(chosen)} of {len(records)} steps")
    worst: set[Verdict] = set()
    for record in chosen:
        outcome = reproduce(options.run_directory, record, options.folder, options.raw)
        worst.add(outcome.verdict)
        print("\n".join(outcome.told()), flush=True)
    if options.sample is not None:
        left = sorted(record.name for record in records if record not in chosen)
        print(f"not drawn: {', '.join(shorten(left)) or 'none'}")
    order = (Verdict.DIFFERS, Verdict.COULD_NOT, Verdict.IDENTICAL)
    return int(next(verdict for verdict in order if verdict in worst))
