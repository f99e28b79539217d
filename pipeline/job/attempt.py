"""One try at a job: its file, heartbeat and node meter."""

from __future__ import annotations

import glob
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline import layout
from pipeline.core import attestation_log, platform_files
from pipeline.core.errors import InputError, Stopped, anonymize_paths
from pipeline.core.job_command_lines import replace_settings_by_digest
from pipeline.core.job_records import Attempt, Record
from pipeline.core.machine import describe_machine
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree, peak_memory_bytes_of_process_tree
from pipeline.energy.meter_recorder import NodeMeter, readings_file
from pipeline.energy.startup_counters import ATTEMPT_VARIABLE, NODE_VARIABLE, READINGS_VARIABLE, node_name

# One question; of the folder that the code runs from anyway git needs no proof that it is this user's.
GIT_STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")


def _read_head_commit(folder: Path) -> str | None:
    """Read the commit of a checkout from its files, without running git or reading its configuration."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # of a worktree
            git = place / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        if not git.is_dir():
            continue
        reference_line = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not reference_line.startswith("ref: "):
            return reference_line
        reference, shared = reference_line.removeprefix("ref: "), git / "commondir"
        common = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
        for base in (git, common):
            if (base / reference).is_file():
                return (base / reference).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), None)
    return None


def read_git_state() -> dict[str, Any]:
    """Return commit and dirty state of the working directory, and `reason` if they are unknown.

    Versions of git before 2.38 do not let a call name a colleague's checkout as safe, and an image may have no git: the
    commit is then read from the checkout's files, and nobody knows whether others differ.
    """
    folder = Path.cwd()
    words = ["git", "--no-optional-locks", "-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", *GIT_STATUS]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=30)
        if answer.returncode == 0:
            header = [line.split(maxsplit=2) for line in answer.stdout.splitlines() if line.startswith("# ")]
            oid = next(words[2] for words in header if words[1] == "branch.oid")
            if oid == "(initial)":
                return {"commit": None, "dirty": None, "reason": "the repository has no commit yet"}
            return {"commit": oid, "dirty": not all(line.startswith("# ") for line in answer.stdout.splitlines())}
        reason = (answer.stderr.splitlines() or ["git says nothing"])[0]
    except FileNotFoundError:
        reason = "there is no git"
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"git does not answer ({type(error).__name__})"
    try:
        commit = _read_head_commit(folder)
    except (OSError, UnicodeDecodeError) as error:
        commit, reason = None, f"{reason}; its files cannot be read ({type(error).__name__})"
    return {"commit": commit, "dirty": None, "reason": reason}


SNAKEMAKE_VARIABLE = "PIPELINE_SNAKEMAKE"
"""The environment variable with the name of the Snakemake process that started the job."""

HEARTBEAT_SECONDS = 5.0
SAMPLE_SECONDS = 2.0
SLURM_VARIABLES = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
)


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _anonymize_argument(argument: str) -> str:
    """Return only the name of an absolute path outside of the project: its folder is private."""
    path = Path(argument)
    return f"…/{path.name}" if path.is_absolute() and not path.is_relative_to(Path.cwd()) else anonymize_paths(argument)


def command_line() -> list[str]:
    """Return the command line of this process as a user would type it."""
    return ["python", "-m", "pipeline", *(_anonymize_argument(argument) for argument in sys.argv[1:])]


@cache  # all units of a batch record the state when the job began
def anonymized_git_state(folder: Path) -> dict[str, Any]:
    """Return the git state of the working directory without personal paths."""
    return {name: anonymize_paths(value) if name == "reason" else value for name, value in read_git_state().items()}


def _host_and_slurm() -> dict[str, Any]:
    slurm = {name.lower(): os.environ[name] for name in SLURM_VARIABLES if name in os.environ}
    return {"host": platform.node(), "slurm": slurm or None}


def execution_context(code: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return git commit, host, Slurm job, machine, container and modules of this job.

    `code` is the git state if the invocation recorded it: git reads every file of a checkout to find it.
    """
    return {
        **_host_and_slurm(),
        "git": anonymized_git_state(Path.cwd()) if code is None else code,
        "machine": describe_machine(),
        "container": platform_files.current_container_image(),
        "modules": os.environ.get("LOADEDMODULES", "").split(":") if os.environ.get("LOADEDMODULES") else [],
    }


@contextmanager
def _ignore_sigterm() -> Iterator[None]:
    """Ignore SIGTERM: Slurm asks to stop more than once, and a second time would leave the attempt as running.

    Until then it counts, because it ends the wait for a thread that reads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


class RunningAttempt:
    """Measures a block and keeps the file of the attempt up to date while it runs.

    It meters its node into `provenance/readings`; child processes on other nodes meter theirs. Several attempts in one
    process each count the CPU seconds since the end of the previous one.
    """

    counted_cpu_seconds = 0.0

    def __init__(self, step: str, instance: dict[str, str], run_directory: Path) -> None:
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._peak_memory_bytes = 0
        self._run_directory = run_directory
        started = _utc_now()
        stamp = started.replace(":", "").replace("-", "").replace(".", "").split("+")[0]
        name = ".".join([step, *instance.values(), stamp, str(os.getpid())])
        self.path = layout.ATTEMPT.path(run_directory, attempt=name)
        self.attempt = Attempt(
            step=step,
            instance={**instance},
            command=command_line(),
            snakemake=os.environ.get(SNAKEMAKE_VARIABLE),
            **_host_and_slurm(),
            started=started,
            last_seen=started,
            status="running",
            wall_seconds=0.0,
            cpu_seconds=0.0,
        )
        folder = run_directory.absolute() / layout.READINGS
        variables = {ATTEMPT_VARIABLE: name, READINGS_VARIABLE: str(folder), NODE_VARIABLE: node_name()}
        self._before = {variable: os.environ.get(variable) for variable in variables}
        os.environ |= variables
        self._meter = NodeMeter(readings_file(folder, name))

    def _write(self) -> None:
        self.attempt = replace(
            self.attempt,
            last_seen=_utc_now(),
            wall_seconds=round(time.monotonic() - self._began, 3),
            cpu_seconds=round(cpu_seconds_of_process_tree() - self.counted_cpu_seconds, 3),
            peak_memory_bytes=self._peak_memory_bytes,
        )
        is_finished = self.attempt.status == "finished"  # then its record has the settings
        command = replace_settings_by_digest(self.attempt.command) if is_finished else self.attempt.command
        replace(self.attempt, command=command).write(self.path)

    def _beat(self) -> None:
        written = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample_memory()
            if time.monotonic() - written >= HEARTBEAT_SECONDS:
                with suppress(OSError):  # a full disk stops what loses something by it; the next beat tries again
                    self._write()
                written = time.monotonic()

    def _sample_memory(self) -> None:
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak_memory_bytes_of_process_tree())

    def _end(self, status: str, error: str | None) -> None:
        self._sample_memory()
        self._meter.end()
        for variable, value in self._before.items():
            os.environ.pop(variable, None) if value is None else os.environ.update({variable: value})
        self.attempt = replace(self.attempt, ended=_utc_now(), status=status, error=error and anonymize_paths(error))
        try:
            self._write()
        except OSError:
            if status == "finished":
                raise
            # The exit code says what stopped the job; the file says when it was last seen.
            return
        finally:
            RunningAttempt.counted_cpu_seconds += self.attempt.cpu_seconds
        if status != "finished":  # the record attests a finished attempt
            with suppress(OSError, InputError):  # a full disk, a key that is gone: the job says it
                attestation_log.attest_attempt_end(self._run_directory, self.path, status, self._list_reading_files())

    def _list_reading_files(self) -> list[Path]:
        of_this_node = self._meter.path
        alone = os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1"
        others = [] if alone else of_this_node.parent.glob(f"{glob.escape(self.path.stem)}@*")
        return sorted({of_this_node, *others})

    def attest_record(self, path: Path, record: Record) -> None:
        """Attest the record of a step that is finished.

        Raises:
            InputError: the signing key cannot be used.
            DiskFull: the disk is full.
        """
        attestation_log.attest_finished_job(self._run_directory, self.path, self._list_reading_files(), path, record)

    def record_refusal(self, sentence: str) -> None:
        """Record that the job was refused before it began, and why."""
        self._end("refused", sentence)

    def record_failure(self, error: Exception) -> None:
        """Record why a job failed after its block."""
        self._end("failed", f"{type(error).__name__}: {error}")

    def __enter__(self) -> RunningAttempt:
        self._write()
        attestation_log.attest_attempt_begin(self._run_directory, self.path, self.attempt)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if error is None:
            self._thread.join()
            self._end("finished", None)
            return
        with _ignore_sigterm():
            self._thread.join()
            self._end("stopped" if isinstance(error, Stopped) else "failed", f"{type(error).__name__}: {error}")

    def measurements(self) -> dict[str, Any]:
        """Return times, CPU seconds, memory and file name of the attempt for the record."""
        keys = ("started", "ended", "wall_seconds", "cpu_seconds", "peak_memory_bytes")
        return {**{key: getattr(self.attempt, key) for key in keys}, "attempt": self.path.name}
