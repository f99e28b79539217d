"""One process or several give the same answers; an error is reported once, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.evaluate.suites import run
from pipeline.evaluate.task_file_reader import list_suite_files
from tests import warm_python
from tests.evaluate.test_suites import CONFIG

LAUNCH = "torchrun --standalone --nproc-per-node=3"
TASKS = ("dutch/polder_nl_kennis", "dutch/polder_nl_grammatica", "use_cases/polder_nl_samenvatting")
TASKS += ("use_cases/polder_nl_invullen", "use_cases/polder_nl_lezen")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> list[Suite]:
    """Return a suite of tasks with choices and one with written answers."""
    folder = tmp_path_factory.mktemp("tasks")
    for name in TASKS:
        for file in (CONFIG / name).parent.glob(f"{Path(name).name}*"):
            shutil.copy(file, folder)
    return [Suite(name="own", language="nl", folder=str(folder), limit=9)]


def evaluated(
    milestone: Path, folder: Path, launch: str, suites: list[Suite], scratch: Path | None = None
) -> dict[str, int]:
    folder.mkdir()
    return run(
        SuitesSettings(model="base", step=7, suites=suites, batch_size=4),
        milestone=milestone,
        tasks=[file for suite in suites for file in list_suite_files(suite)],
        index=milestone / "tokens/index.json",
        baselines=[],
        results=folder / "results.json",
        answers=folder / "items.parquet",
        launch=launch,
        scratch=scratch,
    )


class Evaluation(NamedTuple):
    """The folder of the results, that of the finished tasks, and the record's counts."""

    folder: Path
    scratch: Path
    counts: dict[str, int]

    def files(self) -> list[bytes]:
        """Return the content of the results and of the answers."""
        return [(self.folder / name).read_bytes() for name in ("results.json", "items.parquet")]


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Let the launch command start forks of the warm Python, of one thread each."""
    with pytest.MonkeyPatch.context() as patch:
        python, variables = warm_python.start()
        for name, value in {**variables, "PIPELINE_PYTHON": python, "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def of_three(
    warm: None, long_milestone: Path, suites: list[Suite], tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    """Return the answers of three processes."""
    folder, scratch = (tmp_path_factory.mktemp("three") / name for name in ("run", "scratch"))
    return Evaluation(folder, scratch, evaluated(long_milestone, folder, LAUNCH, suites, scratch))


@pytest.mark.slow
def test_three_processes_give_the_answers_of_one(
    long_milestone: Path, of_three: Evaluation, suites: list[Suite], tmp_path: Path
) -> None:
    one, three = tmp_path / "one", of_three.folder
    counts = evaluated(long_milestone, one, "torchrun --standalone --nproc-per-node=1", suites)
    assert counts == of_three.counts
    assert [file.name for file in sorted(three.iterdir())] == ["items.parquet", "results.json"]
    rows = [pq.read_table(folder / "items.parquet").to_pylist() for folder in (one, three)]
    assert len(rows[0]) > 40 and {row["task"] for row in rows[0]} >= {"polder_nl_kennis", "polder_nl_samenvatting"}
    for own, other in zip(*rows, strict=True):
        assert own["log_probabilities"] == pytest.approx(other["log_probabilities"], abs=1e-6)
        kept = [{key: value for key, value in row.items() if key != "log_probabilities"} for row in (own, other)]
        assert kept[0] == kept[1]
    results = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in (one, three)]
    assert results[0]["tasks"] == results[1]["tasks"]


@pytest.mark.slow
def test_three_processes_skip_finished_tasks(
    long_milestone: Path, of_three: Evaluation, suites: list[Suite], tmp_path: Path
) -> None:
    """As after a kill: the scratch contains the files of some tasks."""
    scratch = Path(shutil.copytree(of_three.scratch, tmp_path / "scratch"))
    names = sorted(path.name for path in scratch.iterdir())
    kept, missing = names[1::2], names[::2]
    for name in missing:
        (scratch / name).unlink()
    before = {name: (scratch / name).stat().st_mtime_ns for name in kept}
    evaluated(long_milestone, tmp_path / "run", LAUNCH, suites, scratch)
    assert Evaluation(tmp_path / "run", scratch, {}).files() == of_three.files()
    assert sorted(path.name for path in scratch.iterdir()) == names and len(kept) == 2
    assert {name: (scratch / name).stat().st_mtime_ns for name in kept} == before, "they are not written again"


def test_error_in_several_processes_is_reported_once(milestone: Path, suites: list[Suite], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json: give a milestone"):
        evaluated(tmp_path, tmp_path / "x", LAUNCH, [])
    assert [*(tmp_path / "x").iterdir()] == []
    with pytest.raises(InputError, match="launch: nothing-here cannot be started"):
        evaluated(milestone, tmp_path / "y", "nothing-here srun --ntasks=2", suites)
