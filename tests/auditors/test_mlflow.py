"""MLflow reads the output of `runs --mlflow`: every finished model once, as recorded, or not at all."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.auditors.conftest import Run
from tests.conftest import ROOT, Project

pytestmark = pytest.mark.slow
KEEP = Path(__file__).parent / "keep_in_mlflow.py"
Keep = Callable[..., dict[str, Any]]
NEEDED = {
    "typer",
    "rich",
    "shellingham",
    "annotated_doc",
    "jinja2",
    "markupsafe",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
}
"""The packages that the printed installation command installs besides MLflow."""


@pytest.fixture
def keep(tmp_path: Path, auditor: Run) -> Keep:
    """Write the models below a folder into the test's store, and return what MLflow then reads of it."""

    def run(results: Path, *more: str | Path, code: int = 0) -> dict[str, Any]:
        store, *limit = more or (tmp_path / "store",)
        done = auditor("python", KEEP, ROOT, results, store, *limit)
        assert done.returncode == 0, done.stderr
        output = json.loads(done.stdout)
        assert (output["code"], output["asked"]) == (code, []), done.stderr
        assert set(output["needed"]) <= NEEDED, "the command runs with fewer packages than a run needs"
        return {**output["read"], "said": done.stderr}

    return run


def record(folder: Path, step: str, instance: dict[str, str], ended: str, **more: Any) -> None:
    content = {
        "step": step,
        "instance": instance,
        "settings": {},
        "code_version": f"code of {ended}",
        "environment_version": "cpu-1",
        "git": {"commit": "1" * 40, "dirty": False},
        "started": f"{ended}:00+00:00",
        "ended": f"{ended}:30+00:00",
        **dict.fromkeys(("wall_seconds", "cpu_seconds", "peak_memory_bytes"), 1),
        **{key: [] for key in ("command", "inputs", "outputs")},
        **more,
    }
    (folder / f"provenance/records/{'.'.join([step, *instance.values()])}.json").write_text(json.dumps(content))


def figure(name: str, value: Any, unit: str, how: str) -> dict[str, Any]:
    return {"figure": name, "label": name, "value": value, "unit": unit, "how": how, "from": []}


def write(folder: Path, configuration: dict[str, Any], lines: list[dict[str, Any]], **counts: Any) -> Path:
    """Write the files of a run with a model of two segments."""
    for name in ("provenance/records", "provenance/frozen", "report", "models/base"):
        (folder / name).mkdir(parents=True)
    (folder / "provenance/frozen/1.json").write_text(json.dumps({"configuration": configuration}))
    for step, ended in (("10", "2026-01-05T10:02"), ("5", "2026-01-05T10:01")):
        record(folder, "pretrain.segment", {"model": "base", "step": step}, ended)
    parameters = {"training.schedule": "wsd", "training.compile": False, "training.learning_rate": 0.01}
    settings = {"hyperparameters": parameters}
    record(folder, "pretrain.export", {"model": "base"}, "2026-01-05T10:03", settings=settings, counts=counts)
    (folder / "models/base/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = [
        figure("score.base.5.quiz.acc", 0.25, "acc", "computed"),
        figure("score.base.10.quiz.acc", 0.5, "acc", "computed"),
        figure("score.other.10.quiz.acc", 0.75, "acc", "computed"),
        figure("energy.model.base", 260.5, "J", "estimated"),
        figure("energy.model.other", 1.0, "J", "measured"),
        figure("energy.total", 999.0, "J", "estimated"),
    ]
    (folder / "report/figures.json").write_text(json.dumps(figures))
    return folder


STARTED = 1_767_607_260_000  # 2026-01-05T10:01 in UTC, in milliseconds since 1970
LINES = [
    {"step": 1, "loss": 5.0, "mfu": None, "ended_unix_seconds": STARTED / 1000 + 1.5, "reason": "x", "again": True},
    {"step": 1, "validation_loss": 4.0, "validation_loss/source/nl": 3.5, "../up": 3.0},
    {"step": 2, "loss": math.nan},
]


def test_exported_model_has_settings_curves_scores_and_joules(tmp_path: Path, keep: Keep) -> None:
    odd = {"to / from": "a\nb", "to /_from": "c", "..": "up", "é" * 300: "long", "x" * 250: "y" * 9000}
    configuration = {"run": {"name": "a", "seed": 7}, "models": {"base": {"seed": 1}}, "categories": odd}
    folder = write(tmp_path / "results/deep/a b", configuration, LINES)
    read = keep(tmp_path / "results")
    assert "deep/a b: 1 finished model in MLflow, 1 of them written now" in read["said"]
    (run,) = read["a b"]
    assert (run["run_name"], run["status"], run["start_time"]) == ("base", "FINISHED", STARTED)
    assert run["end_time"] == STARTED + 150_000
    ends, later = STARTED + 1500, STARTED + 150_000
    assert math.isnan(run["metrics"]["loss"].pop()[1])
    assert run["metrics"] == {
        "loss": [[1, 5.0, ends]],
        "validation_loss": [[1, 4.0, ends]],
        "validation_loss.source.nl": [[1, 3.5, ends]],
        f"_..up-{hashlib.sha256(b'../up').hexdigest()[:8]}": [[1, 3.0, ends]],
        "score.quiz.acc": [[5, 0.25, later], [10, 0.5, later]],
        "energy_joules_estimated": [[2, 260.5, later]],
    }
    params = run["params"]
    parameters = {"training.schedule": "wsd", "training.compile": "false", "training.learning_rate": "0.01"}
    assert {key: value for key, value in params.items() if not key.startswith("categories.")} == {
        "run.name": "a",
        "run.seed": "7",
        **parameters,
    }
    assert sorted(value[:4] for value in params.values() if value not in parameters.values()) == sorted(
        ["a", "7", "a\\nb", "c", "up", "long", "yyyy"]
    ), "keys are not merged"
    assert max(map(len, params.values())) == 500
    assert (
        run["tags"].items()
        >= {
            "polder.folder": str(folder),
            "polder.model": "base",
            "polder.outcome": "trained",
            "polder.code_version": "code of 2026-01-05T10:02",
            "polder.environment_version": "cpu-1",
            "mlflow.source.git.commit": "1" * 40,
        }.items()
    )


def test_repeated_export_updates_a_model_without_duplicating_it(tmp_path: Path, keep: Keep) -> None:
    steps, keys = range(1, 1202), range(101)  # more than MLflow accepts at once
    configuration = {"run": {str(key): key for key in keys}}
    first = write(tmp_path / "results/a", configuration, [{"step": step, "loss": 1 / step} for step in steps])
    write(tmp_path / "results/again/a", {}, LINES[:1], outcome={"status": "diverged"})
    before = {run["tags"]["polder.folder"]: run for run in keep(tmp_path / "results")["a"]}
    assert [one[:2] for one in before[str(first)]["metrics"]["loss"]] == [[step, 1 / step] for step in steps]
    assert {f"run.{key}": str(key) for key in keys}.items() <= before[str(first)]["params"].items()
    assert [run["status"] for run in before.values()].count("FAILED") == 1 and len(before) == 2
    read = keep(first)
    assert {run["run_id"] for run in read["a"]} == {run["run_id"] for run in before.values()}
    assert "a: 1 finished model in MLflow, 0 of them written now" in read["said"], "nothing is written twice"

    (tmp_path / "results/a/report/figures.json").write_text("[]")
    killed = before[str(tmp_path / "results/again/a")]["run_id"]
    (meta,) = (tmp_path / "store").glob(f"*/{killed}/meta.yaml")
    meta.write_text(meta.read_text().replace("status: 4", "status: 1"))
    runs = keep(tmp_path / "results")["a"]
    after = {run["tags"]["polder.folder"]: run for run in runs}
    assert len(runs) == len(after) == 2, "earlier values are gone"
    assert not {run["run_id"] for run in after.values()} & {run["run_id"] for run in before.values()}
    assert "score.quiz.acc" not in after[str(first)]["metrics"]
    assert after[str(tmp_path / "results/again/a")]["status"] == "FAILED"


def test_unreadable_run_or_unwritable_store_is_one_error_without_partial_writes(tmp_path: Path, keep: Keep) -> None:
    write(tmp_path / "results/a", {}, LINES)
    lines = [{"step": step, "loss": 5.0} for step in range(1, 100)]
    broken = write(tmp_path / "results/b", {}, lines) / "models/base/metrics.jsonl"
    read = keep(tmp_path / "results", tmp_path / "full", "1500", code=74)
    assert [run["run_name"] for run in read["a"]] == ["base"] and read["b"] == []
    broken.write_text('{"step": 1, "lo')
    (write(tmp_path / "results/unfinished", {}, []) / "provenance/records/pretrain.export.base.json").unlink()
    read = keep(tmp_path / "results")
    assert "b is left out of MLflow: " in read["said"] and set(read) == {"Default", "a", "said"}
    (tmp_path / "file").touch()
    read = keep(tmp_path / "results", tmp_path / "file", code=2)
    assert f"error: MLflow cannot write into {tmp_path / 'file'}: " in read["said"]


def test_exported_run_matches_its_records(finished: Project, keep: Keep) -> None:
    (run,) = keep(finished.results)["micro"]
    lines = [json.loads(line) for line in (finished.results / "models/base/metrics.jsonl").read_text().splitlines()]
    for key in ("loss", "learning_rate", "validation_bits_per_byte/source/en_guide"):
        recorded = [[line["step"], line[key]] for line in lines if key in line]
        assert [one[:2] for one in run["metrics"][key.replace("/", ".")]] == recorded != []
    export = json.loads((finished.results / "provenance/records/pretrain.export.base.json").read_text())
    assert export["settings"]["hyperparameters"].keys() <= run["params"].keys()
    (results,) = finished.results.glob("evaluation/base/*/results.json")
    for task in (content := json.loads(results.read_text()))["tasks"]:
        ((step, value, _),) = run["metrics"][f"score.{task['task']}.{task['metric']}"]
        assert (step, value) == (content["step"], task["value"])
    figures = {one["figure"]: one for one in json.loads((finished.results / "report/figures.json").read_text())}
    energy = figures["energy.model.base"]
    assert [one[1] for one in run["metrics"][f"energy_joules_{energy['how']}"]] == [energy["value"]]
