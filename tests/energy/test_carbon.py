"""Published carbon figures and units recompute."""

import pytest
from pydantic import ValidationError

from pipeline.energy.carbon import carbon_grams, footprint, kilowatt_hours
from pipeline.energy.settings import Energy

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
def test_published_carbon_table_recomputes(
    model: str, megawatt_hours: float, pue: float, kilograms_per_kwh: float, tonnes: int
) -> None:
    grams = carbon_grams(megawatt_hours * 1000, pue, kilograms_per_kwh * 1000)
    assert round(grams / 1e6) == tonnes


def test_ear_job_of_two_nodes() -> None:
    energy_joules = 381.51 * 3660 * 2
    assert energy_joules == pytest.approx(2_792_619, rel=1e-4)
    assert kilowatt_hours(energy_joules) == pytest.approx(0.776, abs=5e-4)


def test_footprint_states_both_accounts_and_their_sources() -> None:
    result = footprint(3.6e6, Energy(pue=1.5, carbon_intensity_grams_per_kwh=100, market_based_grams_per_kwh=0))
    assert result["energy_kwh"] == 1
    assert result["facility_kwh"] == 1.5
    assert result["location_based_grams"] == 150
    assert result["market_based_grams"] == 0
    assert footprint(3.6e6, Energy())["market_based_grams"] is None


def test_a_figure_of_ones_own_does_not_keep_the_source_of_the_default() -> None:
    assert "codecarbon" in Energy().carbon_intensity_source
    own = Energy(carbon_intensity_grams_per_kwh=50, pue=1.19, pue_source="SURF")
    assert own.carbon_intensity_source == "stated in the configuration"
    assert own.pue_source == "SURF"
    assert Energy.model_validate(own.model_dump()) == own


@pytest.mark.parametrize("wrong", [{"pue": 0.9}, {"carbon_intensity_grams_per_kwh": -1}, {"carbon": 1}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Energy.model_validate(wrong)
