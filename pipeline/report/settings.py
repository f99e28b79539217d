"""What the report must be told because no record holds it."""

from __future__ import annotations

from pydantic import Field

from pipeline.ground.settings import Settings


class PageSettings(Settings):
    """The run's own description and the two factors that turn joules into carbon."""

    run: str
    seed: int
    configuration: str = Field(description="the configuration as it was written, as JSON text, shown as it is")
    platform: str
    pue: float | None = Field(default=None, ge=1, description="power usage effectiveness: facility energy / IT energy")
    pue_source: str | None = None
    carbon_intensity_grams_per_kwh: float | None = Field(default=None, ge=0)
    carbon_intensity_source: str | None = None
    market_based_grams_per_kwh: float | None = Field(default=None, ge=0, description="of the contract, if any")
    provider: str | None = None
    contact: str | None = None
