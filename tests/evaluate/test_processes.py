"""One process or several give the same answers; what one of them refuses is said once, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.evaluate.suite_files import suite_files
from pipeline.evaluate.suites import run
from pipeline.ground.errors import InputError
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


@pytest.mark.slow
def test_three_processes_answer_as_one_does(
    long_milestone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one, three = tmp_path / "one", tmp_path / "three"
    counts = evaluated(long_milestone, one, "torchrun --standalone --nproc-per-node=1")
    assert evaluated(long_milestone, three, LAUNCH) == counts
    assert [file.name for file in sorted(three.iterdir())] == ["items.parquet", "results.json"]
    rows = [pq.read_table(folder / "items.parquet").to_pylist() for folder in (one, three)]
    assert len(rows[0]) > 40 and {row["task"] for row in rows[0]} >= {"polder_nl_kennis", "polder_nl_samenvatting"}
    for own, other in zip(*rows, strict=True):
        assert own["log_probabilities"] == pytest.approx(other["log_probabilities"], abs=1e-6)
        kept = [{key: value for key, value in row.items() if key != "log_probabilities"} for row in (own, other)]
        assert kept[0] == kept[1]
    results = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in (one, three)]
    assert results[0]["tasks"] == results[1]["tasks"]


def test_what_the_processes_refuse_is_said_once(milestone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json: give a milestone"):
        evaluated(tmp_path, tmp_path / "x", LAUNCH, [])
    assert [*(tmp_path / "x").iterdir()] == []
    with pytest.raises(InputError, match="launch: nothing-here cannot be started"):
        evaluated(milestone, tmp_path / "y", "nothing-here srun --ntasks=2")
