"""What turns joules into kilowatt-hours at the meter of the building and into grams of CO2: the `energy` section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.ground.settings import Settings

SOURCE_OF = {"pue": "pue_source", "carbon_intensity_grams_per_kwh": "carbon_intensity_source"}


class Energy(Settings):
    """Overhead and carbon intensity, each with its source; a figure given without a source is the configuration's."""

    meters: Literal["auto"] = Field("auto", description="every meter of the machine; where it has none, an estimate")
    pue: float = Field(1.2, ge=1, description="power usage effectiveness: energy of the building / energy of computing")
    pue_source: str = "assumed: a modern data centre"
    carbon_intensity_grams_per_kwh: float = Field(267.622, ge=0, description="location-based: the grid's average")
    carbon_intensity_source: str = "codecarbon 3.3.2, Netherlands"
    market_based_grams_per_kwh: float | None = Field(None, ge=0, description="intensity of the contract, if any")

    @model_validator(mode="before")
    @classmethod
    def _own_figures_have_their_own_source(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        missing = [source for figure, source in SOURCE_OF.items() if figure in values and source not in values]
        return {**values, **{source: "stated in the configuration" for source in missing}}
