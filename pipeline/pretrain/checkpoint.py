"""The one checkpoint of every backend and world size: full tensors by name in safetensors, and a small state.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.model.llama import initial_state
from pipeline.pretrain.recovery import KEPT, recoveries
from pipeline.pretrain.settings import SegmentSettings

MOMENTS = ("exp_avg", "exp_avg_sq")


class Start:
    """Where a segment starts: a checkpoint, or weights drawn from the seed; tensors are read when asked for."""

    def __init__(self, folder: Path | None, settings: SegmentSettings, vocabulary_size: int) -> None:
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.folder = folder
        state: dict[str, Any] = {"step": 0} if folder is None else json.loads((folder / "state.json").read_text())
        self.step = int(state["step"])
        self.skips: list[int] = state.get("skips", [])
        self.recent: dict[str, list[float]] = state.get("recent", {})

    @cached_property
    def _initial(self) -> dict[str, Tensor]:
        return initial_state(self.settings.architecture, self.vocabulary_size, self.settings.seed)

    @cached_property
    def _files(self) -> dict[str, Any]:
        assert self.folder is not None
        return {
            kind: safe_open(str(self.folder / f"{kind}.safetensors"), framework="pt") for kind in ("model", "optimizer")
        }

    def weight(self, name: str) -> Tensor:
        """Return a parameter, float32."""
        return self._initial[name] if self.folder is None else self._files["model"].get_tensor(name)

    def moment(self, moment: str, name: str) -> Tensor:
        """Return a running average of the optimizer, float32; there are none before the first step."""
        tensor: Tensor = self._files["optimizer"].get_tensor(f"{moment}.{name}")
        return tensor


def _flush(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name to a safetensors file that survives a loss of power."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    _flush(path)


def save_state(
    folder: Path, step: int, settings: SegmentSettings, identity: str, judged: Mapping[str, Any], *, hashed: bool
) -> None:
    """Write state.json, the last file of a checkpoint: it names the others with their bytes and, hashed, sha256.

    `judged` is what the loop knows of bad batches: `skips`, and the `recent` values of good ones.
    """
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        files[path.name] = {"bytes": path.stat().st_size}
        if hashed:
            with path.open("rb") as stream:
                files[path.name]["sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
    training = settings.training
    state = {
        "step": step,
        "tokens_seen": step * training.batch_size * training.sequence_length,
        "identity": identity,
        "torch": str(torch.__version__),
        "files": files,
        **judged,
    }
    path = folder / "state.json"
    path.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    _flush(path)
    _flush(folder)


def commit_recovery(partial: Path, final: Path) -> None:
    """Give a whole checkpoint its name in one stroke and remove all but the newest ones."""
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _flush(final.parent)
    for _, old in recoveries(final.parent)[KEPT:]:
        shutil.rmtree(old)
