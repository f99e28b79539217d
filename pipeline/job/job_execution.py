"""The contract of a step: validate, measure, run, hash, record (docs/explanation/architecture.md)."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, get_type_hints

from pydantic import ValidationError

from pipeline import layout
from pipeline.core import output_lease
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.attestation_log import load_signing_key
from pipeline.core.errors import DiskFull, InputError, Superseded
from pipeline.core.full_disk_errors import disk_full_error, is_disk_full, remove_path, truncate_and_remove
from pipeline.core.hashing import hash_each_file, hash_file
from pipeline.core.job_command_lines import expand_numbered_path
from pipeline.core.job_records import FileEntry, Record, ReusedResult, UnitRecords
from pipeline.core.output_archives import ArchivedOutput, find_output
from pipeline.core.output_lease import Lease
from pipeline.core.platform_files import fill_folder_template
from pipeline.core.settings import Settings, merge_result_and_nonresult_settings
from pipeline.core.shared_environment_files import write_environment
from pipeline.job import environment_lock_comparison, invocation_snapshots, reuse_under_another_name, versions
from pipeline.job.attempt import RunningAttempt, command_line, execution_context
from pipeline.job.input_producers import find_producers

LATENCY_SECONDS = 120.0  # twice the longest that NFS keeps what it knows of a folder (acdirmax, nfs(5))
SMALL_BYTES = 1_000_000  # up to this size an input is hashed again; above it, a newer record counts


def list_files(path: Path) -> list[Path]:
    """Return the sorted files of a folder that are files by themselves, or a file itself."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".snakemake_timestamp")


def expand_paths(given: list[str], raw: str | None = None) -> list[Path]:
    """Expand the paths of a command line, one of which may be a pattern for many.

    `@FILE` stands for the files of a unit that FILE, of the listing of a source, names: those below the folder `raw`,
    or its parts.
    """
    if [name[:1] for name in given] == ["@"]:
        listing = Path(given[0][1:])
        parts = listing.parents[1] / "parts"
        entries = json.loads(find_output(listing).read_bytes())["files"]
        return [Path(str(raw)) / entry["name"] if entry["part"] is None else parts / entry["part"] for entry in entries]
    return [Path(path) for name in given for path in ([name] if Path(name).exists() else expand_numbered_path(name))]


def wait_until(is_there: Callable[[], bool]) -> bool:
    """Return whether a file is there; on a cluster wait for it, as network file systems show files late."""
    deadline_seconds = monotonic() + (LATENCY_SECONDS if "SLURM_JOB_ID" in os.environ else 0.0)
    while not is_there():
        if monotonic() >= deadline_seconds:
            return False
        sleep(1)
    return True


@cache
def find_partial_outputs(folder: Path) -> dict[str, list[Path]]:
    """Return the partial outputs in a folder by the name of the output; each folder is listed once."""
    partial_outputs: dict[str, list[Path]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.startswith(".partial-"):
                partial_outputs.setdefault(name.removeprefix(".partial-").partition("-")[2], []).append(folder / name)
    return partial_outputs


def _has_content(file: StoredFile, sha256: str) -> bool:
    try:
        return hash_file(file) == sha256
    except OSError:
        return False


class Job:
    """One call of one step, from its command line to its record."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        self.arguments = arguments
        self.module = f"pipeline.{name}"
        self.record_path = Path(arguments.record)
        self.run_directory = self.record_path.absolute().parents[2]
        self.instance = dict(pair.split("=", 1) for pair in arguments.instance)
        self.inputs = {name: expand_paths(given, arguments.raw) for name, *given in arguments.input}
        self.outputs = {name: Path(path) for name, path in arguments.output}
        self.owner = Lease(Path(arguments.scratch or "."))
        self.until_end = ExitStack()
        self.is_placed = False
        self.reused: ReusedResult | None = None

    def check_versions(self) -> None:
        """Raise InputError if code or environment differ from the plan, or installed packages from the lock."""
        self.code_version = versions.code_version(self.module)
        lock = self.arguments.environment.rsplit("-", 1)[0]
        environment = environment_lock_comparison.resolve_job_environment(self.name, lock)
        platform = self.arguments.platform or invocation_snapshots.planned_platform_name()
        self.environment_version = environment.version
        self.environment = {
            "python": environment.python,
            "python_build": environment.python_build,
            "lock": lock,
            "packages": environment.packages,
            "sha256": environment.sha256,
            "other_than_lock": environment.check_against_lock(self.name, lock, platform),
        }
        for what, planned, now in (
            ("code", self.arguments.code, self.code_version),
            ("environment", self.arguments.environment, self.environment_version),
        ):
            if planned != now:
                raise InputError(
                    f"the {what} of {self.name} changed while the job waited ({planned} was planned, {now} is here): "
                    "run snakemake again to plan with the current code and environment"
                )
        self.plan = invocation_snapshots.verify_planning_snapshot(
            self.name, self.code_version, self.environment_version
        )

    def bind_arguments(self) -> tuple[Callable[..., dict[str, Any]], Any, dict[str, Any]]:
        """Return the step's function, its validated settings and its keyword arguments."""
        run = importlib.import_module(self.module).run
        hints = get_type_hints(run)
        parameters = inspect.signature(run).parameters
        first = next(iter(parameters))
        try:
            both = merge_result_and_nonresult_settings(
                json.loads(self.arguments.settings), json.loads(self.arguments.operation)
            )
            settings = hints[first].model_validate(both)
        except json.JSONDecodeError as error:
            raise InputError(
                f"settings of {self.name}: not valid JSON ({error.msg}). In the command line of a record, put its "
                "settings in the place of their hash"
            ) from None
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise InputError(f"settings of {self.name}, field {field}: {problem['msg']}") from None
        keywords: dict[str, Any] = {}
        for name, paths in self.inputs.items():
            for path in paths:
                if not wait_until(lambda path=path: self.resolve_input_path(path).exists()):  # type: ignore[misc]
                    raise InputError(f"{self.name}: the input {name} {path} does not exist")
            self.wait_for_unit_records(paths)
            readable = [*map(self.resolve_input_path, paths)]
            keywords[name] = readable if hints.get(name) == list[Path] else readable[0]
        self.partial = {name: output_lease.temporary_output_path(path) for name, path in self.outputs.items()}
        keywords |= self.partial
        given = self.arguments
        keywords |= {
            name: value
            for name, value in (("launch", given.launch), ("platform", given.platform), ("owner", self.owner))
            if name in parameters
        }
        if "versions" in parameters:
            keywords["versions"] = [self.code_version, self.environment_version]
        for name in {"scratch", "raw", "private"} & parameters.keys():
            if path := getattr(given, name):
                keywords[name] = Path(path)
        for name, template in (("recovery_folder", "recovery"), ("staging", "staging")):
            if name in parameters and (path := getattr(given, template)):
                keywords[name] = Path(fill_folder_template(path, account=None))
        for name in list(parameters)[1:]:
            if hints[name] == list[Path]:
                keywords.setdefault(name, [])  # Snakemake passes an empty list of inputs as nothing at all
        needed = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty} - {first}
        if missing := needed - set(keywords):
            raise InputError(f"{self.name} needs --input or --output for {', '.join(sorted(missing))}")
        return run, settings, keywords

    def resolve_input_path(self, path: Path) -> Path:
        """Return where the step reads an input: an output in an archive is copied to a temporary folder."""
        file = find_output(path)
        return file.copy_into_folder(self.copies) if isinstance(file, ArchivedOutput) else file

    @cached_property
    def copies(self) -> Path:
        """The temporary folder with copies of archived inputs, until the job ends."""
        return Path(self.until_end.enter_context(TemporaryDirectory(prefix="polder-")))

    def wait_for_unit_records(self, paths: list[Path]) -> None:
        """Wait for the records of units that lists among input files name.

        Raises:
            InputError: one does not exist.
        """

        missing: list[str] = []

        def are_unit_records_present() -> bool:
            listed = [record for path in batches for record in UnitRecords.load(path).records]
            store = FileStore(self.run_directory)
            missing[:] = [record.path for record in listed if not _has_content(store.find(record.path), record.sha256)]
            return not missing

        batches = [path for path in paths if layout.UNIT_RECORDS.parse(self.recorded_path(path))]
        if batches and not wait_until(are_unit_records_present):
            raise InputError(f"{missing[0]} is not the record that its batch has listed: start snakemake again")

    def recorded_path(self, path: Path) -> str:
        """Return a path as in records: relative to the run, or `data:` and the path in the project."""
        absolute = path.absolute()
        for base, prefix in ((self.run_directory, ""), (Path.cwd(), "data:")):
            if absolute.is_relative_to(base):
                return prefix + absolute.relative_to(base).as_posix()
        return f"data:{path.name}"

    @property
    def unit_prefix(self) -> str:
        """How the names of records, attempts and archives begin, of the units of this source."""
        return self.record_path.name.removesuffix(f"{self.instance['unit']}.json")

    def find_record(self) -> StoredFile:
        """Return the record of the job; that of a unit may be in the archive of its batch."""
        if "unit" not in self.instance:
            return self.record_path
        return FileStore(self.run_directory, self.unit_prefix).find(self.recorded_path(self.record_path))

    def hash_inputs(self) -> tuple[FileEntry, ...]:
        """Return the entries of all input files; a large file is not hashed again if a record has its hash.

        The recorded hash is used if the size is the recorded one and the file is not newer than the record.

        Raises:
            InputError: a file differs from the record of the step that wrote it.
        """
        files = [(name, file) for name, paths in self.inputs.items() for path in paths for file in list_files(path)]
        # Files that no step of this run wrote, and records, which the report reads, are always hashed. Hashing the
        # files of a unit is faster than listing all records.
        written = [
            path
            for _, file in files
            if ":" not in (path := self.recorded_path(file)) and not path.startswith(f"{layout.PROVENANCE}/")
        ]
        known = {} if self.arguments.batch else find_producers(self.run_directory, written)
        readable = {file: self.resolve_input_path(file) for _, file in files}
        stats = {file: path.stat() for file, path in readable.items()}
        hashes = {}
        for file, file_stat in stats.items():
            record, entry = known.get(self.recorded_path(file), (None, None))
            if (
                record
                and entry
                and SMALL_BYTES < file_stat.st_size == entry.bytes
                and file_stat.st_mtime <= record.ended_seconds
            ):
                hashes[file] = entry.sha256
        unread = [file for file in stats if file not in hashes]
        hashes |= zip(unread, hash_each_file([readable[file] for file in unread]), strict=True)
        described = []
        for name, file in files:
            shown, sha256 = self.recorded_path(file), hashes[file]
            _, entry = known.get(shown, (None, None))
            if entry and entry.sha256 != sha256:
                raise InputError(
                    f"{shown} has other bytes than its record says: it was altered; remove it and start snakemake "
                    "again, which recreates it"
                )
            described.append(FileEntry(name, shown, sha256, stats[file].st_size))
        return tuple(described)

    def hash_outputs(self) -> tuple[FileEntry, ...]:
        """Return the entries of all files that the step wrote, with their final paths."""
        described = []
        for name, partial in self.partial.items():
            if not partial.exists():
                raise RuntimeError(
                    f"{self.name}: its output {name} is gone: the step did not write it, or a later start removed it"
                )
            files = list_files(partial)
            for file, sha256 in zip(files, hash_each_file(files), strict=True):
                final = self.outputs[name] / file.relative_to(partial) if partial.is_dir() else self.outputs[name]
                described.append(FileEntry(name, self.recorded_path(final), sha256, file.stat().st_size))
        return tuple(described)

    def reuse_outputs(self, settings: Settings, inputs: tuple[FileEntry, ...]) -> dict[str, Any] | None:
        """Reuse the outputs of an identical job if there is one, and return its counts."""
        if getattr(settings, "keep_removed", False):  # private texts are outside of the results
            return None
        of_job = self.code_version, self.environment_version
        reusable = reuse_under_another_name.find_reusable_result(
            self.record_path, self.instance, settings.result_settings(), of_job, inputs
        )
        if reusable is None:
            return None
        taken = reusable.copy_outputs(self.run_directory, self.outputs, self.partial, linked=bool(self.arguments.batch))
        if not taken or {entry.sha256 for entry in self.hash_outputs()} != reusable.output_hashes:
            for path in self.partial.values():
                truncate_and_remove(path)
            return None
        self.reused = reusable.result
        print(f"outputs reused from {self.reused.record}: same settings, code, environment and inputs", flush=True)
        return reusable.record.counts

    def check_not_superseded(self) -> None:
        """Raise Superseded if a later start of this job owns its scratch folder or has finished; nothing is changed.

        Slurm starts a job again where it has lost its node, while the process on that node may go on.
        """
        self.owner.check()
        try:
            record = Record.load(self.find_record())
        except InputError:  # no record
            return
        its = {"host": record.host, **(record.slurm or {})}
        if output_lease.started_later(its, output_lease.identify_process()):
            raise Superseded(
                f"a later start of this step has finished it ({output_lease.format_process(its)}): nothing is changed"
            )

    def publish_outputs(self) -> None:
        """Move the outputs to their final paths; an existing file is replaced atomically."""
        for name, path in self.outputs.items():
            if path.is_dir() or (path.exists() and self.partial[name].is_dir()):
                remove_path(path)
            self.partial[name].replace(path)
        self.is_placed = True

    def execute(self) -> None:
        """Run the step and write its outputs and its record.

        Raises:
            InputError: a problem of the settings, the inputs or the planned versions; no output is written.
            DiskFull: the disk is full; no output is kept.
        """
        with self.until_end:
            self._execute()

    def _execute(self) -> None:
        attempt = RunningAttempt(self.name, self.instance, self.run_directory)
        try:
            load_signing_key()  # raises where what is attested cannot be signed
            self.check_versions()
            run, settings, keywords = self.bind_arguments()
        except InputError as error:
            attempt.record_refusal(str(error))
            raise
        except Exception as error:
            attempt.record_failure(error)
            raise
        try:
            with attempt:
                inputs, outputs, counts = self.run_step(run, settings, keywords)
            where = execution_context(self.plan and self.plan.git)
            where["container"] = where["container"] or counts.get("container")  # what computed, not what started it
            record = Record(
                step=self.name,
                instance=self.instance,
                settings=settings.result_settings(),
                operation=settings.non_result_settings(),
                command=command_line(),
                inputs=inputs,
                outputs=outputs,
                code_version=self.code_version,
                environment_version=self.environment_version,
                environment_file=write_environment(self.run_directory, self.environment),
                frozen=self.plan and self.plan.file,
                launch=self.arguments.launch,
                taken_over_from=self.reused,
                counts=counts,
                **where,
                **attempt.measurements(),
            ).with_short_command()
            record.write(self.record_path)
            attempt.attest_record(self.record_path, record)
        except DiskFull as error:
            if self.is_placed:  # outputs without a record do not count, and removing them frees space for the attempt
                for path in (*self.outputs.values(), self.record_path):
                    remove_path(path)
                attempt.record_failure(error)
            raise
        self.owner.afterwards()

    def run_step(self, run: Callable[..., dict[str, Any]], settings: Any, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Run the step, publish its outputs and return inputs, outputs and counts for the record.

        Raises:
            Superseded: a later start of this job owns the outputs, which stay unchanged.
            DiskFull: the disk is full; partial outputs are removed.
        """
        for path in self.outputs.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            for left in find_partial_outputs(path.parent).get(path.name, []):
                remove_path(left)
        inputs = self.hash_inputs()
        try:
            counts = self.reuse_outputs(settings, inputs)
            if counts is None:
                counts = run(settings, **keywords)
            outputs = self.hash_outputs()
            self.check_not_superseded()
            self.publish_outputs()
        except BaseException as error:
            places = [self.run_directory, *(path.parent for path in self.outputs.values())]
            full = disk_full_error(error, places) if is_disk_full(error) else None
            for path in self.partial.values():
                truncate_and_remove(path)
            if full:
                raise full from error
            if not isinstance(error, InputError):
                self.check_not_superseded()  # explains why partial outputs are gone
            raise
        return inputs, outputs, counts
