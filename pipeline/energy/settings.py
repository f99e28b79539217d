"""Factors from joules to kilowatt-hours at the building's meter, grams of CO2, liters and euros: `energy`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings

# A figure in the configuration has its own source, never that of the default figure.
SOURCE_KEYS = {
    "pue": "pue_source",
    "carbon_intensity_grams_per_kwh": "carbon_intensity_source",
    "market_based_grams_per_kwh": "market_based_source",
    "water_liters_per_kwh": "water_source",
    "electricity_euros_per_kwh": "electricity_price_source",
}
INTENSITY_KEYS = ("carbon_intensity_place", "carbon_intensity_year")


class SmartMeter(Settings):
    """The columns and the unit of a smart meter's or a power distribution unit's table, a CSV.

    Each outlet has its own column, or each row has its outlet in the column `outlet` and its value in the column
    `value`. A node with two power supplies has two outlets.
    """

    path: str = Field(min_length=1, description="the file; times have a time zone, or are seconds of Unix time")
    time: str = Field("time", min_length=1, description="the column of times")
    unit: Literal["W", "kW", "J", "Wh", "kWh"] = Field(description="of power, or of energy counted since whenever")
    nodes: dict[str, tuple[str, ...]] = Field(min_length=1, description="each node's column or columns, or its outlets")
    outlet: str | None = Field(None, description="the column that names the outlet of a row, if there is one")
    value: str | None = Field(None, description="the column of the figure, where rows name their outlet")

    @field_validator("nodes", mode="before")
    @classmethod
    def _list_outlets(cls, nodes: Any) -> Any:
        """One outlet may be written without a list."""
        if not isinstance(nodes, dict):
            return nodes
        return {node: (outlets,) if isinstance(outlets, str) else outlets for node, outlets in nodes.items()}

    @model_validator(mode="after")
    def _check_outlets(self) -> SmartMeter:
        for node, of_node in self.nodes.items():
            if not of_node:
                raise ValueError(f"nodes.{node} has no column: name one, or leave the node out")
        for outlet in self.outlets:
            if self.outlets.count(outlet) > 1:
                raise ValueError(f"nodes: {outlet!r} occurs twice, so that its energy would count twice: name it once")
        if (self.outlet is None) != (self.value is None):
            raise ValueError("outlet and value belong together: write both if rows name their outlet, else neither")
        return self

    @property
    def outlets(self) -> list[str]:
        """The columns or outlets of all nodes."""
        return [outlet for outlets in self.nodes.values() for outlet in outlets]

    @property
    def is_power(self) -> bool:
        """Whether the table has powers, not energies."""
        return self.unit.endswith("W")


class CarbonIntensitySeries(Settings):
    """The intensity of a grid over time, a CSV: each row holds from its time to that of the next."""

    path: str = Field(min_length=1, description="the file; it may come after the run")
    time: str = Field("time", min_length=1, description="the column of times: with a zone, or named as those of UTC")
    grams_per_kwh: str = Field(min_length=1, description="the column of grams of CO2 equivalent per kilowatt-hour")
    place: str = Field(min_length=1, description="the grid that the intensity is of")
    source: str = Field(min_length=1, description="who says so, and where")


class Energy(Settings):
    """Overhead, carbon intensity, water and price, each with its source; without one it is the configuration's."""

    meters: Literal["auto"] = Field("auto", description="every meter of the machine; where it has none, an estimate")
    pue: float = Field(1.2, ge=1, description="power usage effectiveness: energy of the building / energy of computing")
    pue_source: str = Field(default="assumed: a modern data center", description="where the PUE comes from")
    carbon_intensity_grams_per_kwh: float = Field(267.622, ge=0, description="location-based: the grid's average")
    carbon_intensity_source: str = Field(
        default="codecarbon 3.3.2, Netherlands", description="where the carbon intensity comes from"
    )
    carbon_intensity_place: str | None = Field("Netherlands", description="the grid that the intensity is of")
    carbon_intensity_year: int | None = Field(2023, ge=1990, description="the year that the intensity is of")
    carbon_intensity_series: CarbonIntensitySeries | None = Field(
        None, description="location-based: the grid's intensity in each hour, where it is known"
    )
    market_based_grams_per_kwh: float | None = Field(None, ge=0, description="intensity of the contract, if any")
    market_based_source: str | None = Field(
        default=None, description="where the contract's carbon intensity comes from"
    )
    water_liters_per_kwh: float | None = Field(
        None, ge=0, description="water usage effectiveness: litres of the site / kilowatt-hour of computing, if stated"
    )
    water_source: str | None = Field(default=None, description="where the figure for water comes from")
    electricity_euros_per_kwh: float | None = Field(
        None, ge=0, description="what the site pays at its meter, if stated"
    )
    electricity_price_source: str | None = Field(default=None, description="where the price comes from")
    smart_meters: tuple[SmartMeter, ...] = Field((), description="tables of meters that know nodes and no jobs")
    ear_files: tuple[str, ...] = Field((), description="files that `srun --ear-user-db` has written")
    calibration: tuple[str, ...] = Field(
        (), description="folders of finished runs on less text, of two sizes, from which energy and time are forecast"
    )

    @field_validator("calibration")
    @classmethod
    def _check_calibration(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if sum(PurePath(other) == PurePath(folder) for other in folders) > 1:
                raise ValueError(f"{folder!r} occurs twice, which makes no second run of it: name it once")
        return folders

    @property
    def yearly_intensity(self) -> dict[str, Any]:
        """The grid's average with its source, place and year, by key; no default next to a series."""
        keys = ("carbon_intensity_grams_per_kwh", "carbon_intensity_source", *INTENSITY_KEYS)
        if self.carbon_intensity_series and keys[0] not in self.model_fields_set:
            return dict.fromkeys(keys)
        return {key: getattr(self, key) for key in keys}

    @model_validator(mode="before")
    @classmethod
    def _reset_default_sources(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {figure for figure in SOURCE_KEYS if values.get(figure) is not None}
        missing: dict[str, Any] = {
            SOURCE_KEYS[figure]: "stated in the configuration" for figure in given if SOURCE_KEYS[figure] not in values
        }
        if "carbon_intensity_grams_per_kwh" in given:
            missing |= {key: None for key in INTENSITY_KEYS if key not in values}
        return {**values, **missing}


JOULES_PER_KWH = 3_600_000


def carbon_grams(joules: float, *, pue: float, grams_per_kwh: float) -> float:
    """Return grams of CO2 equivalent of computing energy, including the overhead of the building.

    PUE is the building's energy over that of computing: Patterson et al. 2021, section 2. With the grid's average
    `grams_per_kwh` the result is location-based, with that of the electricity contract market-based (GHG Protocol,
    scope 2).
    """
    return joules / JOULES_PER_KWH * pue * grams_per_kwh
