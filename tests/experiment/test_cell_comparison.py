"""Differences between cells: by hand, against resampling, and over many simulated experiments of known truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.differences import compare_checkpoints
from pipeline.experiment.cell_comparison import (
    add_corrected_cell_p_values,
    compare_cells,
    find_pareto_front,
    mean_difference,
)

Floats = NDArray[np.float64]


def checkpoint(grades: Floats, model: str = "x", clusters: int | None = None) -> EvaluatedCheckpoint:
    """Return a checkpoint whose answers to one task have these grades."""
    keys = [("dutch", "task", number, f"hash{number}") for number in range(len(grades))]
    together = {} if clusters is None else {key: str(key[2] % clusters) for key in keys}
    return EvaluatedCheckpoint(model, 8, {}, {}, together, {"sari": dict(zip(keys, grades.tolist(), strict=True))})


def cells(grades_SI: Floats, model: str = "x", clusters: int | None = None) -> dict[int, EvaluatedCheckpoint]:
    return {seed: checkpoint(grades, model, clusters) for seed, grades in enumerate(grades_SI)}


def test_two_seeds_and_two_items_equal_a_hand_computed_value() -> None:
    lead_SC = np.array([[0.5, 0.1], [0.3, 0.1]])
    # By seed 0.3 and 0.2, so 0.005 / 2 of seeds; by item 0.4 and 0.1, so 2 x 0.045 / 4 of items; of both 0.0025.
    result = mean_difference(lead_SC, np.ones(2))
    assert result.value == pytest.approx(0.25)
    assert result.error == pytest.approx(0.15)  # of 0.0025 + 0.0225 - 0.0025
    assert result.freedom == pytest.approx(0.0225**2 / (0.0025**2 + 0.0225**2))


def test_variance_is_that_of_resampling_seeds_then_items() -> None:
    random = np.random.default_rng(3)
    seeds, items, draws = 5, 40, 20_000
    units_C = random.uniform(1, 3, items)
    lead_SC = (0.3 * random.normal(size=(seeds, 1)) + random.normal(size=items)) * units_C
    of_seeds = random.integers(0, seeds, (draws, seeds))
    by_seed = lead_SC.sum(axis=1) / units_C.sum()
    of_items = random.integers(0, items, (draws, items))
    mean_C = lead_SC.mean(axis=0)
    by_items = mean_C[of_items].sum(axis=1) / units_C[of_items].sum(axis=1)
    drawn = by_seed[of_seeds].mean(axis=1).var() * seeds / (seeds - 1) + by_items.var() * items / (items - 1)
    # The lead has no seed-item interaction, so both resamplings together give the whole variance.
    assert mean_difference(lead_SC, units_C).error ** 2 == pytest.approx(drawn, rel=0.06)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("noise", [(0.0, 0.0, 0.5), (0.05, 0.2, 0.5), (0.1, 0.0, 0.1), (0.0, 0.5, 0.1)])
def test_intervals_cover_the_true_difference(seeds: int, noise: tuple[float, float, float]) -> None:
    random = np.random.default_rng(1)
    of_seed, of_item, of_both = noise
    truth, items, times, held = 0.1, 60, 400, 0
    for _ in range(times):
        lead_SC = truth + of_seed * random.normal(size=(seeds, 1)) + of_item * random.normal(size=items)
        lead_SC = lead_SC + of_both * random.normal(size=(seeds, items))
        (row,) = compare_cells(cells(lead_SC), cells(np.zeros((seeds, items))))
        held += row["low"] <= truth <= row["high"]
        assert row["difference"] == pytest.approx(lead_SC.mean())
    assert held / times >= (0.89 if seeds == 2 else 0.925)


def test_family_wise_error_is_at_most_five_percent() -> None:
    random = np.random.default_rng(2)
    seeds, items, times, wrong = 3, 40, 400, 0
    for _ in range(times):
        of_item = 0.3 * random.normal(size=items)

        def made(of_item: Floats = of_item) -> dict[int, EvaluatedCheckpoint]:
            noise = 0.05 * random.normal(size=(seeds, 1)) + 0.3 * random.normal(size=(seeds, items))
            return cells(of_item + noise)

        to = made()
        rows = [row for _ in range(6) for row in compare_cells(made(), to)]
        add_corrected_cell_p_values(rows, 0.05)
        wrong += any(row["better"] for row in rows)
    assert wrong / times <= 0.05 + 2 * (0.05 * 0.95 / times) ** 0.5


def test_detectable_difference_is_found_in_80_percent_of_experiments() -> None:
    random = np.random.default_rng(4)
    seeds, items, times, result = 5, 50, 400, 0
    noise = 0.05, 0.2, 0.4
    error = (noise[0] ** 2 / seeds + noise[1] ** 2 / items + noise[2] ** 2 / seeds / items) ** 0.5
    lead_SC = noise[0] * random.normal(size=(seeds, 1)) + noise[2] * random.normal(size=(seeds, items))
    (row,) = compare_cells(cells(lead_SC), cells(np.zeros((seeds, items))))
    rows = [row, dict(row), dict(row)]
    add_corrected_cell_p_values(rows, 0.05)
    assert 2 * row["error"] < row["detectable_difference"] < 6 * row["error"]
    single = [dict(row)]
    add_corrected_cell_p_values(single, 0.05)
    assert single[0]["detectable_difference"] < row["detectable_difference"], "fewer seeds detect less"
    truth = 3.4 * error  # Student's reach and power at about 8 degrees of freedom, of one comparison
    for _ in range(times):
        lead_SC = truth + noise[0] * random.normal(size=(seeds, 1)) + noise[1] * random.normal(size=items)
        (row,) = compare_cells(
            cells(lead_SC + noise[2] * random.normal(size=(seeds, items))), cells(np.zeros((seeds, items)))
        )
        add_corrected_cell_p_values([row], 0.05)
        result += row["better"] == "a"
    assert 0.7 < result / times < 0.92


def test_unpaired_seeds_are_dropped_and_one_seed_is_compared_by_items() -> None:
    random = np.random.default_rng(5)
    one, other = random.normal(size=(3, 30)), random.normal(size=(3, 30))
    first, second = cells(one), cells(other, "y")
    second[3] = checkpoint(other[0])
    del first[0]
    (row,) = compare_cells(first, second)
    assert row["seeds"] == [1, 2] and row["difference"] == pytest.approx((one - other)[1:].mean())
    del first[1]
    (row,) = compare_cells(first, second)
    assert row["seeds"] == [2] and "freedom" not in row
    (expected,) = compare_checkpoints(first[2], second[2])
    assert {key: row[key] for key in ("low", "high", "p_value")} == {
        key: expected[key] for key in ("low", "high", "p_value")
    }
    del first[2]
    assert compare_cells(first, second) == []


def test_grouped_items_count_once_and_metrics_can_be_selected() -> None:
    random = np.random.default_rng(6)
    lead_SI = np.repeat(random.normal(size=(3, 10)), 6, axis=1)[:, np.argsort(np.tile(np.arange(6), 10), kind="stable")]
    grouped, alone = (
        compare_cells(cells(lead_SI, clusters=clusters), cells(np.zeros((3, 60)), clusters=clusters))[0]
        for clusters in (10, None)
    )
    assert grouped["difference"] == pytest.approx(alone["difference"])
    assert grouped["high"] - grouped["low"] > alone["high"] - alone["low"]
    assert compare_cells(cells(lead_SI), cells(lead_SI), ["task/other"]) == []
    assert len(compare_cells(cells(lead_SI), cells(lead_SI), ["task/sari"])) == 1


def test_constant_values_have_no_significant_difference() -> None:
    (row,) = compare_cells(cells(np.ones((2, 4))), cells(np.zeros((2, 4))))
    add_corrected_cell_p_values([row], 0.05)
    assert (row["difference"], row["p_value"], row["better"], row["detectable_difference"]) == (1.0, 1.0, None, None)
    assert compare_cells(cells(np.ones((2, 1))), cells(np.zeros((2, 1)))) == [], "one item is not informative"


def test_significance_level_is_the_requested_one() -> None:
    row = {"p_value": 0.03, "difference": 1.0, "higher_is_better": True, "detectable_difference": None}
    results = []
    for alpha in (0.01, 0.05, 0.07):
        rows = [dict(row), {**row, "p_value": 0.9}]
        add_corrected_cell_p_values(rows, alpha)
        results.append([one["better"] for one in rows])
    assert results == [[None, None], [None, None], ["a", None]], "0.03 of two is 0.06"


def test_proportions_differ_by_at_most_one() -> None:
    keys = [("dutch", "task", number, str(number)) for number in range(6)]

    def answers(*right: int) -> EvaluatedCheckpoint:
        return EvaluatedCheckpoint(
            "x", 8, {"acc": {key: bool(one) for key, one in zip(keys, right, strict=True)}}, {}, {}
        )

    one = {0: answers(1, 1, 1, 1, 1, 1), 1: answers(1, 0, 0, 0, 0, 0)}
    other = {0: answers(0, 0, 0, 0, 1, 0), 1: answers(1, 1, 0, 0, 0, 0)}
    (row,) = compare_cells(one, other)
    add_corrected_cell_p_values([row], 0.05)
    assert row["difference"] == pytest.approx(1 / 3)
    assert (row["low"], row["high"], row["detectable_difference"]) == (-1.0, 1.0, 1.0)


def test_lower_bits_are_better_and_bytes_are_the_units() -> None:
    keys = [("dutch", "text", number, str(number)) for number in range(4)]

    def reader(nats: list[float]) -> EvaluatedCheckpoint:
        sizes = (1, 2, 3, 4)
        likely = {key: (-one, size) for key, one, size in zip(keys, nats, sizes, strict=True)}
        return EvaluatedCheckpoint("x", 8, {}, {"bits_per_byte": likely}, {})

    one = {0: reader([1, 2, 3, 5]), 1: reader([1, 2, 4, 4])}
    other = {0: reader([3, 6, 9, 12]), 1: reader([3, 6, 9, 13])}
    (row,) = compare_cells(one, other)
    assert row["a"] == pytest.approx(22 / 2 / 10 / np.log(2)) and row["b"] == pytest.approx(61 / 2 / 10 / np.log(2))
    add_corrected_cell_p_values([row], 0.05)
    assert row["better"] == "a" and not row["higher_is_better"] and row["difference"] < 0


def test_undominated_rows_form_the_pareto_front() -> None:
    assert find_pareto_front([(1, 5), (2, 4), (2, 3), (0, 6), (2, 4)]) == [True, True, False, True, True]
    assert find_pareto_front([]) == []
