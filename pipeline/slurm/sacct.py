"""Query Slurm's accounting for jobs: all allocations of each job, and why each ended.

A requeued job has several allocations; `sacct -D` lists all of them, and their sum is the cost of the job.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise

from pydantic import BaseModel

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.slurm_energy import parse_joules
from pipeline.slurm.executor.host_interface import CAUSES, ENDED_STATES, Cause
from pipeline.slurm.executor.slurm_commands import run_slurm_command
from pipeline.slurm.output_parsing import count_gpus, list_hosts, parse_bytes, parse_seconds, parse_state, parse_tres

FIELDS = (
    *("JobIDRaw", "Comment", "State", "ExitCode", "Partition", "Submit", "Start", "End", "ElapsedRaw", "TotalCPU"),
    *("CPUTimeRAW", "MaxRSS", "NTasks", "NNodes", "NodeList", "AllocTRES", "TRESUsageInAve", "ConsumedEnergyRaw"),
    *("TimelimitRaw", "Reason"),
)
COMMENT = FIELDS.index("Comment")  # the only one that may have | or a line end in it
MEMORY_SHARE = 0.95  # of the request; a failure above it is one of memory, which Slurm without cgroups calls FAILED


class AccountedAllocation(BaseModel):
    """One allocation of a job; values that were not measured are None.

    Memory is that of all nodes. The peak is the sum of the peaks of the batch script and of the largest step, each over
    its tasks, since they run at the same time: the job has never had more.
    """

    state: str
    exit_code: int
    signal: int
    reason: str | None
    partition: str
    submitted: str | None
    started: str | None
    ended: str | None
    elapsed_seconds: float
    cpu_seconds: float
    allocated_cpu_seconds: float
    nodes: int
    node_list: str | None
    tres: dict[str, str]
    requested_memory_bytes: int | None
    peak_memory_bytes: int | None
    time_limit_seconds: float | None
    gpu_utilization: float | None
    energy_joules: float | None
    energy_said: str = ""

    @property
    def cpus(self) -> int:
        """Logical processors of all nodes together."""
        return int(self.tres.get("cpu", 0))

    @property
    def gpus(self) -> int:
        return count_gpus(",".join(f"{name}={value}" for name, value in self.tres.items()))

    @property
    def billing(self) -> float | None:
        """Billed units per second: cores, unless the site has other weights."""
        billing = self.tres.get("billing", "")
        return float(billing) if re.fullmatch(r"\d+(\.\d+)?", billing) else None

    @property
    def is_over(self) -> bool:
        """Whether it has ended and will not be requeued."""
        return self.state in ENDED_STATES and self.ended is not None

    @property
    def cause(self) -> Cause:
        peak, requested = self.peak_memory_bytes, self.requested_memory_bytes
        if self.state == "FAILED" and peak and requested and peak >= MEMORY_SHARE * requested:
            return "memory"
        return CAUSES.get(self.state, "failed")


class AccountedJob(BaseModel):
    """A job with its allocations, the first one first; `comment` has rule and wildcards if Slurm keeps it."""

    job: str
    comment: str | None
    allocations: list[AccountedAllocation]


def _utc_time(text: str) -> str | None:
    return datetime.fromtimestamp(int(text), UTC).isoformat() if text.isdigit() else None


def _peak_memory(steps: list[dict[str, str]]) -> int | None:
    """Return the peak memory of the batch script and of the largest step, in bytes."""
    peaks: dict[bool, int] = {}
    for step in steps:
        peak = parse_bytes(step["MaxRSS"])
        if peak:
            is_batch = step["JobIDRaw"].endswith(".batch")
            peaks[is_batch] = max(peaks.get(is_batch, 0), peak * int(step["NTasks"] or 1))
    return sum(peaks.values()) or None


def _select_energy(row: dict[str, str], steps: list[dict[str, str]]) -> str:
    """Return sacct's energy of all nodes of an allocation, from its start to its end.

    A plugin that reads nodes reports for each step the energy of its nodes, whoever used it. The step `extern`, if a
    cluster has it, covers all nodes all the time; so does `batch` on one node. The row of the allocation is the sum of
    the steps of srun: it is empty without steps, omits the time between them, counts a node twice for parallel steps,
    and counts everything twice in an older Slurm that adds `extern`.
    """
    with_energy = {
        step["JobIDRaw"].rpartition(".")[2]: step for step in steps if parse_joules(step["ConsumedEnergyRaw"])
    }
    for name in ("extern", *(["batch"] if row["NNodes"] == "1" else [])):
        if name in with_energy:
            return with_energy[name]["ConsumedEnergyRaw"]
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step in (step for name, step in with_energy.items() if name.isdigit() and step["End"].isdigit()):
        for node in list_hosts(step["NodeList"]):
            spans[node].append((int(step["Start"]), int(step["End"])))
    if any(start < end for on in spans.values() for (_, end), (start, _) in pairwise(sorted(on))):
        return f"{row['ConsumedEnergyRaw']} for parallel steps, each with the whole energy of its nodes"
    return row["ConsumedEnergyRaw"]


def _make_allocation(row: dict[str, str], steps: list[dict[str, str]]) -> AccountedAllocation:
    energy = _select_energy(row, steps)
    exit_code, _, signal = row["ExitCode"].partition(":")
    allocated = parse_tres(row["AllocTRES"])
    shares = [float(share) for step in steps if (share := parse_tres(step["TRESUsageInAve"]).get("gres/gpuutil"))]
    return AccountedAllocation(
        state=parse_state(row["State"]),
        exit_code=int(exit_code or 0),
        signal=int(signal or 0),
        reason=row["Reason"] if row["Reason"] not in ("", "None") else None,
        partition=row["Partition"],
        submitted=_utc_time(row["Submit"]),
        started=_utc_time(row["Start"]),
        ended=_utc_time(row["End"]),
        elapsed_seconds=float(row["ElapsedRaw"] or 0),
        cpu_seconds=round(parse_seconds(row["TotalCPU"]) or 0.0, 3),
        allocated_cpu_seconds=float(row["CPUTimeRAW"] or 0),
        nodes=int(row["NNodes"] or 0),
        node_list=row["NodeList"] if list_hosts(row["NodeList"]) else None,
        tres=allocated,
        requested_memory_bytes=parse_bytes(allocated.get("mem", ""), "M"),
        peak_memory_bytes=_peak_memory(steps),
        time_limit_seconds=60.0 * int(row["TimelimitRaw"]) if row["TimelimitRaw"].isdigit() else None,
        gpu_utilization=max(shares) / 100 if shares else None,
        energy_joules=parse_joules(energy),
        energy_said=energy,
    )


def _split_rows(text: str) -> list[str]:
    """Return the rows that sacct printed; the comment of a job may have several lines."""
    rows: list[str] = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        is_whole = not rows or rows[-1].count("|") >= len(FIELDS) - 1
        if is_whole or re.match(r"\d+(\.\w+)?\|", line) or not re.match(r"\d+\|", rows[-1]):
            rows.append(line)
        else:
            rows[-1] += f"\n{line}"
    return rows


def parse_sacct(text: str) -> dict[str, AccountedJob]:
    """Return the jobs in the output of sacct: a row for each allocation, then the rows of its steps.

    Raises:
        InputError: a row is truncated, or is not a row.
    """
    jobs: dict[str, AccountedJob] = {}
    groups: list[list[dict[str, str]]] = []
    for line in _split_rows(text):
        cells = line.split("|")
        if (more := len(cells) - len(FIELDS)) < 0:
            raise InputError(
                f"sacct has printed {line[:80]!r}, which is not a row of {len(FIELDS)} fields: try again later"
            )
        cells[COMMENT : COMMENT + 1 + more] = ["|".join(cells[COMMENT : COMMENT + 1 + more])]
        row = dict(zip(FIELDS, cells, strict=True))
        if "." not in row["JobIDRaw"]:
            groups.append([row])
        elif groups:
            groups[-1].append(row)
    for row, *steps in groups:
        job = jobs.setdefault(row["JobIDRaw"], AccountedJob(job=row["JobIDRaw"], comment=None, allocations=[]))
        job.comment = row["Comment"] or job.comment
        job.allocations.append(_make_allocation(row, steps))
    return jobs


def query_sacct(names: list[str], since: datetime) -> dict[str, AccountedJob]:
    """Return the jobs of these names since a time, by number, with one query.

    Raises:
        InputError: there is no sacct, it does not answer, or this cluster has no accounting.
    """
    words = ["sacct", "--duplicates", "--noheader", "--parsable2", "--noconvert", f"--name={','.join(names)}"]
    words += [f"--starttime={since.astimezone():%Y-%m-%dT%H:%M:%S}", f"--format={','.join(FIELDS)}"]
    try:
        done = run_slurm_command(words, 300, SLURM_TIME_FORMAT="%s")
    except FileNotFoundError:
        raise InputError("there is no sacct here: collect the accounting on a node that has Slurm") from None
    except subprocess.TimeoutExpired:
        raise InputError("sacct has not answered for five minutes: collect the accounting later") from None
    except OSError as error:
        raise InputError(f"sacct cannot be started ({error.strerror}): collect the accounting later") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        cause = said[-1].removeprefix("sacct: error: ")
        raise InputError(f"Slurm's accounting does not answer ({cause}): try again later")
    return parse_sacct(done.stdout)
