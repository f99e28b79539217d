"""Read the energy accounting of a run, and format its figures with their interval and label.

The step `report.page` writes `report/energy.json`. Page, model card, crate and `trace` read and format it here.
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
    """A unit of energy; `size` is in joules."""

    name: str
    size: float

    def format(self, amount: float, digits: int = 3) -> str:
        """Format an amount of joules as a number of units."""
        units = amount / self.size
        rounded = float(f"{units:.{digits - 1}e}")  # 0.099997 is 0.100, as is 0.1
        return format_number(rounded if abs(rounded) <= 10**digits else units, digits)


SMALLEST_SHOWN = 0.01  # of a unit: a lower end of an interval below it gets its own unit
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
    """Choose the unit of an electricity bill: kWh from 0.1 kWh on, Wh from 0.01 Wh on, else mWh."""
    for unit in ENERGY_UNITS[:2]:
        if joules >= 10 * unit.size:
            return unit
    if joules >= 0.1 * JOULES_PER_KWH or joules == 0:
        return ENERGY_UNITS[2]
    return ENERGY_UNITS[3] if joules >= 0.01 * ENERGY_UNITS[3].size else ENERGY_UNITS[4]


def choose_small_unit(joules: float) -> EnergyUnit:
    """Choose the prefix of joules for a small amount, such as mJ for one token."""
    return next((unit for unit in SMALL_UNITS if joules >= unit.size), SMALL_UNITS[-1] if joules else JOULE)


class AccountingEntry(BaseModel):
    """The base of what is read from JSON; it ignores fields of later versions."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class EnergyFigure(AccountingEntry):
    """An amount of energy in joules, with its 95 % interval and its parts by label.

    Without a meter and without a power model it is unknown, and formatted as not measured, never as 0 J.
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
        """Whether a meter or a model gave a reading."""
        return bool(self.meters) or self.joules > 0

    @property
    def label(self) -> str:
        """The labels: `measured`, or `80 % measured, 20 % estimated`."""
        if not self.is_known:
            return NOT_MEASURED
        amounts = {name: getattr(self, f"{name}_joules") for name in LABELS}
        parts = {name: amount for name, amount in amounts.items() if amount > 0}
        if len(parts) <= 1:
            return next(iter(parts), "measured" if any("measured" in meter for meter in self.meters) else "estimated")
        return ", ".join(f"{_format_share(amount, sum(parts.values()))} {name}" for name, amount in parts.items())

    @property
    def value(self) -> str:
        """The amount alone, such as `12.3 kWh`."""
        unit = choose_energy_unit(self.joules)
        return f"{unit.format(self.joules)} {unit.name}" if self.is_known else NOT_MEASURED

    @property
    def interval(self) -> str:
        """The 95 % interval, such as `11.9 to 12.8 kWh`; empty if it is narrower than the digits shown."""
        unit, smaller = choose_energy_unit(self.joules), choose_energy_unit(self.low_joules)
        interval = self.format_interval(unit)
        if interval and 0 < self.low_joules < SMALLEST_SHOWN * unit.size:
            interval = f"{smaller.format(self.low_joules)} {smaller.name} to {unit.format(self.high_joules)}"
        return f"{interval} {unit.name}" if interval else ""

    @property
    def text_in_joules(self) -> str:
        """A small amount, such as that of one token, in joules with a prefix, with interval and label."""
        return self.text(choose_small_unit(self.joules))

    def format_interval(self, unit: EnergyUnit) -> str:
        low, high = unit.format(self.low_joules), unit.format(self.high_joules)
        return "" if low == high == unit.format(self.joules) else f"{low} to {high}"

    def text(self, unit: EnergyUnit | None = None) -> str:
        """Format amount, interval and label: `12.3 kWh (11.9 to 12.8; 80 % measured, 20 % estimated)`."""
        if not self.is_known:
            return NOT_MEASURED
        unit = unit or choose_energy_unit(self.joules)
        known = "; ".join(part for part in (self.format_interval(unit), self.label) if part)
        return f"{unit.format(self.joules)} {unit.name} ({known})"

    def multiply(self, factor: float) -> EnergyFigure:
        """Multiply all joules, such as by the overhead of a building."""
        numbers = {name: value * factor for name, value in self if isinstance(value, float)}
        return self.model_copy(update=numbers)


def _format_share(part: float, whole: float) -> str:
    """Format a share in whole per cent, never rounding it to 0 % or 100 %."""
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1 %"
    return ">99 %" if 99 < share < 100 else f"{share:.0f} %"


def sum_energy(figures: Iterable[EnergyFigure]) -> EnergyFigure:
    """Sum figures of disjoint energy by label; unknown ones add nothing.

    The ends of the intervals are added, as one meter or model errs the same way each time.
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
    """The power of a node between two Unix times, by component, and the joules of each job."""

    node: str
    started: float
    ended: float
    watts: dict[str, float]
    jobs: dict[str, float] = {}


class Coverage(AccountingEntry):
    """The time that nodes were used by jobs, and the part of it that a meter measured."""

    node_seconds: float = 0.0
    measured_node_seconds: float = 0.0


class IntensityPeriod(AccountingEntry):
    """A period of Unix time in which the run used electricity, with the grid's grams of CO2 equivalent per kWh."""

    started: float
    ended: float
    grams_per_kwh: float | None
    joules: float


class CarbonIntensity(AccountingEntry):
    """The grid's intensity while the run used electricity, from a table; periods without grams are unknown."""

    name: str
    sha256: str
    stretches: list[IntensityPeriod] = []

    @property
    def known_periods(self) -> list[IntensityPeriod]:
        return [stretch for stretch in self.stretches if stretch.grams_per_kwh is not None]

    @property
    def joules_with_known_intensity(self) -> float:
        """The electricity of the periods with a known intensity."""
        return sum(stretch.joules for stretch in self.known_periods)

    @property
    def mean_grams_per_kwh(self) -> float:
        """The mean of the known intensities, weighted by electricity; 0 if none is known."""
        weighted = sum((stretch.grams_per_kwh or 0.0) * stretch.joules for stretch in self.known_periods)
        return weighted / self.joules_with_known_intensity if self.known_periods else 0.0


class EnergyAccounting(AccountingEntry):
    """The content of `report/energy.json`; jobs are named by the file of their attempt without `.json`."""

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
    def power_models(self) -> dict[str, dict[str, Any]]:
        """The power models by node; a model of all nodes has an empty name."""
        if not self.model:
            return {}
        return {"": self.model} if "idle_watts" in self.model else self.model

    def attempt_energy(self, attempt: str | None) -> EnergyFigure:
        """Return the energy of an attempt by the name of its file; it is unknown if it is not listed."""
        return self.jobs.get((attempt or "").removesuffix(".json"), EnergyFigure())

    def job_energy(self, step: str, **instance: str) -> EnergyFigure:
        """Return the energy of all attempts at a step, lost ones too, whose instance has the given values.

        `step` may be a prefix up to a dot, such as `corpus.`.
        """
        wanted = instance.items()
        return sum_energy(
            job
            for job in self.jobs.values()
            if (job.step.startswith(step) if step.endswith(".") else job.step == step)
            and wanted <= job.instance.items()
        )


def validate_accounting(content: object, name: str) -> EnergyAccounting:
    """Validate an energy accounting that was read from JSON.

    Raises:
        InputError: it is none; the sentence names file and field.
    """
    try:
        return EnergyAccounting.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{name} is no energy accounting: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    field = ".".join(map(str, problem["loc"]))
    return f"the field {field}: {problem['msg']}" if field else problem["msg"]


def read_energy_accounting(run_directory: Path) -> EnergyAccounting | None:
    """Read the energy accounting of a run; None if its report is not written yet.

    Raises:
        InputError: the file is damaged.
    """
    path = run_directory / layout.ENERGY_ACCOUNT
    if not path.is_file():
        return None
    try:
        return EnergyAccounting.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(
            f"{layout.ENERGY_ACCOUNT} is no energy accounting: {_first_problem(error)}: delete it, and the report is "
            "made again"
        ) from None
