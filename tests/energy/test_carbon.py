"""Published carbon figures and units recompute."""

import pytest
from pydantic import ValidationError

from pipeline.energy.carbon import JOULES_PER_KWH, carbon_grams
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
    grams = carbon_grams(megawatt_hours * 1000 * JOULES_PER_KWH, pue=pue, grams_per_kwh=kilograms_per_kwh * 1000)
    assert round(grams / 1e6) == tonnes


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
