"""Run a job from its command line: one step, or one step for each unit of a batch, in parallel processes."""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path, PurePath
from types import FrameType

from pipeline.core.archived_run_files import FileStore, file_size
from pipeline.core.errors import InputError, Stopped
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import settings_digest
from pipeline.core.job_records import Attempt, BatchFile, BatchRecord, FileReference, Record, UnitRecords, outputs_exist
from pipeline.core.lock_owner import die_with_parent
from pipeline.core.output_archives import ArchivedOutput, OutputArchives, find_output
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree
from pipeline.energy.meter_recorder import divide_startup_among_jobs
from pipeline.energy.startup_counters import keep_startup_sample
from pipeline.job.attempt import RunningAttempt
from pipeline.job.job_execution import Job, expand_paths, list_files
from pipeline.job.reach import PACKAGE
from pipeline.job.reuse_under_another_name import USER_NAMED_KEYS, index_records
from pipeline.layout import ATTEMPT, READINGS, UNIT_RECORDS

SINGLE_THREAD_VARIABLES = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@dataclass(frozen=True)
class WorkerTask:
    """A callable with its name for messages and its relative size."""

    name: str
    size: int
    call: Callable[[], None]


def available_cores(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of cores of this job, from Slurm or from Snakemake's `threads`."""
    text = environment.get("SLURM_CPUS_PER_TASK") or environment.get("OMP_NUM_THREADS") or ""
    return int(text) if text.isdigit() and int(text) else 1


def _run_task(work: WorkerTask, problem: Connection, parent: int) -> None:
    """Run a task in its own process; send InputError and Stopped to the parent, print a traceback for other errors."""
    die_with_parent()
    if os.getppid() != parent:  # it has ended before this one was bound to it
        os.kill(os.getpid(), signal.SIGKILL)
    handler = signal.getsignal(signal.SIGTERM)

    def handle_first_sigterm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # both Slurm and the parent send it
        if callable(handler):
            handler(number, frame)

    if callable(handler):
        signal.signal(signal.SIGTERM, handle_first_sigterm)
    # A GPU is shared by all tasks and would be counted once per task.
    os.environ |= {**SINGLE_THREAD_VARIABLES, "CUDA_VISIBLE_DEVICES": ""}
    keep_startup_sample()
    try:
        work.call()
    except (InputError, Stopped) as error:
        problem.send(error)


def run_in_parallel(works: Sequence[WorkerTask], processes: int) -> None:
    """Run tasks in parallel processes, the largest first.

    After a failure no other task starts, and running ones finish.

    Raises:
        InputError: a task was refused; of several the first in the given order.
        Stopped: a task was stopped.
        RuntimeError: a task failed; its traceback is in the log.
    """
    context = multiprocessing.get_context("fork")
    waiting = sorted(range(len(works)), key=lambda number: (works[number].size, -number))
    running: dict[int, tuple[int, ForkProcess, Connection]] = {}
    problems: dict[int, Exception] = {}
    try:
        while running or (waiting and not problems):
            while waiting and not problems and len(running) < processes:
                number = waiting.pop()
                problem, ours = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_task, args=(works[number], ours, os.getpid()), name=works[number].name
                )
                process.start()
                ours.close()
                running[process.sentinel] = number, process, problem
            for sentinel in wait([*running]):
                number, process, problem = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                error = _receive_problem(problem)
                if error is None and process.exitcode:
                    error = RuntimeError(f"{process.name} ended with {process.exitcode}")
                if error is not None:
                    problems[number] = error
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the sender repeats it
        for _, process, _ in running.values():
            process.terminate()
        for _, process, _ in running.values():
            process.join()
        raise
    for number in sorted(problems):
        raise problems[number]


def _receive_problem(problem: Connection) -> Exception | None:
    try:
        error: Exception = problem.recv()
    except EOFError:
        return None
    finally:
        problem.close()
    return error


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def is_up_to_date(job: Job, store: FileStore) -> bool:
    """Return whether a job has a record and its settings, versions, inputs and outputs are unchanged.

    A file that is older than the job and as large as its record says is not read again.
    """
    try:
        record = Record.load(store.find(job.recorded_path(job.record_path)))
        began_nanoseconds = record.started_seconds * 1e9
        if (record.settings, record.code_version, record.environment_version) != (
            json.loads(job.arguments.settings),
            job.arguments.code,
            job.arguments.environment,
        ):
            return False
        files = [(name, file) for name, paths in job.inputs.items() for path in paths for file in list_files(path)]
        named = [(entry.name, entry.path) for entry in record.inputs]
        if named != [(name, job.recorded_path(file)) for name, file in files]:
            return False
        for entry, (_, path) in zip(record.inputs, files, strict=True):
            file = find_output(path)
            changed = file.modified_nanoseconds if isinstance(file, ArchivedOutput) else file.stat().st_mtime_ns
            if file_size(file) != entry.bytes or (changed > began_nanoseconds and hash_file(file) != entry.sha256):
                return False
        return outputs_exist(job.run_directory, record.outputs)
    except (InputError, OSError, ValueError):  # no record, or a file of it is gone
        return False


def _build_unit_job(name: str, options: argparse.Namespace, unit: str) -> Job:
    """Return the job of one unit of a batch, with `%unit` replaced in its paths."""
    filled = argparse.Namespace(**vars(options))
    filled.instance = [f"unit={unit}" if pair.startswith("batch=") else pair for pair in options.instance]
    for key in ("input", "output"):
        given = [[word.replace("%unit", unit) for word in words] for words in getattr(options, key)]
        setattr(filled, key, given)
    for key in ("record", "private"):
        path = getattr(options, key)
        setattr(filled, key, path and path.replace("%unit", unit))
    return Job(name, filled)


def _input_bytes(job: Job) -> int:
    return sum(path.stat().st_size for paths in job.inputs.values() for path in paths if path.is_file())


def _execute_jobs(jobs: Sequence[Job]) -> None:
    """Run the jobs of units one after another or, with several cores, in parallel.

    Its request gives each core the memory of a unit. Every unit then has a process of its own, whose seconds and memory
    are counted for it alone; what the start of this one took is shared by all.
    """
    processes = min(available_cores(), len(jobs))
    if processes < 2:
        for job in jobs:
            job.execute()
        return
    os.environ |= SINGLE_THREAD_VARIABLES
    importlib.import_module(jobs[0].module)  # once, for all of them
    if next(iter(jobs[0].instance)) in USER_NAMED_KEYS:
        index_records(jobs[0].run_directory, jobs[0].name)
    divide_startup_among_jobs(len(jobs))
    RunningAttempt.counted_cpu_seconds = -cpu_seconds_of_process_tree() / len(jobs)
    works = [WorkerTask(f"{job.name} of {job.instance}", _input_bytes(job), job.execute) for job in jobs]
    run_in_parallel(works, processes)


def _list_unit_files(run_directory: Path, unit_prefix: str, jobs: Sequence[Job]) -> list[Path]:
    """Return the records of units, and their attempts that have ended, with readings, that are files by themselves.

    An attempt that seems to run may do so on a node that Slurm has lost, or was killed: its files stay.
    """
    prefixes = tuple(f"{unit_prefix}{job.instance['unit']}." for job in jobs)
    attempts = [
        path
        for path in ATTEMPT.glob(run_directory, attempt=f"{unit_prefix}*")
        if path.name.startswith(prefixes) and _has_ended(path)
    ]
    ended = {path.stem for path in attempts}
    readings = READINGS.child(f"{unit_prefix}*.jsonl").glob(run_directory)
    return [
        *(job.record_path for job in jobs if job.record_path.is_file()),
        *attempts,
        *(path for path in readings if path.name.partition("@")[0] in ended),
    ]


def _has_ended(path: Path) -> bool:
    try:
        return Attempt.load(path).status != "running"
    except InputError:  # it is broken: the report names the file
        return False


def run_batch(name: str, options: argparse.Namespace) -> None:
    """Run one step for each unit of a batch whose record is not up to date.

    In the paths of inputs, outputs and record `%unit` stands for the unit. What the units wrote is listed in the file
    `--batch`, which says for Snakemake that all are done; the records are the units' own, move into the archive of the
    batch and are listed next to it. Small outputs of many units move into another. How many run side by side changes
    nothing of what is written.

    Raises:
        InputError: a problem of a unit; those that were finished are not done again.
    """
    jobs = [_build_unit_job(name, options, listing.stem) for listing in expand_paths(options.units)]
    run_directory, unit_prefix = jobs[0].run_directory, jobs[0].unit_prefix
    store = FileStore(run_directory, unit_prefix)
    _execute_jobs([job for job in jobs if not is_up_to_date(job, store)])
    names = [job.recorded_path(job.record_path) for job in jobs]
    instance = dict(pair.split("=", 1) for pair in options.instance)
    store.archive(f"{unit_prefix}{instance['batch']}", _list_unit_files(run_directory, unit_prefix, jobs))
    store = FileStore(run_directory, unit_prefix)
    records = [Record.load(store.find(name)) for name in names]
    OutputArchives(run_directory, PurePath(records[0].outputs[0].path).parents[1], unit_prefix).add(
        f"{unit_prefix}{instance['batch']}", [path for job in jobs for path in job.outputs.values()]
    )
    batch = Path(options.batch)
    UnitRecords(
        step=name,
        instance=instance,
        records=tuple(FileReference(path, hash_file(store.find(path))) for path in names),
    ).write(UNIT_RECORDS.path(run_directory, job=batch.stem))
    BatchRecord(
        step=name,
        instance=instance,
        settings_digest=settings_digest(options.settings),
        code_version=options.code,
        environment_version=options.environment,
        of=options.of,
        outputs=tuple(BatchFile(entry.path, entry.bytes) for record in records for entry in record.outputs),
    ).write(batch)


def _archive_folder(job: Job, folder: Path) -> None:
    """Move the small files of an output folder, one for each of many units, into an archive of the job."""
    files = list_files(folder)
    archives = OutputArchives(job.run_directory, PurePath(job.recorded_path(folder)).parent, job.record_path.stem)
    earlier = {path for path in archives.archived if path.startswith(f"{job.recorded_path(folder)}/")}
    archives.remove(earlier - {*map(job.recorded_path, files)})
    archives.add(job.record_path.stem, files)


def main(arguments: Sequence[str]) -> int:
    """Run one step from its command line and return the exit code.

    Raises:
        InputError: a user's mistake, in one sentence.
    """
    # Else pydantic looks for plugins in everything that is installed, which opens hundreds of files.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    parser = argparse.ArgumentParser(prog="python -m pipeline")
    parser.add_argument("stage")
    parser.add_argument("step")
    parser.add_argument("--settings", required=True, help="the step's settings, JSON")
    parser.add_argument("--operation", default="{}", help="those of its settings that change no result, JSON")
    parser.add_argument("--code", required=True, help="the code version that the job was planned with")
    parser.add_argument("--environment", required=True, help="the environment version that the job was planned with")
    parser.add_argument("--instance", nargs="*", default=[], help="NAME=VALUE: which corpus, source, model, …")
    parser.add_argument("--input", nargs="+", action="append", default=[], metavar=("NAME", "PATH"))
    parser.add_argument("--output", nargs=2, action="append", default=[], metavar=("NAME", "PATH"))
    parser.add_argument("--record", required=True, help="where the record of this job goes")
    parser.add_argument("--launch", help="how to start one process per device")
    parser.add_argument("--staging", help="a folder on a disk of each node, for a copy of the tokens")
    parser.add_argument("--platform", help="the file of workflow/platforms whose devices and variables training gets")
    parser.add_argument("--scratch", help="a directory that survives failed attempts")
    parser.add_argument("--recovery", help="where recovery checkpoints go, if not below --scratch")
    parser.add_argument("--private", help="a file outside the results, which no record lists as an output")
    parser.add_argument("--raw", help="the folder of a source's raw files")
    parser.add_argument("--units", nargs="+", default=[], help="the units, files of the listing, of a batch")
    parser.add_argument("--batch", help="where a batch writes what its units wrote")
    parser.add_argument("--of", help="the hash of what the batch was planned to read")
    options = parser.parse_args(arguments)
    name = f"{options.stage}.{options.step}"
    if not (PACKAGE / options.stage / f"{options.step}.py").is_file():
        raise InputError(f"there is no step {name}: the stages are folders of pipeline/")
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # a job of Slurm stops in its own way, see slurm/requeue.py
        signal.signal(signal.SIGTERM, _exit_on_signal)
    if options.batch:
        run_batch(name, options)
    else:
        job = Job(name, options)
        job.execute()
        for folder in (path for path in job.outputs.values() if path.is_dir()):
            _archive_folder(job, folder)
    return 0
