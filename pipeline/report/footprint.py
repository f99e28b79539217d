"""What the energy of a run comes to: of a unit of work, of the building, in carbon, water, euros, and plain words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.markup import format_number, format_percent
from pipeline.energy.run_energy_report_reader import (
    NOT_MEASURED,
    CarbonIntensity,
    EnergyAccounting,
    EnergyFigure,
    sum_energy,
)
from pipeline.energy.settings import JOULES_PER_KWH, CarbonIntensitySeries, carbon_grams
from pipeline.report import amount_formatting
from pipeline.report.amount_formatting import Amount, derive_amount_from_energy, format_period
from pipeline.report.run_reader import Consumption, Json, LostAttempt, RunReader, StepUsage, summarize_step_usage
from pipeline.report.settings import PageSettings

# What an average Dutch home took from the grid in 2024, with no solar power of its own in it. Statistics Netherlands
# (CBS), table 81528NED, "Gemiddelde elektriciteitslevering", all homes, the Netherlands, 2024, provisional.
HOME_KWH_PER_YEAR, HOME_DAYS = 2550, 366
HOME_SOURCE = "CBS, Statistics Netherlands, table 81528NED, 2024, provisional"
HOME_ADDRESS = "https://www.cbs.nl/nl-nl/cijfers/detail/81528NED"
HOME_JOULES_PER_DAY = HOME_KWH_PER_YEAR * JOULES_PER_KWH / HOME_DAYS

LOCATION_BASED = "Carbon dioxide equivalent, location-based"
ROUNDING = 1e-6  # a share of the electricity that sums may differ by

COMPONENTS = {
    "board": "boards (GPUs)",
    "package": "processors",
    "dram": "memory",
    "rest": "the rest of the nodes: disks, network, fans, power supplies",
    "node": "whole nodes without known parts",
}


@dataclass(frozen=True)
class WorkUnit:
    """What one unit of work took: such as a token of a model, of `work` tokens that took `figure` together."""

    of: str  # what kind of thing it is
    name: str
    work: float
    unit: str
    figure: EnergyFigure

    @property
    def energy_per_unit(self) -> EnergyFigure:
        return self.figure.multiply(1 / self.work)


@dataclass(frozen=True)
class StepFootprint:
    """A step: its time by its records and attempts, its energy by the account."""

    use: StepUsage
    figure: EnergyFigure


@dataclass(frozen=True)
class Conversion:
    """What the electricity comes to: an amount, or None where it is not known or not stated, and where from."""

    name: str
    text: str
    source: str
    amount: Amount | None
    value: str = "not computed"
    interval: str = ""


@dataclass(frozen=True)
class Footprint:
    """The contents of the section on energy."""

    account: EnergyAccounting
    steps: list[StepFootprint]
    use: StepUsage
    attempts: list[LostAttempt]
    units: list[WorkUnit]
    strategies: list[WorkUnit]
    facility: EnergyFigure
    conversions: list[Conversion]
    grid: str
    carbon: Conversion
    market: Conversion

    @property
    def total(self) -> EnergyFigure:
        """The energy of everything: attempts, idle nodes and Snakemake's own process."""
        return self.account.total

    @property
    def energy_by_component(self) -> list[tuple[str, EnergyFigure]]:
        """The parts of the nodes in words."""
        order = [*COMPONENTS]
        parts = sorted(self.account.components.items(), key=lambda part: [*order, part[0]].index(part[0]))
        return [(COMPONENTS.get(name, name), figure) for name, figure in parts]

    def homes(self, gettext: Callable[[str], str]) -> str | None:
        """Return the electricity of the facility as that of Dutch homes; None where it is not known."""
        return (
            format_home_equivalent(self.facility.joules, gettext)
            if self.facility.is_known and self.facility.joules > 0
            else None
        )


def format_home_equivalent(joules: float, gettext: Callable[[str], str] = str) -> str:
    """Return an electricity as that of average Dutch homes in a stretch of time, in the language of `gettext`."""
    days = joules / HOME_JOULES_PER_DAY
    if days < 1:
        seconds, units = days * 86400, ((3600, "hours"), (60, "minutes"))
        size, unit = next((one for one in units if seconds >= one[0]), (1, "seconds"))
        taken = gettext("an average Dutch home takes from the grid in")
        return f"{taken} {format_number(seconds / size, 2)} {gettext(unit)}"
    if days >= 100 * HOME_DAYS:
        return f"{format_number(days / HOME_DAYS, 3)} {gettext('average Dutch homes take from the grid in a year')}"
    return (
        f"{format_number(days, 3 if days >= 100 else 2)} {gettext('average Dutch homes take from the grid in a day')}"
    )


def _list_energy_per_unit(reader: RunReader, account: EnergyAccounting, models: Sequence[Json]) -> list[WorkUnit]:
    """Return what a document, a token and a training step took, of each corpus, token set and model."""
    units = []
    for statistics in reader.statistics:
        name, totals = statistics.content["corpus"], statistics.content["totals"]
        figure = account.job_energy("corpus.", corpus=name)
        units += [
            WorkUnit("corpus", name, totals["documents_in"], "document read", figure),
            WorkUnit("corpus", name, totals["documents_out"], "document kept", figure),
        ]
    for index in reader.indexes:
        tokens = index.content["train"]["tokens"] + index.content["validation"]["tokens"]
        figure = account.job_energy("tokens.", tokens=index.name)
        units.append(WorkUnit("token set", index.name, tokens, "token written", figure))
    for model in models:
        units += [
            WorkUnit("training of", model["name"], model["own_tokens"], "token seen", model["energy"]),
            WorkUnit("training of", model["name"], model["own_steps"], "training step", model["energy"]),
        ]
    return [unit for unit in units if unit.work]


def _list_energy_by_strategy(models: Sequence[Json]) -> list[WorkUnit]:
    """Return what a token and a step took of the models that were trained by the same strategy."""
    by_name: dict[str, list[Json]] = {}
    for model in models:
        by_name.setdefault(model["strategy"] or "not recorded", []).append(model)
    units = []
    for strategy, trained in sorted(by_name.items()):
        label = f"{strategy} ({', '.join(model['name'] for model in trained)})"
        figure = sum_energy(model["energy"] for model in trained)
        for key, unit in (("own_tokens", "token seen"), ("own_steps", "training step")):
            units.append(WorkUnit("strategy", label, sum(model[key] for model in trained), unit, figure))
    return [unit for unit in units if unit.work]


def _format_source(text: str | None) -> str:
    return f"source: {text or 'not stated'}"


def _make_conversion(name: str, amount: Amount | None, units: Any, source: str, missing: str | None) -> Conversion:
    """Return a conversion; `missing` says which figure of the site is not stated, None where it is."""
    if missing:
        return Conversion(name, "not computed", missing, None)
    if amount is None:
        return Conversion(name, NOT_MEASURED, source, None, NOT_MEASURED)
    return Conversion(name, amount.text(units), source, amount, amount.format_value(units), amount.interval(units))


def _carbon_amount(figure: EnergyFigure, settings: PageSettings, grams_per_kwh: float | None) -> Amount | None:
    """Return the carbon of an electricity before PUE, in grams."""
    if grams_per_kwh is None:
        return None
    return derive_amount_from_energy(
        figure, lambda joules: carbon_grams(joules, pue=settings.pue or 1.0, grams_per_kwh=grams_per_kwh)
    )


def _format_grid(settings: PageSettings) -> str:
    """Return place and year of the grid's yearly average."""
    place, year = settings.carbon_intensity_place, settings.carbon_intensity_year
    return f"{place or 'place not stated'}, {year or 'year not stated'}"


def _convert_at_annual_intensity(name: str, total: EnergyFigure, settings: PageSettings, note: str = "") -> Conversion:
    """Return what the grid emitted for it by its yearly average."""
    intensity = settings.carbon_intensity_grams_per_kwh
    missing = "none is known over time, and no yearly average of the" if settings.carbon_intensity_series else "no"
    return _make_conversion(
        name,
        _carbon_amount(total, settings, intensity),
        amount_formatting.MASSES,
        f"at {format_number(intensity)} g/kWh: {_format_grid(settings)}; "
        f"{_format_source(settings.carbon_intensity_source)}{note}",
        None if intensity is not None else f"{missing} carbon intensity is configured",
    )


def _convert_at_hourly_intensity(
    total: EnergyFigure, intensity: CarbonIntensity, series: CarbonIntensitySeries, settings: PageSettings
) -> list[Conversion]:
    """Return what the grid emitted for it in the time in which it was used, and by the yearly average.

    What was used at a time of which the table says nothing is at the yearly average. Where none is configured, the sum
    is not computed, and only the part that the table covers is.
    """
    yearly = settings.carbon_intensity_grams_per_kwh
    covered = min(intensity.joules_with_known_intensity / total.joules, 1.0) if total.joules else 1.0
    covered = 1.0 if covered > 1 - ROUNDING else covered
    rest = (
        f"{format_percent(1 - covered, 1)} of the electricity was used at a time of which {intensity.name} says nothing"
    )
    by_table = f"{intensity.name} says nothing of the time of the run"
    if intensity.known_periods:
        by_table = (
            f"at {format_number(intensity.mean_grams_per_kwh)} g/kWh, the mean over time weighted by electricity: "
            f"{series.place}, {format_period(intensity.known_periods[0].started, intensity.known_periods[-1].ended)}; "
            f"{_format_source(series.source)}; {intensity.name}, sha256 {intensity.sha256[:16]}"
        )
    if yearly is None and covered < 1:
        return [
            _make_conversion(
                LOCATION_BASED, None, amount_formatting.MASSES, "", f"{rest}, and no yearly average is configured"
            ),
            _make_conversion(
                f"{LOCATION_BASED}, of {format_percent(covered, 1)} of the electricity",
                _carbon_amount(total.multiply(covered), settings, intensity.mean_grams_per_kwh),
                amount_formatting.MASSES,
                by_table,
                None if intensity.known_periods else by_table,
            ),
        ]
    mean = covered * intensity.mean_grams_per_kwh + (1 - covered) * (yearly or 0.0)
    at_average = f"; {rest} and is at the yearly average" if covered < 1 else ""
    conversions = [
        _make_conversion(
            LOCATION_BASED, _carbon_amount(total, settings, mean), amount_formatting.MASSES, by_table + at_average, None
        )
    ]
    if yearly is not None:
        change = (
            f"; by the table it is {format_percent(abs(mean - yearly), yearly)} {'less' if mean < yearly else 'more'}"
        )
        conversions.append(
            _convert_at_annual_intensity(
                f"{LOCATION_BASED}, by the yearly average alone", total, settings, change if yearly else ""
            )
        )
    return conversions


def _convert_to_carbon(account: EnergyAccounting, settings: PageSettings) -> tuple[list[Conversion], Conversion]:
    """Return what the grid emitted for it, first as exactly as it is known, and what the contract says."""
    total, contract, series = account.total, settings.market_based_grams_per_kwh, settings.carbon_intensity_series
    if account.intensity is not None and series is not None:
        local = _convert_at_hourly_intensity(total, account.intensity, series, settings)
    else:
        local = [_convert_at_annual_intensity(LOCATION_BASED, total, settings)]
    market = _make_conversion(
        "Carbon dioxide equivalent, market-based",
        _carbon_amount(total, settings, contract),
        amount_formatting.MASSES,
        f"at {format_number(contract)} g/kWh, by the contract for the electricity; "
        f"{_format_source(settings.market_based_source)}",
        None if contract is not None else "the configuration states no contract for electricity",
    )
    return local, market


def _convert_to_water_and_euros(
    total: EnergyFigure, facility: EnergyFigure, settings: PageSettings
) -> list[Conversion]:
    water, price = settings.water_liters_per_kwh, settings.electricity_euros_per_kwh
    return [
        _make_conversion(
            "Water",
            derive_amount_from_energy(total, lambda joules: joules / JOULES_PER_KWH * (water or 0.0)),
            amount_formatting.VOLUMES,
            f"at {format_number(water)} liters of the site per kWh of computing; "
            f"{_format_source(settings.water_source)}",
            None if water is not None else "the site states no water",
        ),
        _make_conversion(
            "Price of the electricity",
            derive_amount_from_energy(facility, lambda joules: joules / JOULES_PER_KWH * (price or 0.0)),
            amount_formatting.MONEY,
            f"at {format_number(price)} euros per kWh of the facility; "
            f"{_format_source(settings.electricity_price_source)}",
            None if price is not None else "the site states no price",
        ),
    ]


def _compute_device_cost(use: StepUsage, settings: PageSettings) -> Conversion:
    """Return what the hours of devices cost by the platform's price; it is no part of the electricity's."""
    price = settings.price_euros_per_device_hour
    hours, lost = use.device_seconds / 3600, use.lost_device_seconds / 3600
    euros = hours * (price or 0.0)
    source = f"stated in the file of the platform {settings.platform}"
    unknown = f"; without {use.of_unknown_devices:,} attempts at trainings of which no segment was finished"
    return _make_conversion(
        "Price of the devices",
        Amount(euros, euros, euros),
        amount_formatting.MONEY,
        f"at {format_number(price)} euros per device hour: {format_number(hours)} device hours of trainings and "
        f"evaluations, {format_number(lost)} of them of lost attempts"
        f"{unknown if use.of_unknown_devices else ''}; {_format_source(settings.price_source or source)}",
        None if price is not None else "the platform states no price",
    )


def compute_footprint(
    reader: RunReader, account: EnergyAccounting, settings: PageSettings, models: Sequence[Json]
) -> Footprint:
    """Return the contents of the section on energy; `models` are those of the view, with `energy` and `strategy`."""
    consumption: Consumption = summarize_step_usage(reader)
    uses = {use.name: use for use in consumption.steps}
    names = [*uses, *sorted(account.steps.keys() - uses)]
    facility, series = account.total.multiply(settings.pue or 1.0), settings.carbon_intensity_series
    local, market = _convert_to_carbon(account, settings)
    return Footprint(
        account=account,
        steps=[
            StepFootprint(uses.get(name) or StepUsage(name), account.steps.get(name, EnergyFigure())) for name in names
        ],
        use=consumption.total,
        attempts=consumption.attempts,
        units=_list_energy_per_unit(reader, account, models),
        strategies=_list_energy_by_strategy(models),
        facility=facility,
        conversions=[
            *local,
            market,
            *_convert_to_water_and_euros(account.total, facility, settings),
            _compute_device_cost(consumption.total, settings),
        ],
        grid=series.place
        if series and account.intensity and account.intensity.known_periods
        else _format_grid(settings),
        carbon=local[0],
        market=market,
    )


def list_energy_total_checks(account: EnergyAccounting) -> list[tuple[str, EnergyFigure]]:
    """Return what must add up to the total: the parts in words, and their sum; nothing where nothing is known."""
    parts = {
        "steps + idle + Snakemake's own": [*account.steps.values(), account.idle, account.snakemake],
        "finished + lost + idle + Snakemake's own": [account.finished, account.lost, account.idle, account.snakemake],
        "components": [*account.components.values()],
        "nodes": [*account.nodes.values()],
    }
    sums = [(words, sum_energy(figures)) for words, figures in parts.items()]
    return sums if account.total.is_known or any(figure.is_known for _, figure in sums) else []


def list_meters(account: EnergyAccounting, meters: Sequence[str]) -> list[str]:
    """Return each part of the names of meters once, without the sources of power models, listed with the models."""
    sources = {str(model["source"]) for model in account.power_models.values() if model.get("source")}
    names = list(meters)
    for source in sources:
        names = [name.replace(f": {source}", "") for name in names]
    return list(dict.fromkeys(part for name in names for part in name.split("; ")))


def group_nodes_by_power_model(account: EnergyAccounting) -> list[tuple[str, Json]]:
    """Return each power model once, with the names of its nodes."""
    groups: dict[str, tuple[list[str], Json]] = {}
    for node, model in sorted(account.power_models.items()):
        groups.setdefault(json.dumps(model, sort_keys=True), ([], model))[0].append(node)
    return [(", ".join(nodes), model) for nodes, model in groups.values()]
