"""The end of a model's training: its last weights, and the metrics of all its segments as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError
from pipeline.pretrain.gauges.metrics import TensorBoardWriter, read
from pipeline.pretrain.settings import ExportSettings


def run(
    settings: ExportSettings, *, milestones: list[Path], final: Path, metrics: Path, tensorboard: Path
) -> dict[str, Any]:
    """Copy the last milestone's model, join the milestones' metrics and chart them; return steps and last losses.

    Raises:
        InputError: a milestone is not whole, or steps are missing between two of them.
    """
    ordered = []
    for folder in milestones:
        try:
            step = int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} is no milestone ({error!r}): remove it, so that it is trained again") from None
        ordered.append((step, folder))
    ordered.sort()
    lines = [line for _, folder in ordered for line in read(folder / "metrics.jsonl")]
    steps = [line for line in lines if "loss" in line]
    if [line["step"] for line in steps] != list(range(1, ordered[-1][0] + 1)):
        folder = milestones[0].parent
        raise InputError(f"{folder} does not hold every step once: remove it, so that they are trained again")
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    writer = TensorBoardWriter(tensorboard)
    writer.add(lines)
    writer.close()
    shutil.copytree(ordered[-1][1] / "huggingface", final)
    print(f"{len(steps)} steps, loss {steps[-1]['loss']:.4f}", flush=True)
    return {"steps": len(steps), "milestones": len(ordered), "loss": steps[-1]["loss"]}
