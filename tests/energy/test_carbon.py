"""Published carbon figures and units are reproduced."""

import pytest
from pydantic import ValidationError

from pipeline.energy.settings import JOULES_PER_KWH, Energy, carbon_grams

# Carbon table of the Poro talk on LUMI: MWh, PUE, kg CO2 per kWh, tonnes as printed.
CARBON_TABLE = [
    ("Gopher", 1066, 1.08, 0.330, 380),
    ("BLOOM", 433, 1.2, 0.057, 30),
    ("OPT", 324, 1.1, 0.231, 82),
    ("T5", 77, 1.12, 0.545, 47),
    ("LLaMA", 33, 1.1, 0.385, 14),
    ("LLaMA-2", 74, 1.1, 0.385, 31),
    ("OLMo", 135, 1.1, 0.0, 0),
]


@pytest.mark.parametrize(("model", "megawatt_hours", "pue", "kilograms_per_kwh", "tonnes"), CARBON_TABLE)
def test_published_carbon_table_is_reproduced(
    model: str, megawatt_hours: float, pue: float, kilograms_per_kwh: float, tonnes: int
) -> None:
    grams = carbon_grams(megawatt_hours * 1000 * JOULES_PER_KWH, pue=pue, grams_per_kwh=kilograms_per_kwh * 1000)
    assert round(grams / 1e6) == tonnes


def test_custom_value_does_not_keep_the_source_of_the_default() -> None:
    assert "codecarbon" in Energy().carbon_intensity_source
    own = Energy(carbon_intensity_grams_per_kwh=50, pue=1.19, pue_source="SURF")
    assert own.carbon_intensity_source == "stated in the configuration"
    assert own.pue_source == "SURF"
    assert Energy.model_validate(own.model_dump()) == own


def test_custom_intensity_does_not_keep_place_and_year_of_the_default() -> None:
    assert (Energy().carbon_intensity_place, Energy().carbon_intensity_year) == ("Netherlands", 2023)
    own = Energy(carbon_intensity_grams_per_kwh=50)
    assert (own.carbon_intensity_place, own.carbon_intensity_year) == (None, None)
    named = Energy(carbon_intensity_grams_per_kwh=50, carbon_intensity_place="Norway", carbon_intensity_year=2024)
    assert (named.carbon_intensity_place, named.carbon_intensity_year) == ("Norway", 2024)


def test_water_contract_and_price_have_a_source_only_if_stated() -> None:
    assert Energy().water_source is None and Energy().electricity_price_source is None
    own = Energy(water_liters_per_kwh=0.3, electricity_euros_per_kwh=0.2, market_based_grams_per_kwh=0)
    sources = {own.water_source, own.electricity_price_source, own.market_based_source}
    assert sources == {"stated in the configuration"}


SERIES = {"path": "grid.csv", "grams_per_kwh": "grams", "place": "Norway", "source": "a table"}


def test_yearly_average_next_to_a_series_is_only_the_stated_one() -> None:
    assert Energy().yearly_intensity["carbon_intensity_grams_per_kwh"] == 267.622
    assert set(Energy.model_validate({"carbon_intensity_series": SERIES}).yearly_intensity.values()) == {None}
    both = Energy.model_validate({"carbon_intensity_series": SERIES, "carbon_intensity_grams_per_kwh": 30})
    assert both.yearly_intensity == {
        "carbon_intensity_grams_per_kwh": 30,
        "carbon_intensity_source": "stated in the configuration",
        "carbon_intensity_place": None,
        "carbon_intensity_year": None,
    }


@pytest.mark.parametrize("key", ["path", "grams_per_kwh", "place", "source"])
def test_carbon_series_needs_column_grid_and_provider(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Energy.model_validate({"carbon_intensity_series": {**SERIES, key: ""}})
    with pytest.raises(ValidationError, match=key):
        Energy.model_validate({"carbon_intensity_series": {name: SERIES[name] for name in SERIES if name != key}})


@pytest.mark.parametrize("wrong", [{"pue": 0.9}, {"carbon_intensity_grams_per_kwh": -1}, {"carbon": 1}])
def test_impossible_energy_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Energy.model_validate(wrong)
