"""The ladder of the runs below a folder: its models, their cost, and the prediction of the largest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.application import main
from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.experiment import scaling_fit
from pipeline.experiment.ladder_scaling_law import Rung, find_rungs, fit_rungs, format_scaling_law
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.scaling_laws import ScalingLaw

LAW = ScalingLaw(0.9, 40.0, 300.0, 0.4, 0.4, "bits per byte")
TRAIN_TOKENS = 1_000_000
# Width, layers and steps of 1,000 tokens; the parameters of the blocks and norms, counted by hand, for 4 heads of which
# 2 have keys: layers x (3 width^2 of attention + 8 width^2 of the feed-forward, rounded up, + 2 width) + width.
MODELS = {
    "a": (32, 1, 300),
    "b": (32, 2, 800),
    "c": (64, 1, 1500),
    "d": (64, 2, 500),
    "e": (128, 1, 2500),
    "f": (128, 2, 1200),
    "g": (128, 4, 5000),
}


def parameters(width: int, layers: int) -> int:
    return layers * (3 * width**2 + 3 * width * 4 * width + 2 * width) + width


def law_lines(rungs: list[Rung], *, hold_out: bool) -> list[str]:
    return format_scaling_law(rungs, fit_rungs(rungs, hold_out=hold_out), hold_out=hold_out)


def write(folder: Path, models: dict[str, tuple[int, int, int]], *, index: str = "1" * 64, **losses: float) -> None:
    """Write the files of a run with its models: the records of two segments each, and the figures of its report."""
    (folder / "provenance/records").mkdir(parents=True)
    (folder / "report").mkdir()
    figures = [figure("tokens.main.train", TRAIN_TOKENS, "tokens", "counted")]
    for name, (width, layers, steps) in models.items():
        architecture = {"width": width, "layers": layers, "heads": 4, "key_value_heads": 2}
        architecture |= {"feed_forward_width": 4 * width}
        for step in (steps // 2, steps):
            record(folder, name, step, architecture, steps, index)
        tokens = 1000 * steps
        loss = losses.get(name, LAW.loss(parameters(width, layers), tokens))
        figures += [
            figure(f"model.{name}.validation_bits_per_byte", loss, "bits per byte", "computed"),
            figure(f"model.{name}.tokens_seen", tokens, "tokens", "counted"),
            figure(f"energy.model.{name}", 1000.0 * width, "J", "measured"),
        ]
    (folder / "report/figures.json").write_text(json.dumps(figures))


def figure(name: str, value: float, unit: str, how: str) -> dict[str, Any]:
    return {"figure": name, "label": name, "value": value, "unit": unit, "how": how, "from": []}


def record(
    folder: Path,
    model: str,
    step: int,
    architecture: dict[str, int],
    steps: int,
    index: str,
    *,
    is_cell: bool = False,
    **settings: Any,
) -> None:
    """Write the record of a segment, of an experiment cell or of another model."""
    training = {"steps": steps, "learning_rate": settings.pop("learning_rate", 0.01)}
    content = {
        "step": "pretrain.segment",
        "instance": {"model": model, "step": str(step)},
        "settings": {"architecture": architecture, "training": training, **settings},
        "operation": {"records_outcome": True} if is_cell else {},
        "inputs": [{"name": "index", "path": "tokens/main/index.json", "sha256": index, "bytes": 1}],
        "outputs": [],
        **dict.fromkeys(("code_version", "environment_version", "started", "ended"), ""),
        **dict.fromkeys(("wall_seconds", "cpu_seconds", "peak_memory_bytes"), 1),
        "command": [],
    }
    (folder / f"provenance/records/pretrain.segment.{model}.{step}.json").write_text(json.dumps(content))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_fit.fit_scaling_law, "__kwdefaults__", {"seed": 0, "draws": 20})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs: one with the first three models, the other with the rest."""
    write(tmp_path / "one", {name: MODELS[name] for name in "abc"})
    write(tmp_path / "deeper/two", {name: MODELS[name] for name in "defg"})
    return tmp_path


def test_models_of_several_runs_are_sorted_by_compute(results: Path) -> None:
    rungs, left_out = find_rungs(results)
    assert left_out == []
    assert [rung.model for rung in rungs] == [f"one/{n}" for n in "ab"] + [
        "deeper/two/d", "one/c", "deeper/two/f", "deeper/two/e", "deeper/two/g"
    ]  # fmt: skip
    for rung in rungs:
        width, layers, steps = MODELS[rung.model[-1]]
        assert rung.point[:2] == (parameters(width, layers), 1000 * steps)
        assert rung.epochs == steps / 1000 and rung.training_flops == 6 * parameters(width, layers) * 1000 * steps
    alone, _ = find_rungs(results / "one")
    assert [rung.model for rung in alone] == ["one/a", "one/b", "one/c"]


def test_largest_model_is_predicted_by_the_others_and_each_row_has_joules(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ladder", str(results), "--hold-out", "largest"]) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line}
    measured = LAW.loss(parameters(128, 4), 5e6)
    assert rows["one/a"].endswith("32,000 J measured") and "0.3 " in rows["one/a"] and "15,456" in rows["one/a"]
    assert "(held out)" in rows["deeper/two/g"] and "(held out)" not in rows["deeper/two/f"]
    result = re.search(
        r"two/g, held out: predicted ([\d.]+) \(([\d.]+) to ([\d.]+)\), measured ([\d.]+): (\S+) %", printed
    )
    assert result
    predicted, low, high, measured_text, off = map(float, result.groups())
    assert predicted == pytest.approx(measured, rel=2e-3) and low <= predicted <= high
    assert measured_text == pytest.approx(measured, abs=5e-5)
    assert off == pytest.approx(100 * (predicted / measured - 1), abs=0.01)
    assert printed.count("outside of the fitted range: parameters 2 x above, tokens 2 x above\n") == 1
    assert "two/g read theirs over 4 times" in printed
    assert rows["alpha"].split()[1].startswith("0.4")


def add_cell(folder: Path, name: str, rate: float, seed: int, loss: float, *, index: str = "1" * 64) -> None:
    """Add a finished cell with the size and tokens of model f to a run."""
    width, layers, steps = MODELS["f"]
    architecture = {"width": width, "layers": layers, "heads": 4, "key_value_heads": 2, "feed_forward_width": 4 * width}
    record(folder, name, steps, architecture, steps, index, learning_rate=rate, seed=seed, is_cell=True)
    figures = json.loads((folder / "report/figures.json").read_text())
    figures += [
        figure(f"model.{name}.validation_bits_per_byte", loss, "bits per byte", "computed"),
        figure(f"model.{name}.tokens_seen", 1000 * steps, "tokens", "counted"),
    ]
    (folder / "report/figures.json").write_text(json.dumps(figures))


def test_best_settings_with_all_their_seeds_count_as_ladder_rungs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, own = results / "deeper/two", LAW.loss(parameters(128, 2), 1.2e6)
    for name, rate, seed, loss in (
        ("x-high-seed-1", 0.02, 1, own - 0.02), ("x-high-seed-2", 0.02, 2, own + 0.01),
        ("x-low-seed-1", 0.005, 1, own + 0.3), ("e-same-seed-3", 0.01, None, own),
    ):  # fmt: skip
        add_cell(folder, name, rate, seed, loss)
    rungs, left_out = find_rungs(results)
    names = {rung.model.rpartition("/")[2] for rung in rungs}
    assert names == {*"abcdeg", "x-high-seed-1", "x-high-seed-2"}, "a lower mean despite one worse seed"
    assert left_out == [
        "left out: deeper/two/e-same-seed-3 is the same training as deeper/two/f",
        "left out: deeper/two/f has the size and the tokens of deeper/two/x-high-seed-1, whose settings give a lower "
        f"loss ({own - 0.005:.4f} instead of {own:.4f})",
        "left out: deeper/two/x-low-seed-1 has the size and the tokens of deeper/two/x-high-seed-1, whose settings "
        f"give a lower loss ({own - 0.005:.4f} instead of {own + 0.3:.4f})",
    ]
    assert main(["ladder", str(results), "--hold-out", "largest"]) == 0
    printed = capsys.readouterr().out
    assert "fitted to 7 of these 8 models, 2 of them cells of experiments:" in printed
    assert main(["ladder", str(results), "--hold-out", "largest", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["law"]["unit"] == "bits per byte" and len(content["models"]) == 8 and len(content["left_out"]) == 3
    for letter in ("E", "A", "B", "alpha", "beta"):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{letter} ")]
        figures = content["law"][letter]
        assert line.split()[1:] == [f"{figures['value']:.4g}", f"{figures['low']:.4g}", "to", f"{figures['high']:.4g}"]


def test_cell_with_other_tokens_is_left_out_and_changes_no_other_model(results: Path) -> None:
    before, _ = find_rungs(results)
    add_cell(results / "one", "0-first", 0.01, 1, 1.0, index="2" * 64)
    after, left_out = find_rungs(results)
    assert after == before
    assert left_out == ["left out: one/0-first was validated on other tokens than one/a"]


def test_held_out_model_does_not_change_the_law(results: Path) -> None:
    rungs, _ = find_rungs(results)
    worse = [*rungs[:-1], rungs[-1]._replace(point=rungs[-1].point._replace(loss=9.0))]
    laws = [
        [line for line in law_lines(some, hold_out=True) if line.startswith(("E ", "A ", "alpha"))]
        for some in (rungs, worse)
    ]
    assert laws[0] == laws[1] and len(laws[0]) == 3
    assert "measured 9.0000" in law_lines(worse, hold_out=True)[-2]


def test_all_models_are_fitted_without_hold_out_and_compute_is_split(results: Path) -> None:
    lines = law_lines(find_rungs(results)[0], hold_out=False)
    assert not any("held out" in line for line in lines)
    (split,) = [line for line in lines if "spent best" in line]
    flops, best_parameters, best_tokens = (float(n) for n in re.findall(r"([\d.]+e[+-]\d+)", split)[:3])
    assert flops == pytest.approx(6 * best_parameters * best_tokens, rel=0.02)


def test_unfinished_models_and_runs_without_a_report_are_named(results: Path) -> None:
    (results / "one/provenance/records/pretrain.segment.a.300.json").unlink()
    (results / "deeper/two/report/figures.json").unlink()
    rungs, left_out = find_rungs(results)
    assert [rung.model for rung in rungs] == ["one/b", "one/c"]
    assert left_out[-1] == "left out: one/a has done 150 of 300 training steps"
    assert "deeper/two/d has no model.d.validation_bits_per_byte in the report of its run" in left_out[0]
    with pytest.raises(InputError, match=r"needs 6 runs at least: here are 2; left out: .*one/a has done 150 of 300"):
        main(["ladder", str(results)])


def test_models_without_token_records_are_named(results: Path) -> None:
    figures = results / "deeper/two/report/figures.json"
    figures.write_text(figures.read_text().replace('"tokens.', '"other.'))
    record = results / "one/provenance/records/pretrain.segment.a.300.json"
    record.write_text(record.read_text().replace('"index"', '"other"'))
    _, left_out = find_rungs(results)
    assert any(re.search(r"deeper/two/d has no tokens\..*\.train in the report of its run", one) for one in left_out)
    assert "left out: one/a has no index of tokens in the record of its last segment" in left_out


def test_models_with_experts_are_left_out(results: Path) -> None:
    name = next(iter(sorted(results.rglob("pretrain.segment.g.*.json"))))
    content = json.loads(name.read_text())
    content["settings"]["architecture"] |= {"preset": "qwen3-moe", "experts": 4, "experts_per_token": 2}
    for path in results.rglob("pretrain.segment.g.*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "settings": content["settings"]}))
    rungs, left_out = find_rungs(results)
    assert not any(rung.model.endswith("/g") for rung in rungs) and any("has experts" in line for line in left_out)


def test_models_that_do_not_improve_with_size_give_no_optimal_split(results: Path) -> None:
    rungs, _ = find_rungs(results)
    flat = [rung._replace(point=rung.point._replace(loss=1 + 300 * rung.point.tokens**-0.4)) for rung in rungs]
    assert (
        "the fitted loss does not fall with more parameters, so no split of compute is optimal: vary them more"
        in law_lines(flat, hold_out=False)
    )


def test_unknown_energy_is_shown_as_not_known(results: Path) -> None:
    file = results / "one/report/figures.json"
    file.write_text(json.dumps([f for f in json.loads(file.read_text()) if not f["figure"].startswith("energy")]))
    lines = law_lines(find_rungs(results)[0], hold_out=False)
    assert [line.endswith("not known") for line in lines[1:8]].count(True) == 3


def test_losses_on_different_texts_are_not_fitted_together(results: Path) -> None:
    write(results / "three", {"h": (32, 1, 900)}, index="2" * 64)
    with pytest.raises(InputError, match=r"one/a and three/h were validated on different tokens.*share a token set"):
        find_rungs(results)


def test_shipped_ladder_has_twelve_models_that_determine_a_law() -> None:
    raw = yaml.safe_load(Path("config/ladder.yaml").read_text(encoding="utf-8"))
    models = parse_configuration({**raw, "data": "x"}).models.values()
    sizes = {parameter_count(model.architecture, 0) for model in models}
    tokens = {m.training.steps * m.training.batch_size * m.training.sequence_length for m in models}
    assert len(models) == 12 == len(sizes) * len(tokens)
    assert min(sizes) == 101_808 and max(sizes) == 787_584 and len(tokens) == 3
    assert all(model.training.steps % model.training.validation_every == 0 for model in models), "validated at its end"
