"""What the rules ask: which records no longer fit the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.commands import read
from pipeline.dag import Dag
from tests.conftest import Project


@pytest.mark.slow
def test_a_file_that_is_no_record_is_one_that_does_not_fit(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    dag = Dag(read(Path("config/micro.yaml")))
    memory = Path("nothing")
    assert dag.forgotten(memory) == []
    records = [dag.run + f"/provenance/records/{name}.json" for name in ("tokens.index.main", "tokenizer.train.main")]
    Path(records[0]).write_text('{"stage": "tokens.in')
    Path(records[1]).write_text("[]")
    assert {str(path) for path in dag.forgotten(memory)} == set(records)
