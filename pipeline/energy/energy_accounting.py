"""Read the energy accounting of a run: every figure with its interval and how it is known.

`report/energy.json` is written once, by the step `report.page`. Page, model card, crate and `trace` read it with this
module and tell all joules in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.markup import format_number
from pipeline.energy.settings import JOULES_PER_KWH

NOT_MEASURED = "not measured"
LABELS = ("measured", "estimated", "stated")


class EnergyUnit(NamedTuple):
    """A unit that amounts of some size are told in."""

    name: str
    size: float

    def format(self, amount: float, digits: int = 3) -> str:
        """Return the number of units."""
        units = amount / self.size
        rounded = float(f"{units:.{digits - 1}e}")  # 0.099997 is 0.100, as is 0.1
        return format_number(rounded if abs(rounded) <= 10**digits else units, digits)


SMALLEST_SHOWN = 0.01  # of a unit, below which the lower end of an interval has a unit of its own
JOULE = EnergyUnit("J", 1.0)
ENERGY_UNITS = (
    EnergyUnit("GWh", 1e6 * JOULES_PER_KWH),
    EnergyUnit("MWh", 1e3 * JOULES_PER_KWH),
    EnergyUnit("kWh", JOULES_PER_KWH),
    EnergyUnit("Wh", JOULES_PER_KWH / 1000),
    EnergyUnit("mWh", JOULES_PER_KWH / 1e6),
)
SMALL_UNITS = tuple(
    EnergyUnit(f"{prefix}J", size)
    for prefix, size in (("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))
)


def choose_energy_unit(joules: float) -> EnergyUnit:
    """Return the unit of an electricity bill for so many joules: kWh from 0.1 kWh on, Wh from 0.01 Wh on, else mWh."""
    for unit in ENERGY_UNITS[:2]:
        if joules >= 10 * unit.size:
            return unit
    if joules >= 0.1 * JOULES_PER_KWH or joules == 0:
        return ENERGY_UNITS[2]
    return ENERGY_UNITS[3] if joules >= 0.01 * ENERGY_UNITS[3].size else ENERGY_UNITS[4]


def choose_small_unit(joules: float) -> EnergyUnit:
    """Return joules with the prefix that fits so many, such as mJ of one token."""
    return next((unit for unit in SMALL_UNITS if joules >= unit.size), SMALL_UNITS[-1] if joules else JOULE)


class AccountingEntry(BaseModel):
    """What is read from JSON; a field that a later version adds is kept out of the way."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class EnergyFigure(AccountingEntry):
    """An amount of energy with its 95 % interval, in joules, and how much of it is known in which way.

    Without a meter, and without a model in a meter's place, nothing is known of it: it is told as not measured, and
    never as 0 J.
    """

    joules: float = 0.0
    low_joules: float = 0.0
    high_joules: float = 0.0
    measured_joules: float = 0.0
    estimated_joules: float = 0.0
    stated_joules: float = 0.0
    meters: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything, a meter or a model, gave a reading."""
        return bool(self.meters) or self.joules > 0

    @property
    def label(self) -> str:
        """Return how it is known: `measured`, or `80 % measured, 20 % estimated`."""
        if not self.is_known:
            return NOT_MEASURED
        amounts = {name: getattr(self, f"{name}_joules") for name in LABELS}
        parts = {name: amount for name, amount in amounts.items() if amount > 0}
        if len(parts) <= 1:
            return next(iter(parts), "measured" if any("measured" in meter for meter in self.meters) else "estimated")
        return ", ".join(f"{_format_share(amount, sum(parts.values()))} {name}" for name, amount in parts.items())

    @property
    def value(self) -> str:
        """Return the amount alone, such as `12.3 kWh`."""
        unit = choose_energy_unit(self.joules)
        return f"{unit.format(self.joules)} {unit.name}" if self.is_known else NOT_MEASURED

    @property
    def interval(self) -> str:
        """Return the 95 % interval, such as `11.9 to 12.8 kWh`; nothing where it is narrower than the digits shown."""
        unit, smaller = choose_energy_unit(self.joules), choose_energy_unit(self.low_joules)
        interval = self.interval_in(unit)
        if interval and 0 < self.low_joules < SMALLEST_SHOWN * unit.size:
            interval = f"{smaller.format(self.low_joules)} {smaller.name} to {unit.format(self.high_joules)}"
        return f"{interval} {unit.name}" if interval else ""

    @property
    def small(self) -> str:
        """Return a small amount, such as that of one token, in joules with a prefix, interval and label."""
        return self.text(choose_small_unit(self.joules))

    def interval_in(self, unit: EnergyUnit) -> str:
        """Return the numbers of the interval in a unit."""
        low, high = unit.format(self.low_joules), unit.format(self.high_joules)
        return "" if low == high == unit.format(self.joules) else f"{low} to {high}"

    def text(self, unit: EnergyUnit | None = None) -> str:
        """Return amount, interval and label: `12.3 kWh (11.9 to 12.8; 80 % measured, 20 % estimated)`."""
        if not self.is_known:
            return NOT_MEASURED
        unit = unit or choose_energy_unit(self.joules)
        known = "; ".join(part for part in (self.interval_in(unit), self.label) if part)
        return f"{unit.format(self.joules)} {unit.name} ({known})"

    def scale(self, factor: float) -> EnergyFigure:
        """Return so many times as much, such as with the overhead of a building or of one document of many."""
        numbers = {name: value * factor for name, value in self if isinstance(value, float)}
        return self.model_copy(update=numbers)


def _format_share(part: float, whole: float) -> str:
    """Return a share in whole per cent; one that is neither nothing nor all is never rounded to that."""
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1 %"
    return ">99 %" if 99 < share < 100 else f"{share:.0f} %"


def sum_energy(figures: Iterable[EnergyFigure]) -> EnergyFigure:
    """Return the sum of figures that the account tells apart; labels stay, and what is not known adds nothing.

    The ends of the intervals are added: one meter or model is wrong in the same way each time, so nothing evens out.
    """
    known = [figure for figure in figures if figure.is_known]
    names = [name for name in EnergyFigure.model_fields if name != "meters"]
    sums: dict[str, Any] = {name: sum(getattr(figure, name) for figure in known) for name in names}
    return EnergyFigure(**sums, meters=tuple(sorted({meter for figure in known for meter in figure.meters})))


class AttemptEnergy(EnergyFigure):
    """The energy of one attempt at a job; `fate` is finished, lost, or snakemake for Snakemake's own process."""

    step: str
    instance: dict[str, str] = {}
    fate: str


class NodePowerPeriod(AccountingEntry):
    """The power of a node between two moments of Unix time, by component, and the joules of each job in it."""

    node: str
    started: float
    ended: float
    watts: dict[str, float]
    jobs: dict[str, float] = {}


class Coverage(AccountingEntry):
    """Seconds of nodes that jobs ran on, and how many of them a meter saw."""

    node_seconds: float = 0.0
    measured_node_seconds: float = 0.0


class IntensityPeriod(AccountingEntry):
    """A stretch of Unix time in which the run used electricity, and the grid's grams of CO2 equivalent per kWh then."""

    started: float
    ended: float
    grams_per_kwh: float | None
    joules: float


class CarbonIntensity(AccountingEntry):
    """The grid's intensity while the run used electricity, by a table; nothing is known where it has no grams."""

    name: str
    sha256: str
    stretches: list[IntensityPeriod] = []

    @property
    def known(self) -> list[IntensityPeriod]:
        """The stretches whose intensity is known."""
        return [stretch for stretch in self.stretches if stretch.grams_per_kwh is not None]

    @property
    def joules(self) -> float:
        """The electricity of the stretches whose intensity is known."""
        return sum(stretch.joules for stretch in self.known)

    @property
    def grams_per_kwh(self) -> float:
        """The mean of the intensities that are known, weighted by electricity; 0 where none is."""
        weighted = sum((stretch.grams_per_kwh or 0.0) * stretch.joules for stretch in self.known)
        return weighted / self.joules if self.known else 0.0


class EnergyAccounting(AccountingEntry):
    """What `report/energy.json` holds; jobs go by the file name of their attempt without `.json`."""

    total: EnergyFigure
    finished: EnergyFigure
    lost: EnergyFigure
    idle: EnergyFigure
    snakemake: EnergyFigure
    steps: dict[str, EnergyFigure]
    jobs: dict[str, AttemptEnergy]
    components: dict[str, EnergyFigure]
    nodes: dict[str, EnergyFigure]
    coverage: Coverage = Coverage()
    problems: list[str] = []
    meters: list[str] = []
    model: dict[str, Any] = {}
    timeline: list[NodePowerPeriod] = []
    training: dict[str, dict[int, float]] = {}
    intensity: CarbonIntensity | None = None

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The power models by node; one that is the same of all nodes has no name."""
        if not self.model:
            return {}
        return {"": self.model} if "idle_watts" in self.model else self.model

    def attempt_energy(self, attempt: str | None) -> EnergyFigure:
        """Return the energy of an attempt, given by the name of its file; one that is not in the account is unknown."""
        return self.jobs.get((attempt or "").removesuffix(".json"), EnergyFigure())

    def job_energy(self, step: str, **instance: str) -> EnergyFigure:
        """Return the energy of all attempts at a step whose instance has the given values, also of the lost ones.

        `step` may be the beginning of several, up to a dot, such as `corpus.`.
        """
        wanted = instance.items()
        return sum_energy(
            job
            for job in self.jobs.values()
            if (job.step.startswith(step) if step.endswith(".") else job.step == step)
            and wanted <= job.instance.items()
        )


def validate_accounting(content: object, name: str) -> EnergyAccounting:
    """Return an account read from JSON.

    Raises:
        InputError: it is none; the sentence names file and field.
    """
    try:
        return EnergyAccounting.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InputError(f"{name} is no account of energy: the field {field}: {problem['msg']}") from None


def read_energy_accounting(run_directory: Path) -> EnergyAccounting | None:
    """Return the account of a run's results; None where its report was not written yet.

    Raises:
        InputError: the file is broken.
    """
    path = run_directory / layout.ENERGY_ACCOUNT
    if not path.is_file():
        return None
    try:
        return EnergyAccounting.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        where = f"the field {field}: " if field else ""
        raise InputError(
            f"{layout.ENERGY_ACCOUNT} is no account of energy: {where}{problem['msg']}: delete it, so that the report "
            "is made again"
        ) from None
