"""All runs of a folder side by side: differing settings, results, and nothing hidden by a damaged one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.experiment.mlflow_export import MLFLOW_VARIABLES
from pipeline.experiment.run_overview import find_runs_in_folder, format_models, format_runs

NL, EN = ({"name": name, "path": f"{name}.jsonl"} for name in ("nl", "en"))


def write(folder: Path, configuration: dict[str, Any], figures: list[dict[str, Any]] | None, jobs: int = 2) -> None:
    """Write the files of a run: records, its initial snapshot, and the figures of its report."""
    for name in ("provenance/records", "provenance/frozen", "report"):
        (folder / name).mkdir(parents=True)
    for number in range(jobs):
        (folder / f"provenance/records/{number}.json").write_text("{}")
    (folder / "provenance/records/.partial-node1.7-0.json").write_text("{")  # of a job that was killed
    for number, seed in ((9, 1), (10, configuration["run"]["seed"])):  # the tenth invocation is the last
        started = {**configuration, "run": {**configuration["run"], "seed": seed}}
        (folder / f"provenance/frozen/{number}.json").write_text(json.dumps({"configuration": started}))
    if figures is not None:
        (folder / "report/figures.json").write_text(json.dumps(figures))


def figure(name: str, value: float, unit: str, how: str) -> dict[str, Any]:
    return {"figure": name, "label": name, "value": value, "unit": unit, "how": how, "from": []}


def energy(value: float) -> dict[str, Any]:
    return figure("energy.total", value, "J", "estimated")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    price = figure("cost.total", 2.5, "EUR", "stated")
    score = figure("score.base.8.quiz.acc", 1 / 3, "acc", "computed")
    write(tmp_path / "a", {"run": {"name": "a", "seed": 7}, "sources": [NL]}, [energy(26000.0), score])
    write(tmp_path / "deeper/b", {"run": {"name": "b", "seed": 8}, "sources": [EN, NL]}, [energy(123.5), price], jobs=1)
    write(tmp_path / "c", {"run": {"name": "c", "seed": 7}, "sources": [NL]}, None)
    (tmp_path / "a/scratch/provenance/records").mkdir(parents=True)  # no run within a run
    (tmp_path / "deeper/above").symlink_to(tmp_path)  # no cycle
    return tmp_path


def cells(lines: list[str]) -> dict[str, list[str]]:
    """Return the cells of each row by its first one; empty ones by the columns of the header."""
    starts = [lines[0].index(word) for word in lines[0].split()]
    ends = [*starts[1:], None]
    return {
        line[: starts[0]].strip(): [line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines[1:]
    }


def test_run_column_shows_differing_settings_and_figures(results: Path) -> None:
    lines = format_runs(find_runs_in_folder(results))
    assert lines[0].split() == ["a", "c", "deeper/b"]
    assert cells(lines) == {
        "state": ["with a report", "2 jobs, no report", "with a report"],
        "run.seed": ["7", "7", "8"],
        "sources.en.name": ["", "", '"en"'],
        "sources.en.path": ["", "", '"en.jsonl"'],
        "energy.total, Wh": ["7.22222 estimated", "", "0.0343056 estimated"],
        "score.base.8.quiz.acc": ["0.333333", "", ""],
        "cost.total, EUR": ["", "", "2.5 stated"],
    }, "an added source changes no key of others"


def test_model_rows_are_sorted_by_loss(tmp_path: Path) -> None:
    def model(name: str, loss: float, joules: float) -> list[dict[str, Any]]:
        return [
            figure(f"model.{name}.parameters", 1200, "parameters", "counted"),
            figure(f"model.{name}.validation_bits_per_byte", loss, "bits per byte", "computed"),
            figure(f"energy.model.{name}", joules, "J", "measured"),
        ]

    first = [*model("base", 2.5, 7200.0), *model("rates-seed-1", 2.25, 3600.0), energy(9.0)]
    write(tmp_path / "a", {"run": {"name": "a", "seed": 7}}, first)
    write(tmp_path / "b", {"run": {"name": "b", "seed": 7}}, model("base", 1.5, 360.0)[:1])
    runs = find_runs_in_folder(tmp_path)
    rows = [re.split(r"  +", line.strip()) for line in format_models(runs)]
    assert rows == [
        ["model", "parameters", "validation loss, bits per byte", "energy, Wh"],
        ["a/rates-seed-1", "1200", "2.25", "1"],
        ["a/base", "1200", "2.5", "2"],
        ["b/base", "1200"],
    ]
    assert not any("model." in line for line in format_runs(runs)), "not twice"
    assert format_models({name: run._replace(figures={}) for name, run in runs.items()}) == []


def test_damaged_run_is_listed_and_names_are_escaped(results: Path) -> None:
    (results / "a/report/figures.json").write_text('[{"figure": 1}]')
    (results / "c/provenance/frozen/10.json").write_text("{")
    (results / "c").rename(results / "c\x1b[31m")
    columns = cells(lines := format_runs(find_runs_in_folder(results)))
    assert lines[0].split()[1] == "c\\x1b[31m"
    assert columns["state"] == ["2 jobs, a report that cannot be read", "2 jobs, no report", "with a report"]
    assert columns["run.seed"] == ["7", "", "8"] and columns["energy.total, Wh"] == ["", "", "0.0343056 estimated"]


def test_long_text_does_not_widen_a_column(results: Path) -> None:
    for name, letter in (("d", "x"), ("e", "y")):
        write(results / name, {"run": {"name": name, "seed": 7}, "sources": [NL], "use": letter * 5000}, None)
    assert max(map(len, format_runs(find_runs_in_folder(results)))) < 300
    columns = cells(format_runs(find_runs_in_folder(results)))["use"]
    assert [cell for cell in columns if cell] == [f'"{letter * 58}…' for letter in "xy"]


def test_command_prints_one_run_or_all_runs_of_a_folder(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(results / "a")]) == 0
    printed = capsys.readouterr().out
    assert printed.split()[0] == "a" and "run.seed" not in printed, "one run has no differences"
    assert "7.22222 estimated" in printed and "without their intervals" in printed


def test_missing_run_or_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run in"):
        find_runs_in_folder(tmp_path)
    with pytest.raises(InputError, match=r"there is no folder .*missing: name the folder of results"):
        find_runs_in_folder(tmp_path / "missing")


def test_missing_mlflow_error_explains_its_installation(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tests/auditors/test_mlflow.py` reads the MLflow output with MLflow."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for name in MLFLOW_VARIABLES:
        monkeypatch.setenv(name, "")  # and not the variables set by the command, after the test
    install = "nothing was written: `python -m pip install mlflow-skinny jinja2 pydantic typer`"
    with pytest.raises(InputError, match=install):
        main(["runs", str(results), "--mlflow", str(tmp_path / "store")])
    assert capsys.readouterr().out == "" and not (tmp_path / "store").exists()
