"""The plan's forecast of energy and time beside what came out, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.energy.energy_accounting import AccountingEntry, EnergyAccounting, Figure, sum_figures
from pipeline.report.consumption import attempt_of
from pipeline.report.read import Material

FORECAST_METER = "forecast, estimated: calibration runs"


class Foreseen(AccountingEntry):
    """What the plan says of a step or of all: seconds and joules with 95 % intervals, or why there is no forecast."""

    seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    joules: float | None = None
    low_joules: float | None = None
    high_joules: float | None = None
    refused: str | None = None


class Calibration(AccountingEntry):
    """A finished small run that the forecast was made from."""

    folder: str
    platform: str
    known: str


class Plan(AccountingEntry):
    """The part `forecast` of plan.json."""

    scope: str
    calibration: list[Calibration]
    notes: list[str] = []
    steps: dict[str, Foreseen]
    chain: Foreseen


@dataclass(frozen=True)
class Row:
    """A step, or all of them: what was foreseen, and the joules and seconds of its jobs whose outputs stand."""

    name: str
    foreseen: Foreseen
    figure: Figure
    seconds: float | None

    @property
    def refused(self) -> str | None:
        """Why there is no forecast, if there is none."""
        return None if self.time and self.foreseen.joules is not None else self.foreseen.refused or "no forecast"

    @property
    def energy(self) -> Figure:
        """The energy that was foreseen, in joules; estimated."""
        told = self.foreseen
        return Figure(
            joules=told.joules or 0.0,
            low_joules=told.low_joules or 0.0,
            high_joules=told.high_joules or 0.0,
            estimated_joules=told.joules or 0.0,
            meters=(FORECAST_METER,),
        )

    @property
    def time(self) -> tuple[float, float, float] | None:
        """The seconds that were foreseen, with the ends of their interval."""
        told = self.foreseen
        if told.seconds is None or told.low_seconds is None or told.high_seconds is None:
            return None
        return told.seconds, told.low_seconds, told.high_seconds

    @property
    def energy_verdict(self) -> str:
        """Return whether the interval of the energy holds what came out."""
        if self.refused or not self.figure.is_known:
            return "–"
        return _verdict(self.energy.low_joules, self.figure.joules, self.energy.high_joules)

    @property
    def time_verdict(self) -> str:
        """Return whether the interval of the time holds what came out."""
        if self.refused or self.time is None or self.seconds is None:
            return "–"
        return _verdict(self.time[1], self.seconds, self.time[2])


@dataclass(frozen=True)
class Comparison:
    """The forecast and what came out."""

    scope: str
    calibration: list[Calibration]
    notes: list[str]
    steps: list[Row]
    chain: Row | None


def _verdict(low: float, value: float, high: float) -> str:
    return "✓ inside" if low <= value <= high else "✗ below" if value < low else "✗ above"


def comparison(material: Material, account: EnergyAccounting) -> Comparison | None:
    """Return the forecast beside what came out; None where the plan had none.

    Raises:
        InputError: the plan's forecast is broken.
    """
    content = material.plan.content.get("forecast")
    if content is None:
        return None
    try:
        plan = Plan.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, ("forecast", *problem["loc"])))
        raise InputError(f"{layout.PLAN}: the field {field}: {problem['msg']}: delete it, to plan again") from None
    took = {
        attempt_of(attempt).removesuffix(".json"): attempt.content.get("wall_seconds") for attempt in material.attempts
    }
    rows = [_row(step, foreseen, account, took) for step, foreseen in plan.steps.items()]
    chain = None
    if plan.chain.refused is None:
        known = all(row.figure.is_known for row in rows)  # a part of the sum is not the sum
        seconds = [row.seconds for row in rows if row.seconds is not None]
        chain = Row(
            "all of these",
            plan.chain,
            sum_figures(row.figure for row in rows) if known else Figure(),
            sum(seconds) if len(seconds) == len(rows) else None,
        )
    return Comparison(plan.scope, plan.calibration, plan.notes, rows, chain)


def _row(step: str, foreseen: Foreseen, account: EnergyAccounting, took: dict[str, float | None]) -> Row:
    jobs = {name: job for name, job in account.jobs.items() if job.step == step and job.fate == "finished"}
    seconds = [value for name in jobs if (value := took.get(name)) is not None]
    known = all(job.is_known for job in jobs.values())
    return Row(
        step,
        foreseen,
        sum_figures(jobs.values()) if known else Figure(),
        sum(seconds) if jobs and len(seconds) == len(jobs) else None,
    )
