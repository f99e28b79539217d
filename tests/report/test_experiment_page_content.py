"""The page of an experiment shows its records, metrics and answers, and the report links its cells there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from pipeline.energy.run_energy_report_reader import EnergyFigure
from pipeline.evaluate.item_results import MeasuredTask, TaskItem, write_items
from pipeline.experiment.settings import Cell, ExperimentPage
from pipeline.pretrain.monitors.held_out_document_losses import SCHEMA
from pipeline.report import experiment_page_content
from pipeline.report import page as page_step
from tests.report.example import HOSTILE, Run, task
from tests.report.test_page import Outline, outline

RATES = (0.001, 0.002, 0.004)
LOSSES = {0.001: (3.0, 3.2), 0.002: (2.0, 2.2), 0.004: (2.5, None)}
SPEEDS = {0.001: 500, 0.002: 400, 0.004: 600}
RIGHT = {0.001: 50, 0.002: 180, 0.004: 55}  # of 200 items
REASON = "loss is inf: lower <it>"


def answered(right: int) -> list[TaskItem]:
    return [
        TaskItem(n, f"hash{n}", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {"acc": n < right})
        for n in range(200)
    ]


def cells(run: Run, seeds: tuple[int, ...] = (1, 2)) -> list[Cell]:
    """Write the cells of three rates and two seeds, the last diverged; return them and an infeasible one."""
    made = []
    for rate in RATES:
        for seed, loss in zip(seeds, LOSSES[rate], strict=False):
            name = f"x-{rate}-seed-{seed}".replace(".", "_")
            made.append(Cell(name=name, values={"training.learning_rate": rate}, seed=seed, steps=2))
            outcome = {"status": "diverged", "reason": REASON, "reached_step": 1, "step": 2}
            counts: dict[str, Any] = {"steps": 1, "outcome": outcome} if loss is None else {"steps": 2, "world_size": 2}
            run.record("pretrain.segment", {"model": name, "step": "2"}, 9, counts=counts)
            lines = [
                {"step": step, "tokens_seen": 100 * step, "loss": (loss or 7) + 1, "tokens_per_second": SPEEDS[rate]}
                for step in (1, 2)[: 1 if loss is None else 2]
            ]
            lines += [] if loss is None else [{"step": 2, "validation_loss": loss}]
            run.write(f"models/{name}/metrics.jsonl", "\n".join(map(json.dumps, lines)))
            tasks = [] if loss is None else [task("completion", RIGHT[rate] / 200, 0.01, None)]
            results = {"model": name, "step": 2, "tasks": tasks, "not_asked": []}
            file = run.write(f"evaluation/{name}/2/results.json", results)
            items = [] if loss is None else answered(RIGHT[rate] + seed)
            write_items(file.with_name("items.parquet"), [MeasuredTask("dutch", "completion", [], items)])
    none = {"training.learning_rate": 8.0}
    return [*made, Cell(name="x-none", values=none, seed=1, steps=2, refused=f"{HOSTILE} needs 9 GiB")]


def made(
    run: Run, results: list[Cell], language: str = "en", key: str = "training.learning_rate", **changes: Any
) -> tuple[Outline, Outline]:
    """Return the report and the page of the experiment whose cells vary this key."""
    experiment = {"equal": "steps", "to": {key: 0.001}, "metrics": [], "alpha": 0.05, **changes}
    varied = [one.model_copy(update={"values": dict(zip([key], one.values.values(), strict=True))}) for one in results]
    page = ExperimentPage(base="base", keys=[key], cells=varied, **experiment)
    settings = run.settings.model_copy(update={"experiments": {"x": page}, "language": language})
    folder = run.root / "report/experiments"
    if folder.exists():
        (folder / "x.html").unlink()
        folder.rmdir()
    page_step.run(settings, **run.arguments(), experiments=folder)
    assert [path.name for path in folder.iterdir()] == ["x.html"]
    return outline(run.root / "report/index.html"), outline(folder / "x.html")


def test_page_marks_the_best_cells_and_the_report_links_to_it(run_folder: Run) -> None:
    report, page = made(run_folder, cells(run_folder))
    assert {"href": "experiments/x.html"} in report.all("a") and "7 cells of model base" in report.text
    assert "x-0_001-seed-1" not in report.text.split("8. Energy")[0], "cells are on their own page"
    assert "learning_rate 0.001 2 / 2 3.100 ± 0.14 500.0 ± 0" in page.text
    assert "learning_rate 0.002 2 / 2 2.100 ± 0.14 400.0 ± 0" in page.text
    assert "learning_rate 0.004 1 / 2 2.500 600.0" in page.text, "the mean of finished cells"
    assert "learning_rate 8.0 0 / 1 – – –" in page.text
    assert "Speed, memory and electricity" in page.text and "tokens per second of a device" in page.text
    assert "2 / 2 200 " in page.text and " 500.0 250.0 – – – " in page.text, "a process has half of the speed"
    assert "Score: Validation loss, nats per token." in page.text and "Score ↓" in page.text


@pytest.mark.parametrize("key", ["tokens", "corpus.exclude_sources"])
def test_losses_on_different_texts_have_no_best_cell(run_folder: Run, key: str) -> None:
    listed = cells(run_folder)
    _, page = made(run_folder, listed, key=key)
    name = key.rpartition(".")[2]
    assert f"{name} 0.001 2 / 2 – 500.0" in page.text and "Score: none: the cells' held-out texts differ" in page.text
    assert "so losses of cells are not comparable" in page.text
    assert "score" not in page.text.split("combinations lack are left out.")[-1].split("Which differ?")[0]
    _, page = made(run_folder, listed, key=key, metrics=["completion/acc"])
    assert f"{name} 0.001 2 / 2 0.250" in page.text, "a metric is of the same items"
    _, page = made(run_folder, listed)
    assert "losses of cells are not comparable" not in page.text


def combination(*losses: float) -> dict[str, Any]:
    usual = {"outcome": "finished", "tokens_per_second": 10.0, "energy": EnergyFigure()}
    return {"label": str(losses), "cells": [{**usual, "loss": loss} for loss in losses]}


def test_summation_order_does_not_determine_the_best_cell() -> None:
    combinations = [combination(loss) for loss in (8.335, 8.335 * (1 + 1e-7), 8.335 * (1 + 1e-4))]
    experiment_page_content._rank_combinations(combinations, "loss", 0.05)
    assert [one["best"] for one in combinations] == [["score", "speed"], ["score", "speed"], ["speed"]]


def test_cells_indistinguishable_across_seeds_are_equally_good() -> None:
    # Two-sided p of Welch's test against the first: 0.01295 of the second, 0.374 of the third.
    losses = [(2.10, 2.12, 2.11), (2.20, 2.18, 2.16), (2.11, 2.13, 2.115)]
    combinations = [combination(*of_one) for of_one in losses]
    experiment_page_content._rank_combinations(combinations, "loss", 0.05)
    assert [one["best"] for one in combinations] == [["score", "speed"], ["speed"], ["score", "speed"]]
    assert [one["undominated"] for one in combinations] == [True, False, True]
    # A lucky single seed: t is 0.02 / (0.01 sqrt(1 + 1/3)), 1.73 of two degrees of freedom, p 0.23; then 8.7 and 0.013.
    for loss, best in ((2.09, [["score", "speed"]] * 2), (2.01, [["speed"], ["score", "speed"]])):
        single = [combination(*losses[0]), combination(loss)]
        experiment_page_content._rank_combinations(single, "loss", 0.05)
        assert [one["best"] for one in single] == best
    experiment_page_content._rank_combinations(combinations, "loss", 0.02)  # half of it for each of two comparisons
    assert [one["best"] for one in combinations] == [["score", "speed"]] * 3


def test_fronts_and_best_cells_equal_hand_computed_ones(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[dict[str, Any]] = []
    real = page_step.summarize_experiment

    def keep(*given: Any) -> dict[str, Any]:
        results.append(real(*given))
        return results[-1]

    monkeypatch.setattr(page_step, "summarize_experiment", keep)
    listed = cells(run_folder)
    made(run_folder, listed)
    combinations = {one["label"]: one for one in results[0]["combinations"]}
    bests = {label.split()[1]: (one["best"], one["undominated"]) for label, one in combinations.items()}
    # By speed 0.004; by score 0.002, whose two seeds do not differ significantly from 0.004: p is 0.26. So 0.004 is as
    # good in all, and alone on the front; joules are likewise those of a job.
    assert bests == {
        "0.001": (["joules"], False),
        "0.002": (["score", "joules"], False),
        "0.004": (["score", "speed", "joules"], True),
        "8.0": ([], False),
    }
    assert combinations["learning_rate 0.002"]["score"] == pytest.approx(-fmean(LOSSES[0.002]))  # type: ignore[arg-type]
    rows = {row["label"]: row for row in results[0]["of_scores"]}
    assert (
        rows["learning_rate 0.002"]["difference"] == pytest.approx(0.65)
        and rows["learning_rate 0.002"]["better"] == "a"
    )
    assert rows["learning_rate 0.002"]["seeds"] == [1, 2] and rows["learning_rate 0.004"]["seeds"] == [1]
    assert results[0]["one_seed"] == ["learning_rate 0.004"] and results[0]["real"] == 1 + (
        rows["learning_rate 0.004"]["better"] is not None
    )
    made(run_folder, listed, metrics=["completion/acc", "none/acc"])
    assert results[1]["higher_is_better"] and results[1]["not_found"] == ["none/acc"]
    assert [one["best"] for one in results[1]["combinations"]][1] == ["score", "joules"]
    assert results[1]["combinations"][0]["score"] == 0.25


def test_figure_missing_from_some_cells_has_no_best_cell(run_folder: Run) -> None:
    listed = cells(run_folder)
    for seed in (1, 2):
        path = run_folder.root / f"models/x-0_002-seed-{seed}/metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(lines[: 2 if seed == 1 else 3]), encoding="utf-8")
    _, page = made(run_folder, listed)
    assert "learning_rate 0.002 2 / 2 – 400.0 ± 0" in page.text, "one of two seeds has no validation loss"
    assert "score" not in page.text.split("combinations lack are left out.")[-1].split("Which differ?")[0]


def test_outcomes_have_reasons_and_are_escaped(run_folder: Run) -> None:
    result = cells(run_folder)
    samples = {"model": result[0].name, "samples": [], "written": [], "held_out": []}
    run_folder.write(f"evaluation/{result[0].name}/samples.json", samples)
    _, page = made(run_folder, result)
    assert f"diverged: {REASON} 1 / 2 100 8 – 600 " in page.text
    assert f"not run: {HOSTILE} needs 9 GiB 0 / 2" in page.text
    assert "finished 2 / 2 200 4.000 3.000 500" in page.text
    assert not [tag for tag, _ in page.tags if tag in ("img", "it")] and len(page.all("script")) == 1
    assert len(page.all("caption")) == len(page.all("table")) == 3
    links = {str(link["href"]) for link in page.all("a")}
    for link in links:
        assert (run_folder.root / "report/experiments" / link).resolve().is_file(), link
    assert {"../index.html", "../../models/x-0_001-seed-1/metrics.jsonl"} <= links
    assert [link for link in links if "samples" in link] == ["../../evaluation/x-0_001-seed-1/samples.json"]
    assert page.all("svg"), "curves"


def test_single_seed_reports_unknown_training_noise(run_folder: Run) -> None:
    _, page = made(run_folder, [cell for cell in cells(run_folder, (1,)) if cell.refused is None])
    assert (
        "One seed: no training noise known" in page.text and "(learning_rate 0.002; learning_rate 0.004)" in page.text
    )
    assert "Comparisons: 2; real differences among them: 1." in page.text
    _, page = made(run_folder, cells(run_folder), to={"training.learning_rate": 8.0})
    assert "No two combinations have finished cells of one seed" in page.text


def write_losses(run: Run, name: str, nats: list[float], sizes: list[int]) -> None:
    """Write validation losses of documents of these sizes in bytes, and their means."""
    columns = [[*range(len(nats))], ["laws"] * len(nats), sizes, sizes, nats]
    arrays = [pa.array(values).cast(field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    path = run.root / f"models/{name}/document_losses.parquet"
    pq.write_table(pa.table(arrays, SCHEMA), path)
    lines = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
    bits = sum(nats) / math.log(2) / sum(sizes)
    lines.append({"step": 2, "validation_loss": sum(nats) / sum(sizes), "validation_bits_per_byte": bits})
    path.with_name("metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


def write_sweep(run: Run, effects: dict[float, float], seeds: tuple[int, ...]) -> tuple[list[Cell], dict[Any, Any]]:
    """Write cells of a sweep without evaluation; return them and their nats by rate and seed, (documents,).

    The first rate loses `effects` more nats per byte than others, and each cell some of its own.
    """
    random = np.random.default_rng(7)
    sizes = random.integers(50, 900, 40)
    of_document, result, nats = random.normal(1.5, 0.3, 40), [], {}
    for rate, effect in effects.items():
        for seed in seeds:
            name = f"y-{rate}-seed-{seed}".replace(".", "_")
            run.record("pretrain.segment", {"model": name, "step": "2"}, 9, counts={"steps": 2, "world_size": 1})
            run.write(f"models/{name}/metrics.jsonl", json.dumps({"step": 1, "tokens_seen": 100, "loss": 3.0}))
            losses = (of_document + effect + random.normal(0, 0.05, 40) + random.normal(0, 0.01)) * sizes
            nats[rate, seed] = losses
            write_losses(run, name, losses.tolist(), sizes.tolist())
            result.append(Cell(name=name, values={"training.learning_rate": rate}, seed=seed, steps=2))
    return result, nats | {"sizes": sizes}


def by_document(run: Run, monkeypatch: pytest.MonkeyPatch, results: list[Cell], **changes: Any) -> tuple[Any, Outline]:
    """Return the comparisons by document, by the rates of both sides, and the page."""
    kept: list[dict[str, Any]] = []
    real = experiment_page_content.summarize_experiment
    monkeypatch.setattr(page_step, "summarize_experiment", lambda *given: kept.append(real(*given)) or kept[-1])
    _, page = made(run, results, **changes)
    return {tuple(row[side].split()[1] for side in ("label", "other")): row for row in kept[-1]["by_document"]}, page


def test_each_pair_of_combinations_is_compared_by_held_out_document(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, nats = write_sweep(run_folder, {0.001: 0.2, 0.002: 0.0, 0.004: 0.001}, (1, 2, 3))
    rows, page = by_document(run_folder, monkeypatch, result)
    assert {frozenset(pair) for pair in rows} == {
        frozenset(pair) for pair in (("0.001", "0.002"), ("0.001", "0.004"), ("0.002", "0.004"))
    }
    sizes = nats["sizes"]
    for (label, other), row in rows.items():
        # Independent check: a two-way analysis of variance of the differences by hand, in bits of each document.
        bits_SD = np.stack([(nats[float(label), s] - nats[float(other), s]) / np.log(2) for s in (1, 2, 3)])
        value = bits_SD.sum() / (3 * sizes.sum())
        seeds_S, rest_D = bits_SD.sum(axis=1) / sizes.sum(), bits_SD.mean(axis=0) - value * sizes
        both_SD = bits_SD - seeds_S[:, None] * sizes - rest_D
        of_seeds, of_documents = seeds_S.var(ddof=1) / 3, 40 / 39 * (rest_D**2).sum() / sizes.sum() ** 2
        of_both = 40 / 39 * (both_SD**2).sum() / sizes.sum() ** 2 / 6
        variance = max(of_seeds + of_documents - of_both, of_seeds, of_documents)
        freedom = variance**2 / (of_seeds**2 / 2 + of_documents**2 / 39)
        assert row["difference"] == pytest.approx(value) and row["difference"] <= 0, "the lower loss is named first"
        assert row["p_value"] == pytest.approx(2 * stats.t.sf(abs(value) / variance**0.5, freedom))
        assert [row["low"], row["high"]] == pytest.approx(stats.t.interval(0.95, freedom, value, variance**0.5))
        assert row["seeds"] == [1, 2, 3] and row["items"] == 40
    ordered = sorted(rows.values(), key=lambda row: row["p_value"])
    steps = [row["p_value"] * (3 - place) for place, row in enumerate(ordered)]
    assert [row["p_value_corrected"] for row in ordered] == pytest.approx(np.minimum(1, np.maximum.accumulate(steps)))
    real = {pair for pair, row in rows.items() if row["better"]}
    assert real == {pair for pair in rows if "0.001" in pair}, "the rate with the effect"
    assert "Comparisons: 3; real differences among them: 2." in page.text and "One seed" not in page.text
    assert "Scores, by item" not in page.text and "No two combinations" not in page.text
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert "Score: Validation loss, bits per byte." in page.text


def test_single_seed_is_compared_only_by_documents(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result, nats = write_sweep(run_folder, {0.001: 0.02, 0.002: 0.0}, (5,))
    rows, page = by_document(run_folder, monkeypatch, result)
    (((label, other), row),) = rows.items()
    bits, sizes = (nats[float(label), 5] - nats[float(other), 5]) / np.log(2), nats["sizes"]
    swapped = stats.permutation_test((bits,), np.sum, permutation_type="samples", n_resamples=20_000, rng=3)
    assert row["p_value"] == pytest.approx(swapped.pvalue, abs=0.01) and 0.0001 < swapped.pvalue < 0.2
    # Resamples of documents, studentized, with other draws: far tails depend on few documents, hence the tolerance.
    random, value = np.random.default_rng(11), bits.sum() / sizes.sum()
    drawn_RD = random.integers(0, 40, (4000, 40))
    bits_RD, sizes_RD = bits[drawn_RD], sizes[drawn_RD]
    value_R = bits_RD.sum(axis=1) / sizes_RD.sum(axis=1)
    rest_RD = bits_RD - value_R[:, None] * sizes_RD
    error_R = np.sqrt(40 / 39 * (rest_RD**2).sum(axis=1)) / sizes_RD.sum(axis=1)
    error = np.sqrt(40 / 39 * ((bits - value * sizes) ** 2).sum()) / sizes.sum()
    far = np.quantile((value_R - value) / error_R, [0.975, 0.025])
    assert [row["low"], row["high"]] == pytest.approx(value - far * error, abs=0.3 * error)
    assert "One seed: no training noise known" in page.text
    assert "(learning_rate 0.001; learning_rate 0.002)" in page.text


def test_different_documents_are_not_compared(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result, nats = write_sweep(run_folder, {0.001: 0.2, 0.002: 0.0}, (1, 2))
    sizes, name = nats["sizes"].tolist(), result[0].name
    write_losses(run_folder, name, nats[0.001, 1].tolist()[:30], [*sizes[:20], *(size + 1 for size in sizes[20:30])])
    rows, _ = by_document(run_folder, monkeypatch, result)
    assert [row["items"] for row in rows.values()] == [20], "same ids and sizes"
    rows, page = by_document(run_folder, monkeypatch, result, key="tokens")
    assert rows == {} and "No two combinations" in page.text, "other token sets hold out other documents"


def test_cells_of_an_earlier_version_are_named_and_the_others_compared(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = write_sweep(run_folder, {0.001: 0.2, 0.002: 0.0, 0.004: 0.1}, (1, 2))
    for cell in result[:2]:
        pq.write_table(SCHEMA.empty_table(), run_folder.root / f"models/{cell.name}/document_losses.parquet")
    rows, page = by_document(run_folder, monkeypatch, result)
    assert {*rows} == {("0.002", "0.004")}
    sentence = "an earlier version trained them and recorded no loss for each document: "
    assert f"{sentence}{result[0].name}, {result[1].name}." in page.text


def test_many_combinations_are_compared_with_one(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_page_content, "MOST_PAIRED", 2)
    result, _ = write_sweep(run_folder, {0.001: 0.2, 0.002: 0.0, 0.004: 0.1}, (1, 2))
    rows, page = by_document(run_folder, monkeypatch, result)
    assert {*rows} == {("0.002", "0.001"), ("0.004", "0.001")}
    assert "with up to 2 combinations every pair would be compared" in page.text
    rows, _ = by_document(run_folder, monkeypatch, result, metrics=["completion/acc"])
    assert rows == {}, "only named metrics are used"
    rows, page = by_document(run_folder, monkeypatch, result, metrics=["validation/bits_per_byte"])
    assert len(rows) == 2 and "Score: Validation loss, bits per byte." in page.text and "No cell" not in page.text


def test_finished_cells_are_key_figures(run_folder: Run) -> None:
    result = cells(run_folder)
    run_folder.record("pretrain.segment", {"model": result[0].name, "step": "10"}, 9, counts={"parameters": 77})
    made(run_folder, result)
    figures = {figure["figure"]: figure for figure in run_folder.read("report/figures.json")}
    loss = figures["model.x-0_001-seed-1.validation_loss"]
    assert loss["value"] == 3.0 and loss["from"][0] == "models/x-0_001-seed-1/metrics.jsonl"
    assert figures["model.x-0_001-seed-1.tokens_seen"]["value"] == 200
    assert figures["model.x-0_001-seed-1.parameters"]["value"] == 77, "of the last segment"
    assert figures["score.x-0_002-seed-2.2.completion.acc"]["value"] == 0.9
    assert not any(name.startswith(("model.x-0_004-seed-2", "model.x-none")) for name in figures), "not finished"


def test_dutch_page_has_the_same_structure_and_is_reproducible(run_folder: Run) -> None:
    result = cells(run_folder)
    _, english = made(run_folder, result)
    before = (run_folder.root / "report/experiments/x.html").read_bytes()
    made(run_folder, result)
    assert (run_folder.root / "report/experiments/x.html").read_bytes() == before
    _, dutch = made(run_folder, result, "nl")
    assert [tag for tag, _ in dutch.tags] == [tag for tag, _ in english.tags]
    for words in ("gedivergeerd", "niet uitgevoerd", "Welke is de beste?", "geen verschil gevonden", "gelijke stappen"):
        assert words in dutch.text
    for words in ("diverged", "not run", "Which is best?", "One seed", "finished", "Validation loss"):
        assert words not in dutch.text


def test_run_without_experiments_has_no_experiment_folder(run_folder: Run) -> None:
    page_step.run(run_folder.settings, **run_folder.arguments())
    assert not (run_folder.root / "report/experiments").exists()
    assert "Experiments" not in outline(Path(run_folder.root / "report/index.html")).text
