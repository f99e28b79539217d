"""Time, energy and carbon of a run: of the jobs whose outputs stand, and of every other attempt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.energy.carbon import carbon_grams
from pipeline.report.read import Artefact, Json, Material
from pipeline.report.settings import PageSettings


@dataclass
class Consumption:
    """A sum over jobs; energy in joules, kept apart by whether a meter measured it or a model estimated it."""

    name: str
    jobs: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    measured_joules: float = 0.0
    estimated_joules: float = 0.0
    unread: int = 0
    meters: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    @property
    def joules(self) -> float:
        """The sum of measured and estimated energy."""
        return self.measured_joules + self.estimated_joules

    @property
    def label(self) -> str:
        """Whether the energy is measured, estimated or both, and how many jobs have none."""
        if not self.jobs:
            return "none"
        text = " + ".join(sorted(self.kinds, reverse=True)) or "not measured"
        return f"{text}, {self.unread} jobs without a reading" if self.unread and self.kinds else text

    def add(self, job: Json) -> None:
        """Add one record or attempt."""
        self.jobs += 1
        self.wall_seconds += float(job.get("wall_seconds") or 0)
        self.cpu_seconds += float(job.get("cpu_seconds") or 0)
        energy = job.get("energy") or {}
        joules = energy.get("joules")
        meters = [meter for meter in energy.get("meters") or [] if meter.get("joules") is not None]
        if joules is None or not meters:
            self.unread += 1
            return
        measured = sum(float(meter["joules"]) for meter in meters if meter.get("measured"))
        if abs(sum(float(meter["joules"]) for meter in meters) - joules) > 1e-3 * abs(joules):
            measured = joules if energy.get("measured") else 0.0  # its meters overlap: the whole counts as one reading
        self.measured_joules += measured
        self.estimated_joules += joules - measured
        for meter in meters:
            kind = "measured" if meter.get("measured") else "estimated"
            self.kinds.add(kind)
            model = str(meter.get("model") or "").removeprefix("estimate: ")
            self.meters.add(f"{meter['meter']}, {kind}" + (f": {model}" if model else ""))


@dataclass(frozen=True)
class Attempt:
    """An attempt whose outputs do not stand, and why."""

    artefact: Artefact
    fate: str


@dataclass(frozen=True)
class Energy:
    """The energy and carbon of a run: location-based and, by the contract, market-based; None without intensity."""

    steps: list[Consumption]
    finished: Consumption
    lost: Consumption
    total: Consumption
    attempts: list[Attempt]
    facility_joules: float
    carbon_grams: float | None
    market_based_grams: float | None


def consumption(name: str, jobs: Iterable[Json]) -> Consumption:
    """Return the sum over jobs."""
    total = Consumption(name)
    for job in jobs:
        total.add(job)
    return total


def _attempt_of(artefact: Artefact) -> str:
    return artefact.link.rsplit("/", 1)[-1]


def _computed_by(record: Artefact) -> str | None:
    """Return the attempt that a record's outputs were taken over from, if they were."""
    return (record.content.get("taken_over_from") or {}).get("attempt")


def computed(material: Material, records: Iterable[Artefact]) -> list[Json]:
    """Return, for each record, what computed its outputs: itself, or the attempt that they were taken over from."""
    attempts = {_attempt_of(attempt): attempt.content for attempt in material.attempts}
    return [attempts.get(str(_computed_by(record)), record.content) for record in records]


def _taken_over(material: Material) -> list[Json]:
    """Return the attempts, of no record any more, that computed what a record of another name has taken over."""
    standing = {record.content.get("attempt") for record in material.records}
    taken = {_computed_by(record) for record in material.records} - standing
    return [attempt.content for attempt in material.attempts if _attempt_of(attempt) in taken]


def lost_attempts(material: Material) -> list[Attempt]:
    """Return the attempts that no record stands for: failed, refused, killed, or finished and done again later."""
    standing = {record.content.get("attempt") for record in material.records}
    standing |= {_computed_by(record) for record in material.records}
    found = []
    for attempt in sorted(material.attempts, key=lambda artefact: (artefact.content["started"], artefact.link)):
        if _attempt_of(attempt) in standing:
            continue
        status = attempt.content["status"]
        if status == "running" and not attempt.content.get("ended"):
            status = "killed"
        found.append(Attempt(attempt, "finished, replaced by a later one" if status == "finished" else status))
    return found


def run_energy(material: Material, settings: PageSettings) -> Energy:
    """Return the energy of every step in the order of the pipeline, of lost attempts, and of both together."""
    steps: dict[str, list[Json]] = {}
    for record in sorted(material.records, key=lambda artefact: (artefact.content["started"], artefact.link)):
        steps.setdefault(record.content["step"], []).append(record.content)
    attempts = lost_attempts(material)
    taken_over = _taken_over(material)
    for content in taken_over:
        steps.setdefault(content["step"], []).append(content)
    finished = [*(record.content for record in material.records), *taken_over]
    lost = [attempt.artefact.content for attempt in attempts]
    total = consumption("all attempts", [*finished, *lost])
    pue = settings.pue or 1.0

    def grams(per_kwh: float | None) -> float | None:
        return None if per_kwh is None else carbon_grams(total.joules, pue=pue, grams_per_kwh=per_kwh)

    return Energy(
        steps=[consumption(name, jobs) for name, jobs in steps.items()],
        finished=consumption("jobs whose outputs stand", finished),
        lost=consumption("attempts that did not finish or were replaced", lost),
        total=total,
        attempts=attempts,
        facility_joules=total.joules * pue,
        carbon_grams=grams(settings.carbon_intensity_grams_per_kwh),
        market_based_grams=grams(settings.market_based_grams_per_kwh),
    )
