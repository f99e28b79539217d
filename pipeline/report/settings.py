"""What the report must be told because no record holds it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.pretrained import Pretrained
from pipeline.core.settings import Settings
from pipeline.energy.power_model import PowerModel
from pipeline.energy.settings import CarbonIntensitySeries
from pipeline.experiment.settings import ExperimentPage
from pipeline.report.disclosure import Disclosure


class Report(Settings):
    """The section `report` of a configuration."""

    language: Literal["en", "nl"] = Field(default="en", description="of the page's own words; records are as they are")


class PageSettings(Settings):
    """The run's own description, the power model, and what turns joules and hours into carbon, water and euros."""

    run: str
    seed: int
    configuration: str = Field(description="the configuration as it was written, as JSON text, shown as it is")
    platform: str
    language: Literal["en", "nl"] = "en"
    power: dict[str, PowerModel] = Field(default={}, description="of the nodes of a partition; else a wide one")
    pue: float | None = Field(default=None, ge=1, description="power usage effectiveness: facility energy / IT energy")
    pue_source: str | None = None
    carbon_intensity_grams_per_kwh: float | None = Field(default=None, ge=0)
    carbon_intensity_source: str | None = None
    carbon_intensity_place: str | None = None
    carbon_intensity_year: int | None = None
    carbon_intensity_series: CarbonIntensitySeries | None = None
    market_based_grams_per_kwh: float | None = Field(default=None, ge=0, description="of the contract, if any")
    market_based_source: str | None = None
    water_liters_per_kwh: float | None = Field(default=None, ge=0, description="of the site / energy of computing")
    water_source: str | None = None
    electricity_euros_per_kwh: float | None = Field(default=None, ge=0)
    electricity_price_source: str | None = None
    price_euros_per_device_hour: float | None = Field(default=None, ge=0)
    price_source: str | None = None
    provider: str | None = None
    contact: str | None = None
    disclosure: Disclosure = Disclosure()
    corpora: dict[str, str] = Field(default={}, description="by model, the corpus that it is trained on")
    pretrained: dict[str, Pretrained] = Field(
        default={}, exclude_if=lambda models: not models, description="what models of the run began with"
    )
    experiments: dict[str, ExperimentPage] = Field(default={}, description="each has a page of its own")
    license_evidence_sha256: dict[str, str] = Field(default={}, description="by source, of the file that shows it")
