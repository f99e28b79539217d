"""Read and write the outcome of a training that failed before its last step, which replaces weights in milestones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.errors import Diverged, InputError, OutOfMemory

OUTCOME_FILE = "outcome.json"
OUTCOME_STATUS = {OutOfMemory: "out of memory", Diverged: "diverged"}


class TrainingFailure(NamedTuple):
    """The status `out of memory` or `diverged`, its reason, the last trained step, and the step of the milestone."""

    status: str
    reason: str
    reached_step: int
    step: int


def write_failure(folder: Path, outcome: TrainingFailure, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Write a milestone without weights but with the metrics of the completed steps; return its content."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    content = outcome._asdict()
    (folder / OUTCOME_FILE).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / layout.METRICS_FILE).write_text(text, encoding="utf-8")
    return content


def read_failure(folder: Path) -> TrainingFailure | None:
    """Return the outcome in the folder of a milestone or a final model; None where it holds weights."""
    path = folder / OUTCOME_FILE
    if not path.is_file():
        return None
    try:
        return TrainingFailure(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is no outcome ({error}): remove {folder}, and the run makes it again") from None
