"""Sum up attempts and their time, of kept and of lost ones; joules are those of `energy_section`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.core.records import SEGMENT, Attempt, Record
from pipeline.report.run_reader import RunReader

JobFile = TypeVar("JobFile", bound=Record | Attempt)

REPLACED = "finished, replaced by a later one"


@dataclass
class Use:
    """A sum over attempts; `lost` counts those whose outputs do not stand.

    A training holds a device per process, an evaluation one, and no other step any.
    """

    name: str
    attempts: int = 0
    lost: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    device_seconds: float = 0.0
    lost_device_seconds: float = 0.0
    of_unknown_devices: int = 0

    def add(self, job: Record | Attempt, *, is_lost: bool, devices: int | None) -> None:
        """Add one record or attempt; nobody knows the devices of a training of which no segment was finished."""
        self.attempts += 1
        self.lost += is_lost
        seconds = job.wall_seconds
        self.wall_seconds += seconds
        self.device_seconds += seconds * (devices or 0)
        self.lost_device_seconds += seconds * (devices or 0) * is_lost
        self.of_unknown_devices += devices is None
        self.cpu_seconds += job.cpu_seconds


@dataclass(frozen=True)
class LostAttempt:
    """An attempt whose outputs do not stand, and why."""

    attempt: Attempt
    fate: str


@dataclass(frozen=True)
class Consumption:
    """What each step took, in the order of the pipeline, all of them together, and the attempts that were lost."""

    steps: list[Use]
    total: Use
    attempts: list[LostAttempt]


def standing_attempts(material: RunReader) -> set[str | None]:
    """Return the attempts that a record stands for, also those whose outputs a record of another name took over."""
    return {name for record in material.records for name in (record.attempt, record.computed_by)}


def lost_attempts(material: RunReader) -> list[LostAttempt]:
    """Return the attempts that no record stands for: failed, refused, killed, or finished and done again later."""
    standing = standing_attempts(material)
    cut_off = tuple(file.link.rsplit("/", 1)[-1].removesuffix("json") for file in material.unreadable)

    def is_cut_off(attempt: Attempt) -> bool:
        return f"{attempt.name}.json".startswith(cut_off)

    found = []
    for attempt in _in_time(material.attempts):
        if f"{attempt.name}.json" in standing:
            continue
        status = attempt.status
        if status == "running" and not attempt.ended:
            status = "killed"
        if status == "finished":
            status = "finished, but its record cannot be read" if is_cut_off(attempt) else REPLACED
        found.append(LostAttempt(attempt, status))
    return found


def _in_time(jobs: Iterable[JobFile]) -> list[JobFile]:
    return sorted(jobs, key=lambda job: (job.started, job.file))


def _devices(material: RunReader) -> Callable[[Record | Attempt], int | None]:
    """Return what tells how many devices a job held; an attempt has as many as a finished segment of its model."""
    processes = {record.instance["model"]: record.counts.get("world_size") for record in _in_time(material.segments())}

    def devices(job: Record | Attempt) -> int | None:
        if job.step != SEGMENT:
            return int(job.step in ("evaluate.suites", "evaluate.baselines"))
        own: int | None = job.counts.get("world_size") if isinstance(job, Record) else None
        return own or processes.get(job.instance["model"])

    return devices


def measure_consumption(material: RunReader) -> Consumption:
    """Return the time of every step in the order of the pipeline, lost attempts among it, and of all together.

    A job that took over what another one computed counts with the little that it took itself.
    """
    own = {record.attempt for record in material.records}
    lost = lost_attempts(material)
    gone = [one.attempt for one in lost]
    taken = standing_attempts(material) - own
    others = [attempt for attempt in material.attempts if f"{attempt.name}.json" in taken]
    steps: dict[str, Use] = {}
    total = Use("all attempts")
    lost_files = {job.file for job in gone}
    devices = _devices(material)
    jobs: list[Record | Attempt] = [*material.records, *others, *gone]
    for job in _in_time(jobs):
        for use in (steps.setdefault(job.step, Use(job.step)), total):
            use.add(job, is_lost=job.file in lost_files, devices=devices(job))
    return Consumption([*steps.values()], total, lost)
