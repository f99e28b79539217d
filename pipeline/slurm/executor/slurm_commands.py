"""Call Slurm's commands: submit an allocation, query the queue, explain why jobs wait, and cancel them.

The answer of `sbatch` is one of four outcomes: taken, full, silent or refused. One query returns the states of all jobs
of an invocation, because the controller serves many users.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.slurm.executor.host_interface import SlurmError
from pipeline.slurm.executor.slurm_environment import clean_environment

SBATCH_SECONDS = 300
# slurm_errno.c: the messages of sbatch when its request may not have arrived.
NO_ANSWER = re.compile(
    r"unable to contact|timed out|zero bytes|communication|connection|not connected|unexpected m|authentica"
    r"|configuration source|standby mode|insane message|message (send|receive) failure|header lengths",
    re.I,
)
# Messages about the number of jobs, which passes.
QUEUE_FULL = re.compile(r"job submit limit|temporarily un|try again|too many jobs", re.I)
# The limit of a QOS or an association that sbatch names passes if it is one on the number of jobs.
LIMIT_NAME = re.compile(r"\b(?:QOS|Assoc)[A-Z]\w+")
JOB_COUNT_LIMIT = re.compile(r"MaxSubmit|GrpSubmit|MaxJobs|GrpJobs")

QUERY_SECONDS = 120
CANCEL_TRIES, CANCEL_SECONDS = 3, 10.0
# Why jobs wait (squeue(1), JOB REASON CODES), and what the user can do.
WAIT_REASONS = {
    "PartitionTimeLimit": "more time is asked for than the partition gives",
    "PartitionNodeLimit": "more nodes are asked for than the partition gives",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs",
    "BadConstraints": "no node has what is asked for",
    "ReqNodeNotAvail": "nodes that are needed are down or reserved",
    "Nodes required for job are DOWN": "the nodes are down, drained or reserved",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
    "AssocMaxJobsLimit": "the account has as many jobs as it may have",
    "QOSMaxJobsPerUserLimit": "the QOS allows a user no more jobs at once",
    "JobHeldAdmin": "held by an administrator: contact them",
    "JobHeldUser": "held: scontrol release {job}",
    "launch_failed_requeued_held": "the start failed and Slurm holds the job: scontrol release {job}",
    "Resources": "other jobs have the nodes",
    "Priority": "other jobs come first",
}
# Of these only time has to pass, and not much of it before a job starts or another reason is given.
USUAL_REASONS = {"None", "Resources", "Priority", "BeginTime", "Cleaning", "Prolog", "Dependency", "Licenses"}
SHOWN_JOBS = 4  # of a group that waits for the same reason

SubmissionOutcome = Literal["taken", "full", "silent", "refused"]


@dataclass(frozen=True)
class SubmissionAnswer:
    """The outcome of a submission: the number of the job if it was taken, else the message of Slurm."""

    outcome: SubmissionOutcome
    number: str = ""
    said: str = ""


def run_slurm_command(
    words: Sequence[str], seconds: float, *, script: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm without the options of the user's environment, and with these variables.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it does not answer in so many seconds.
    """
    environment = {**clean_environment(), **variables}
    return subprocess.run(
        words,
        input=script,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # of what a site prints
        timeout=seconds,
        start_new_session=True,  # an interrupt of the terminal must not end a submission that may have been taken
    )


def parse_sbatch_answer(code: int, printed: str, said: str) -> SubmissionAnswer:
    """Return the outcome of sbatch by its exit code, the printed number and its messages."""
    # `4711` or `4711;CLUSTER`; a site may print more lines around it.
    numbers = re.findall(r"^(\d+)(?:;\S+)?[ \t\r]*$", printed, re.MULTILINE)
    words = " ".join(said.split()).replace("sbatch: error: ", "")
    if code == 0 and numbers:
        return SubmissionAnswer("taken", number=numbers[-1])
    if NO_ANSWER.search(said):
        return SubmissionAnswer("silent", said=words)
    limits = LIMIT_NAME.findall(said)
    if all(map(JOB_COUNT_LIMIT.search, limits)) if limits else QUEUE_FULL.search(said):
        return SubmissionAnswer("full", said=words)
    return SubmissionAnswer("refused", said=words or f"sbatch ends with {code}")


def sbatch_options(resources: Mapping[str, Any]) -> list[str]:
    """Return the options of sbatch for the resources of a job, by the names of Snakemake's Slurm plugin."""
    given = {
        "--partition": resources.get("slurm_partition"),
        "--account": resources.get("slurm_account"),
        "--time": resources.get("runtime"),
        "--mem": None if resources.get("cpu_mem_mb") else resources.get("mem_mb"),
        "--nodes": resources.get("nodes"),
        "--ntasks": resources.get("tasks") or 1,
        "--cpus-per-task": resources.get("cpus_per_task"),
        "--gres": resources.get("gres"),
        "--constraint": resources.get("constraint"),
        "--qos": resources.get("qos"),
        "--reservation": resources.get("reservation"),
    }
    return [f"{name}={value}" for name, value in given.items() if value] + shlex.split(
        resources.get("slurm_extra") or ""
    )


def submit_batch(words: Sequence[str], script: str, workdir: Path) -> SubmissionAnswer:
    """Submit a batch script with these options of sbatch and return the outcome."""
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={workdir}", *words]
    try:
        done = run_slurm_command(command, SBATCH_SECONDS, script=script)
    except subprocess.TimeoutExpired:
        return SubmissionAnswer("silent", said=f"sbatch has not answered for {SBATCH_SECONDS} seconds")
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | PermissionError)
        outcome: SubmissionOutcome = "refused" if is_missing else "silent"
        return SubmissionAnswer(outcome, said=f"sbatch cannot be started ({error.strerror})")
    return parse_sbatch_answer(done.returncode, done.stdout, done.stderr)


def ask_sbatch(words: Sequence[str]) -> SubmissionAnswer:
    """Return what sbatch would answer to a job with these options, without a submission."""
    command = ["sbatch", "--test-only", *words, "--wrap=true"]
    try:
        done = run_slurm_command(command, QUERY_SECONDS)
    except subprocess.TimeoutExpired:
        return SubmissionAnswer("silent", said=f"sbatch has not answered for {QUERY_SECONDS} seconds")
    except OSError as error:
        return SubmissionAnswer("refused", said=f"sbatch cannot be started ({error.strerror})")
    return parse_sbatch_answer(done.returncode, "0" if done.returncode == 0 else "", done.stderr)


class QueuedJob(NamedTuple):
    """A job in squeue: its state, the reason for the state, and its comment."""

    state: str
    reason: str
    comment: str


def query_jobs(names: list[str], *, ended: bool = False) -> dict[str, QueuedJob] | None:
    """Return the waiting and running jobs of these names, by number; None if Slurm does not answer.

    `ended` adds ended jobs, which Slurm keeps for some minutes (MinJobAge).

    Raises:
        SlurmError: there is no squeue.
    """
    # Without --all it hides a user's own jobs in a partition that is hidden.
    words = ["squeue", "--all", "--noheader", f"--name={','.join(names)}", "--format=%A|%T|%r|%k"]
    try:
        done = run_slurm_command([*words, *(["--states=all"] if ended else [])], QUERY_SECONDS)
    except FileNotFoundError:
        raise SlurmError("there is no squeue, but jobs of this run may exist: use a node that has Slurm") from None
    except (OSError, subprocess.TimeoutExpired):  # such as: no process can be started now
        return None
    if done.returncode != 0:
        return None
    # The first line of a comment is enough: the others are no rows.
    rows = (match.groups() for match in re.finditer(r"^(\d+)\|([^|\n]*)\|([^|\n]*)\|(.*)", done.stdout, re.MULTILINE))
    return {number: QueuedJob(state, reason, comment) for number, state, reason, comment in rows}


def query_configuration() -> str:
    """Return what `scontrol show config` prints; nothing if there is no Slurm, or it does not answer."""
    try:
        done = run_slurm_command(["scontrol", "show", "config"], QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_requeued_codes(configuration: str) -> list[int]:
    """Return the exit codes with which a job does not end: Slurm starts it again, or holds it."""
    ranges = re.findall(r"^RequeueExit(?:Hold)?\s*=\s*(\d[\d,-]*)", configuration, re.MULTILINE)
    ends = [(first, last or first) for first, last in re.findall(r"(\d+)(?:-(\d+))?", ",".join(ranges))]
    return sorted({code for first, last in ends for code in range(int(first), int(last) + 1)})


def query_exit_code(number: str) -> int | None:
    """Return the exit code of an ended job; None if Slurm has forgotten it."""
    try:
        done = run_slurm_command(["scontrol", "--oneliner", "show", "job", number], QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bExitCode=(\d+):", done.stdout)
    return int(match[1]) if match else None


def cancel_jobs(name: str) -> str:
    """Cancel all jobs of that name; return the error message, or nothing."""
    problem = ""
    for attempt in range(CANCEL_TRIES):
        time.sleep(CANCEL_SECONDS if attempt else 0)
        try:
            done = run_slurm_command(["scancel", f"--name={name}"], QUERY_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            continue
        if done.returncode == 0:
            return ""
        problem = " ".join(done.stderr.split())
    return problem


def explain_wait(numbers: Sequence[str], reason: str) -> str:
    """Return why these jobs wait, what the user can do, and Slurm's own word for it."""
    # Slurm adds the nodes to some reasons: ReqNodeNotAvail, UnavailableNodes:gcn4
    known = WAIT_REASONS.get(reason.split(",")[0], "see squeue --start").format(job=",".join(numbers))
    return f"{known} ({reason})"


class WaitMonitor:
    """Warn of jobs that wait: at once where time alone does not help, else where they wait too long.

    Jobs that wait for the same reason are one sentence, which is not repeated for those that come to wait for it later.

    Args:
        seconds: how long a job may wait for its turn before the warning, once for each time in the queue.
        warn: prints a sentence.
    """

    def __init__(self, seconds: float, warn: Callable[[str], None]) -> None:
        self.seconds, self.warn = seconds, warn
        self._since: dict[str, float] = {}
        self._late: set[str] = set()
        self._unusual: set[str] = set()

    def warn_of_waiting_jobs(self, queue: Mapping[str, QueuedJob]) -> None:
        """Warn of the jobs that wait; call it with every answer of squeue."""
        now = time.monotonic()
        pending = {number: job for number, job in queue.items() if job.state == "PENDING"}
        self._since = {number: self._since.get(number, now) for number in pending}
        self._late &= pending.keys()
        by_reason: dict[str, list[str]] = {}
        for number, job in sorted(pending.items(), key=lambda one: int(one[0])):
            by_reason.setdefault(job.reason, []).append(number)
        for reason, numbers in by_reason.items():
            late = [number for number in numbers if now - self._since[number] >= self.seconds]
            if reason.split(",")[0] not in USUAL_REASONS | self._unusual:
                self._unusual.add(reason.split(",")[0])
                self._late |= {*late}
                self.warn(f"{self._describe(numbers, pending)}: {explain_wait(numbers, reason)}")
            elif late := [number for number in late if number not in self._late]:
                self._late |= {*late}
                minutes = (now - min(self._since[number] for number in late)) / 60
                self.warn(
                    f"{self._describe(late, pending)}, {minutes:.0f} minutes now: {explain_wait(late, reason)}; wait, "
                    "or end snakemake (Ctrl-C cancels its jobs), change what is asked for and start again"
                )

    @staticmethod
    def _describe(numbers: Sequence[str], jobs: Mapping[str, QueuedJob]) -> str:
        if len(numbers) == 1:
            return f"job {numbers[0]} ({jobs[numbers[0]].comment}) waits for its start"
        more = f" and {len(numbers) - SHOWN_JOBS} more" if len(numbers) > SHOWN_JOBS else ""
        return f"{len(numbers)} jobs wait for their start ({', '.join(numbers[:SHOWN_JOBS])}{more})"
