"""A killed evaluation keeps its finished tasks: they are not repeated, and the results have the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import DiskFull
from pipeline.core.output_lease import Lease
from pipeline.evaluate import baselines, suites
from pipeline.evaluate.settings import BaselineSettings, Suite
from pipeline.evaluate.task_file_reader import list_suite_files
from tests.evaluate.test_suites import CONFIG, PAIRS, QUESTIONS, evaluate

NAMES = ("polder_nl_grammatica", "polder_nl_kennis", "tales")
KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.evaluate import suites
from pipeline.evaluate.settings import Suite
from tests.evaluate.test_suites import evaluate
measure, asked = suites.run_lm_eval, []

def killed(*given):
    if len(asked) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    asked.append(1)
    return measure(*given)

suites.run_lm_eval = killed
milestone, results, scratch, *given = sys.argv[1:]
evaluate(Path(milestone), Path(results), *map(Suite.model_validate_json, given), scratch=Path(scratch))
"""
IN_PROCESSES = """
import sys
from pathlib import Path
from pipeline.evaluate.settings import Suite
from tests.evaluate.test_evaluation_processes import LAUNCH, evaluated
milestone, folder, scratch = map(Path, sys.argv[1:4])
suites = [Suite.model_validate_json(given) for given in sys.argv[4:]]
evaluated(milestone, folder, LAUNCH.replace("=3", "=2"), suites, scratch)
"""


@pytest.fixture
def given(tmp_path: Path) -> list[Suite]:
    """Two suites of three tasks."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name, rows in (("polder_nl_kennis", QUESTIONS), ("polder_nl_grammatica", PAIRS)):
        shutil.copy(CONFIG / "dutch" / f"{name}.yaml", folder)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "tales.jsonl").write_text('{"text": "Er was eens een kat."}\n{"text": "Zij sliep."}\n', encoding="utf-8")
    texts = {"tales": {"language": "nl", "path": str(folder / "tales.jsonl")}}
    return [
        Suite(name="own", language="nl", folder=str(folder)),
        Suite.model_validate({"name": "texts", "language": "", "texts": texts}),
    ]


@pytest.fixture
def evaluated_tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks evaluated from now on."""
    names: list[str] = []
    measure = suites.run_lm_eval

    def noted(model: Any, suite: Any, tasks: dict[str, Any], *others: Any) -> Any:
        names.extend(tasks)
        return measure(model, suite, tasks, *others)

    monkeypatch.setattr(suites, "run_lm_eval", noted)
    return names


def started(code: str, *words: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CONFIG.parents[1])}
    environment.pop("MKL_CBWR", None)  # a step sets it itself
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment)


def answers(results: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(results.with_suffix(".parquet")).to_pylist()
    return rows


def test_tasks_finished_before_a_kill_are_not_repeated(
    milestone: Path, tmp_path: Path, given: list[Suite], evaluated_tasks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results.json"
    killed = started(KILLED, milestone, results, scratch, *(suite.model_dump_json() for suite in given))
    assert killed.wait(timeout=300) == -signal.SIGKILL and not results.exists()
    assert len([*scratch.iterdir()]) == 2, "two tasks were finished"
    evaluate(milestone, results, *given, scratch=scratch)
    assert evaluated_tasks == [NAMES[2]]
    evaluate(milestone, tmp_path / "whole.json", *given)
    assert answers(results) == answers(tmp_path / "whole.json"), "first by item, named in the message"
    assert results.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert results.with_suffix(".parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def change_model(milestone: Path, _: Path) -> Path:
    path = milestone / "huggingface" / "generation_config.json"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    return milestone


def change_data(milestone: Path, folder: Path) -> Path:
    path = folder / "polder_nl_kennis.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("een", "eens"), encoding="utf-8")
    return milestone


def change_template(milestone: Path, folder: Path) -> Path:
    path = folder / "polder_nl_grammatica.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "fewshot_delimiter: '; '\n", encoding="utf-8")
    return milestone


@pytest.mark.parametrize(
    ("change", "settings", "again"),
    [
        (None, {}, ()),
        (None, {"seed": 1}, NAMES),
        (None, {"batch_size": 3}, NAMES),
        (None, {"deterministic": False}, NAMES),
        (None, {"versions": ["code", "other"]}, NAMES),
        (None, {"versions": ["other", "environment"]}, NAMES),
        (None, {"limit": 4}, NAMES[:2]),
        (change_model, {}, NAMES),
        (change_data, {}, (NAMES[1],)),
        (change_template, {}, (NAMES[0],)),
    ],
)
def test_results_of_other_models_tasks_settings_or_versions_are_not_reused(
    milestone: Path,
    tmp_path: Path,
    given: list[Suite],
    evaluated_tasks: list[str],
    change: Callable[[Path, Path], Path] | None,
    settings: dict[str, Any],
    again: tuple[str, ...],
) -> None:
    own = Path(shutil.copytree(milestone, tmp_path / "milestone"))
    scratch, results = tmp_path / "scratch", tmp_path / "results.json"
    evaluate(own, results, *given, scratch=scratch)
    assert evaluated_tasks == [*NAMES]
    evaluated_tasks.clear()
    if change:
        change(own, Path(str(given[0].folder)))
    if limit := settings.pop("limit", None):
        given = [given[0].model_copy(update={"limit": limit}), given[1]]
    evaluate(own, results, *given, scratch=scratch, **settings)
    assert evaluated_tasks == [*again]


@pytest.mark.parametrize("damage", [b"", b"{}", b"0000"])
def test_damaged_results_are_evaluated_again(
    milestone: Path, tmp_path: Path, given: list[Suite], evaluated_tasks: list[str], damage: bytes
) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results.json"
    evaluate(milestone, results, *given, scratch=scratch)
    whole = results.read_bytes()
    evaluated_tasks.clear()
    one, two, _ = sorted(scratch.iterdir())
    one.write_bytes(damage)
    two.write_bytes(two.read_bytes().replace(b"0", b"1", 9)[:-1])
    evaluate(milestone, results, *given, scratch=scratch)
    assert len(evaluated_tasks) == 2 and results.read_bytes() == whole


def test_scratch_is_removed_after_the_step_is_recorded(milestone: Path, tmp_path: Path, given: list[Suite]) -> None:
    for module, settings in (
        (suites, suites.SuitesSettings(model="base", step=7, suites=given)),
        (baselines, BaselineSettings(name="peer", suites=given)),
    ):
        scratch = tmp_path / "scratch" / module.__name__
        owner = Lease(scratch)
        inputs: dict[str, Any] = {
            "milestone": milestone,
            "index": milestone / "tokens/index.json",
            "baselines": [],
        }
        module.run(  # type: ignore[attr-defined]
            settings,
            **(inputs if module is suites else {"model": sorted((milestone / "huggingface").iterdir())}),
            tasks=[file for suite in given for file in list_suite_files(suite)],
            results=tmp_path / "results.json",
            answers=tmp_path / "items.parquet",
            scratch=scratch,
            versions=["code", "environment"],
            owner=owner,
        )
        assert len([*scratch.iterdir()]) == len(NAMES)
        owner.afterwards()
        assert not scratch.exists()


def test_full_scratch_disk_ends_the_evaluation(
    milestone: Path, tmp_path: Path, given: list[Suite], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("the scratch is full")

    monkeypatch.setattr("pipeline.evaluate.finished_tasks.write_atomically", full)
    with pytest.raises(DiskFull):
        evaluate(milestone, tmp_path / "results.json", *given, scratch=tmp_path / "scratch")


@pytest.mark.slow
@pytest.mark.thorough
def test_several_processes_resume_equally_after_a_kill(milestone: Path, tmp_path: Path, given: list[Suite]) -> None:
    scratch, whole = tmp_path / "scratch", tmp_path / "whole"
    suites = [suite.model_dump_json() for suite in given]
    killed = started(IN_PROCESSES, milestone, tmp_path / "killed", scratch, *suites)
    while not (scratch.is_dir() and any(path.suffix == ".json" for path in scratch.iterdir())):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed" / "results.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in scratch.iterdir()}
    assert started(IN_PROCESSES, milestone, tmp_path / "continued", scratch, *suites).wait(timeout=300) == 0
    assert {name: (scratch / name).stat().st_mtime_ns for name in kept} == kept, "they are not repeated"
    assert started(IN_PROCESSES, milestone, whole, tmp_path / "other", *suites).wait(timeout=300) == 0
    for name in ("results.json", "items.parquet"):
        assert (tmp_path / "continued" / name).read_bytes() == (whole / name).read_bytes()
    assert len([*scratch.iterdir()]) == len([*(tmp_path / "other").iterdir()]) > len(kept)
