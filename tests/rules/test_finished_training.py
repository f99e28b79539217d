"""An edit does not discard a long training: it is kept, or the invocation is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project
from tests.rules.test_reruns import MICRO

LETTER = "config/corpus/nl_brieven/brief_aan_de_tandarts.txt"


def segment(project: Project, step: int) -> dict[str, Any]:
    path = project.results / f"provenance/records/pretrain.segment.base.{step}.json"
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_finished_training_is_kept_after_edits_and_later_segments_are_current(project: Project) -> None:
    project.train_alone()
    project.edit(MICRO, "seed: 7}", "seed: 7, protected_device_hours: 0}")
    milestones = project.results / "models/base/milestones"
    before, made = files(milestones), segment(project, 4)

    # Changed training code: nothing is trained, and an invocation reports it.
    project.edit("pipeline/model/loss.py", "LEAST_ROWS = 16,", "LEAST_ROWS = 15,")
    printed = project.run("pretrain")
    assert "models.base: what is done up to step 8 stays as it was made" in printed
    assert files(milestones) == before and segment(project, 4) == made

    # A changed rate of finished steps: refused before any change; on request, it is planned.
    project.edit(MICRO, "learning_rate: 0.003", "learning_rate: 0.002")
    printed = project.run("pretrain", check=False)
    assert "device hours; this would throw away its steps up to 4: training.learning_rate 0.003, now 0.002" in printed
    assert files(milestones) == before and segment(project, 4) == made
    planned = project.run("pretrain", "-n", "--config", "run={retrain: [base]}")
    assert "would throw away" not in planned and re.search(r"pretrain\.segment +2", planned)
    project.edit(MICRO, "learning_rate: 0.002", "learning_rate: 0.003")

    # A changed micro-batch and changed tokens before the last segment: it is not trained on these.
    (project.results / "provenance/records/pretrain.segment.base.8.json").unlink()
    project.edit(MICRO, "micro_batch_size: 2", "micro_batch_size: 1")
    letter = project.path(LETTER).read_text()
    project.path(LETTER).write_text(letter + "Morgen regent het, en dan blijf ik thuis met een boek over de zee.\n")
    printed = project.run("pretrain", check=False)
    assert "on another tokens/main/index.json than is there now, and stays as it was made" in printed
    assert "index.json differs from the tokens that this model was trained on up to step 4: undo the change" in printed
    assert files(milestones / "4") == {name[2:]: file for name, file in before.items() if name.startswith("4/")}

    # After the revert: later segments use today's settings, on the finished ones.
    project.path(LETTER).write_text(letter)
    assert "step 4 stays as it was made" in project.run("pretrain")
    assert segment(project, 4) == made
    assert segment(project, 8)["settings"]["training"]["micro_batch_size"] == 1
    assert segment(project, 8)["code_version"] != made["code_version"]
