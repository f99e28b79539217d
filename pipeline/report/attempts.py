"""Sum up attempts and their time, of kept and of lost ones; joules are those of `energy_section`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.report.run_reader import Artefact, Json, RunReader

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

    def add(self, job: Json, *, is_lost: bool, devices: int | None) -> None:
        """Add one record or attempt; nobody knows the devices of a training of which no segment was finished."""
        self.attempts += 1
        self.lost += is_lost
        seconds = float(job.get("wall_seconds") or 0)
        self.wall_seconds += seconds
        self.device_seconds += seconds * (devices or 0)
        self.lost_device_seconds += seconds * (devices or 0) * is_lost
        self.of_unknown_devices += devices is None
        self.cpu_seconds += float(job.get("cpu_seconds") or 0)


@dataclass(frozen=True)
class LostAttempt:
    """An attempt whose outputs do not stand, and why."""

    artefact: Artefact
    fate: str


@dataclass(frozen=True)
class Consumption:
    """What each step took, in the order of the pipeline, all of them together, and the attempts that were lost."""

    steps: list[Use]
    total: Use
    attempts: list[LostAttempt]


def attempt_name(artefact: Artefact) -> str:
    """Return the name of an attempt's file."""
    return artefact.link.rsplit("/", 1)[-1]


def computing_attempt(record: Artefact) -> str | None:
    """Return the attempt that computed a record's outputs: its own, or the one that they were taken over from."""
    return _taken_over_from(record) or record.content.get("attempt")


def _taken_over_from(record: Artefact) -> str | None:
    return (record.content.get("taken_over_from") or {}).get("attempt")


def standing_attempts(material: RunReader) -> set[str | None]:
    """Return the attempts that a record stands for, also those whose outputs a record of another name took over."""
    return {name for record in material.records for name in (record.content.get("attempt"), _taken_over_from(record))}


def lost_attempts(material: RunReader) -> list[LostAttempt]:
    """Return the attempts that no record stands for: failed, refused, killed, or finished and done again later."""
    standing = standing_attempts(material)
    cut_off = tuple(file.link.rsplit("/", 1)[-1].removesuffix("json") for file in material.unreadable)

    def is_cut_off(attempt: Artefact) -> bool:
        return attempt_name(attempt).startswith(cut_off)

    found = []
    for attempt in _in_time(material.attempts):
        if attempt_name(attempt) in standing:
            continue
        status = attempt.content["status"]
        if status == "running" and not attempt.content.get("ended"):
            status = "killed"
        if status == "finished":
            status = "finished, but its record cannot be read" if is_cut_off(attempt) else REPLACED
        found.append(LostAttempt(attempt, status))
    return found


def _in_time(artefacts: Iterable[Artefact]) -> list[Artefact]:
    return sorted(artefacts, key=lambda artefact: (artefact.content["started"], artefact.link))


def _devices(material: RunReader) -> Callable[[Json], int | None]:
    """Return what tells how many devices a job held; an attempt has as many as a finished segment of its model."""
    processes = {
        record.content["instance"]["model"]: (record.content.get("counts") or {}).get("world_size")
        for record in _in_time(material.records_of("pretrain.segment"))
    }

    def devices(job: Json) -> int | None:
        if job["step"] != "pretrain.segment":
            return int(job["step"] in ("evaluate.suites", "evaluate.baselines"))
        return (job.get("counts") or {}).get("world_size") or processes.get(job["instance"]["model"])

    return devices


def measure_consumption(material: RunReader) -> Consumption:
    """Return the time of every step in the order of the pipeline, lost attempts among it, and of all together.

    A job that took over what another one computed counts with the little that it took itself.
    """
    own = {record.content.get("attempt") for record in material.records}
    lost = lost_attempts(material)
    gone = [attempt.artefact for attempt in lost]
    taken = standing_attempts(material) - own
    others = [attempt for attempt in material.attempts if attempt_name(attempt) in taken]
    steps: dict[str, Use] = {}
    total = Use("all attempts")
    lost_links = {job.link for job in gone}
    devices = _devices(material)
    for job in _in_time([*material.records, *others, *gone]):
        name = job.content["step"]
        for use in (steps.setdefault(name, Use(name)), total):
            use.add(job.content, is_lost=job.link in lost_links, devices=devices(job.content))
    return Consumption([*steps.values()], total, lost)
