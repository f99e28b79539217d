"""Where a training went back to, and which batches it left out for that: scratch/rewinds.json.

A rewind goes back to the last regular checkpoint, a multiple of `checkpoint_every`, even where a stop has left a newer
one: so it does not depend on when a training was stopped.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core import atomic_files
from pipeline.core.errors import Diverged
from pipeline.pretrain.checkpoints.recovery import recoveries
from pipeline.pretrain.skips import ADVICE


def regular_step(step: int, every: int, first_step: int) -> int:
    """Return the last regular checkpoint before a step, or the step that the segment starts after."""
    return max((step - 1) // every * every, first_step) if every else first_step


class Rewinds:
    """The rewinds of one training: each a step `back_to`, the `data_steps` left out, the bad `step`, the `reason`."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.entries: list[dict[str, Any]] = content["entries"] if content.get("identity") == identity else []

    def add(self, rewind: dict[str, Any], most_in_a_row: int) -> None:
        """Keep one more.

        Raises:
            Diverged: the training went back to the same step too often.
        """
        self.entries.append(rewind)
        same = sum(entry["back_to"] == rewind["back_to"] for entry in self.entries)
        if same > most_in_a_row:
            raise Diverged(f"{rewind['reason']} in step {rewind['step']}, after {same} rewinds: {ADVICE}")
        atomic_files.write_json(self.path, {"identity": self.identity, "entries": self.entries})

    def discard(self, folder: Path) -> None:
        """Remove the recovery checkpoints that saw a batch which is left out by now."""
        for step, path in recoveries(folder):
            try:
                skips = set(json.loads((path / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))["skips"])
            except (OSError, ValueError, KeyError):
                continue  # it is not whole, which others find
            if any(step > entry["back_to"] and not skips.issuperset(entry["data_steps"]) for entry in self.entries):
                shutil.rmtree(path)


def left_out(entries: list[dict[str, Any]], skips: list[int]) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the skips with those of the rewinds, and the rewinds that they did not hold yet."""
    new = [entry for entry in entries if not set(skips).issuperset(entry["data_steps"])]
    return sorted({*skips, *(number for entry in entries for number in entry["data_steps"])}), new
