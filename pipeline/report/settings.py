"""Settings of the report: the section `report`, the statements of a provider (`disclosure`), and those of the step."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Literal

from babel.dates import format_date
from markupsafe import Markup
from pydantic import Field

from pipeline.core.settings import Pretrained, Settings
from pipeline.energy.power_model import PowerModel
from pipeline.energy.settings import CarbonIntensitySeries
from pipeline.experiment.settings import ExperimentPage

Language = Literal["en", "nl"]
Text = str | dict[Language, str]
"""Words of the provider, in the language of their choice or in each."""
Category = Literal["public", "licensed", "third-party", "crawled", "user", "synthetic", "other"]


class Crawler(Settings):
    """A crawler that collected texts for this model."""

    name: str = Field(min_length=1, description="the crawler's name")
    purpose: str = Field(min_length=1, description="what it collected text for")
    behavior: str = Field(min_length=1, description="what it does at robots.txt, logins and paywalls")
    first_day: datetime.date = Field(description="first day of the crawl")
    last_day: datetime.date = Field(description="last day of the crawl")


class Generator(Settings):
    """A model that generated texts on which this model was trained."""

    name: str = Field(min_length=1, description="the generating model's name")
    provider: str = Field(min_length=1, description="who provides that model")
    purpose: str = Field(min_length=1, description="what its text is used for")


class SourceDescription(Settings):
    """The texts of a source, as their provider describes them to people who are no engineers."""

    title: str | None = Field(default=None, min_length=1, description="the name of the data set at its address")
    content: Text = Field(description="the kind of texts, and which part of them was selected")
    collected: Text = Field(description="from when to when the texts were collected, or that it is not known")


class Disclosure(Settings):
    """Statements of the provider; a missing one is counted and listed in the papers as not stated, with its key."""

    intended_use: Text | None = Field(default=None, description="by whom and for what the models are meant")
    acceptable_use: Text | None = Field(default=None, description="what they may not be used for, or where to read it")
    limitations: Text | None = Field(default=None, description="what is known to go wrong, besides what records show")
    distribution: Text | None = Field(default=None, description="how the models reach those who use them")
    model_license: str | None = Field(default=None, description="of the weights, an SPDX expression or words")
    released: datetime.date | None = Field(default=None, description="through any channel, YYYY-MM-DD")
    placed_on_market: datetime.date | None = Field(default=None, description="in the Union, YYYY-MM-DD")
    authorized_representative: Text | None = Field(
        default=None, description="in the Union, of a provider outside of it"
    )
    systems: Text | None = Field(default=None, description="kinds of systems into which the models may be built")
    integration: Text | None = Field(default=None, description="what is needed to build the models into a system")
    design_rationale: Text | None = Field(default=None, description="why architecture and training are as they are")
    data_selection: Text | None = Field(default=None, description="how and why the sources were chosen and obtained")
    bias_measures: Text | None = Field(default=None, description="methods to detect biases in the texts")
    legal_basis: Text | None = Field(default=None, description="by which law texts and personal data are processed")
    languages: list[str] | None = Field(default=None, description="for which the models are meant, ISO 639-1")
    latest_data: datetime.date | None = Field(default=None, description="when the last text was collected, YYYY-MM-DD")
    continuous_training: Text | None = Field(default=None, description="whether new texts are still learned")
    crawlers: list[Crawler] | None = Field(default=None, description="an empty list says that there were none")
    user_interactions: Text | None = Field(
        default=None, description="texts that users wrote to or got from the models, or that there are none"
    )
    user_data: Text | None = Field(default=None, description="texts of users of the provider's services")
    synthetic_data: list[Generator] | None = Field(default=None, description="an empty list says that there is none")
    reservations: Text | None = Field(default=None, description="measures on reservations of text and data mining")
    illegal_content: Text | None = Field(default=None, description="measures against illegal content")
    removal: Text | None = Field(default=None, description="how somebody has a text removed")
    inference_energy: Text | None = Field(default=None, description="energy of inference, as it was measured")
    small_provider: bool | None = Field(default=None, description="a small or medium-sized enterprise")
    content_types: Text | None = Field(default=None, description="kinds of text, such as fiction, news, laws")
    regions_and_groups: Text | None = Field(
        default=None, description="regions and groups of people that the texts are about or from, where it matters"
    )
    code_of_practice: Text | None = Field(
        default=None,
        description="whether and since when the provider has signed the Code of Practice for these models",
    )
    summary_version: str | None = Field(default=None, description="version of the summary of training content")
    summary_changed: datetime.date | None = Field(default=None, description="its last change, YYYY-MM-DD")
    summary_url: str | None = Field(
        default=None, pattern=r"^https?://", description="where its newest and all earlier versions are published"
    )
    summary_changes: Text | None = Field(default=None, description="what changed since its version before")
    summary_notices: Text | None = Field(default=None, description="where its changes are announced")
    model_documentation: str | None = Field(
        default=None, pattern=r"^https?://", description="address of the public documentation of the models"
    )
    source_descriptions: dict[str, SourceDescription] = Field(
        default={}, description="by source, its texts and when they were collected, for the summary"
    )
    data_categories: dict[str, Category] = Field(
        default={}, description="by source, its place in the summary of training content; else it follows from rights"
    )
    license_evidence: dict[str, str] = Field(default={}, description="by source, a file that shows its license")


def text_in_language(text: Text, language: Language) -> str | None:
    """Return a text of the provider in a language, or in the one in which it is given."""
    return text if isinstance(text, str) else text.get(language) or next(iter(text.values()), None)


def format_day(day: datetime.date, language: Language) -> str:
    """Return a day as DD/MM/YYYY, as the template's months are MM/YYYY, and with the month in words."""
    return format_date(day, "dd/MM/yyyy (d MMMM yyyy)", locale=language)


NOT_IN_PAPERS = (
    "license_evidence",
    "data_categories",
    "small_provider",
    "source_descriptions",
)  # listed by source, or only where set


class ProviderStatements:
    """What a provider has stated, for the papers: each key answered, or named with what would answer it."""

    def __init__(self, disclosure: Disclosure, provider: str | None, contact: str | None) -> None:
        names = [name for name in Disclosure.model_fields if name not in NOT_IN_PAPERS]
        self._values = {name: getattr(disclosure, name) for name in names}
        self.keys = {name: f"disclosure.{name}" for name in self._values}
        for name, value in (("provider", provider), ("contact", contact)):
            self._values[name], self.keys[name] = value, f"run.{name}"

    def text(self, name: str, language: Language = "en") -> str | None:
        """Return an answer, in the language where it is given in that one too; None where it is not stated."""
        value = self._values[name]
        if isinstance(value, dict):
            value = text_in_language(value, language)
        if isinstance(value, list):
            return "; ".join(map(_format_entry, value))
        if name == "latest_data" and value is not None:
            return f"{value:%m/%Y}"  # as the template asks
        if isinstance(value, datetime.date):
            return format_day(value, language)
        return None if value is None or value == "" else str(value)

    def __call__(self, name: str) -> str:
        """Return an answer as a sentence's part, or that it is not stated and where to state it."""
        text = self.text(name)
        return Markup("not stated (`{}`)").format(self.keys[name]) if text is None else text or "none"

    @property
    def missing(self) -> Sequence[str]:
        """Return the keys that would answer what is not stated."""
        return [self.keys[name] for name in self._values if self.text(name) is None]

    @property
    def provider_question_count(self) -> int:
        """Return how many answers only the provider can give."""
        return len(self._values)


def _format_entry(entry: Crawler | Generator | str) -> str:
    if isinstance(entry, Crawler):
        return f"{entry.name}, {entry.first_day:%m/%Y} to {entry.last_day:%m/%Y}: {entry.purpose}; {entry.behavior}"
    if isinstance(entry, Generator):
        return f"{entry.name} of {entry.provider}: {entry.purpose}"
    return entry


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
    provider_url: str | None = None
    contact: str | None = None
    disclosure: Disclosure = Disclosure()
    corpora: dict[str, str] = Field(default={}, description="by model, the corpus that it is trained on")
    pretrained: dict[str, Pretrained] = Field(
        default={}, exclude_if=lambda models: not models, description="what models of the run began with"
    )
    experiments: dict[str, ExperimentPage] = Field(default={}, description="each has a page of its own")
    license_evidence_sha256: dict[str, str] = Field(default={}, description="by source, of the file that shows it")
