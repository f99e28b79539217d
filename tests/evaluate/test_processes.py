"""One process or several give the same answers; what one of them refuses is said once, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.evaluate.suite_files import suite_files
from pipeline.evaluate.suites import run
from pipeline.ground.errors import InputError
from tests import warm_python
from tests.evaluate.test_suites import CONFIG

LAUNCH = "torchrun --standalone --nproc-per-node=3"
SUITES = [
    Suite(name="dutch", language="nl", folder=str(CONFIG / "dutch"), limit=11),
    Suite(name="use_cases", language="nl, en", folder=str(CONFIG / "use_cases"), limit=5),
]


def evaluated(
    milestone: Path, folder: Path, launch: str, suites: list[Suite] = SUITES, scratch: Path | None = None
) -> dict[str, int]:
    folder.mkdir()
    return run(
        SuitesSettings(model="base", step=7, suites=suites, batch_size=4),
        milestone=milestone,
        tasks=[file for suite in suites for file in suite_files(suite)],
        index=milestone / "tokens/index.json",
        baselines=[],
        results=folder / "results.json",
        answers=folder / "items.parquet",
        launch=launch,
        scratch=scratch,
    )


class Evaluation(NamedTuple):
    """The folder of the results, that of the finished tasks, and what the record counts."""

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
        for name, value in {**variables, "PIPELINE_PYTHON": python, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def of_three(warm: None, long_milestone: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """Return what three processes answer."""
    folder = tmp_path_factory.mktemp("three")
    scratch = folder / "scratch"
    return Evaluation(folder / "run", scratch, evaluated(long_milestone, folder / "run", LAUNCH, scratch=scratch))


@pytest.mark.slow
def test_three_processes_answer_as_one_does(long_milestone: Path, of_three: Evaluation, tmp_path: Path) -> None:
    one, three = tmp_path / "one", of_three.folder
    assert evaluated(long_milestone, one, "torchrun --standalone --nproc-per-node=1") == of_three.counts
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
def test_three_processes_ask_no_finished_task_again(long_milestone: Path, of_three: Evaluation, tmp_path: Path) -> None:
    """As after a kill: some tasks have their file in the scratch."""
    scratch = Path(shutil.copytree(of_three.scratch, tmp_path / "scratch"))
    names = sorted(path.name for path in scratch.iterdir())
    kept, missing = names[1::2], names[::2]
    for name in missing:
        (scratch / name).unlink()
    before = {name: (scratch / name).stat().st_mtime_ns for name in kept}
    evaluated(long_milestone, tmp_path / "run", LAUNCH, scratch=scratch)
    assert Evaluation(tmp_path / "run", scratch, {}).files() == of_three.files()
    assert sorted(path.name for path in scratch.iterdir()) == names and len(kept) > 3
    assert {name: (scratch / name).stat().st_mtime_ns for name in kept} == before, "they are not written again"


def test_what_the_processes_refuse_is_said_once(milestone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json: give a milestone"):
        evaluated(tmp_path, tmp_path / "x", LAUNCH, [])
    assert [*(tmp_path / "x").iterdir()] == []
    with pytest.raises(InputError, match="launch: nothing-here cannot be started"):
        evaluated(milestone, tmp_path / "y", "nothing-here srun --ntasks=2")
