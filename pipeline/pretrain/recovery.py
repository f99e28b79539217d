"""Recovery checkpoints of an unfinished segment: which there are, and which of them is whole and of this training."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from pipeline.pretrain.settings import SegmentSettings

KEPT = 2


def identity(settings: SegmentSettings, index: Path, previous: Path | None) -> str:
    """Return a hash of what a segment's result depends on: settings, tokens and the milestone that it starts from."""
    parts = [json.dumps(settings.model_dump(mode="json"), sort_keys=True).encode(), index.read_bytes()]
    if previous is not None:
        parts.append((previous / "state.json").read_bytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def recoveries(folder: Path) -> list[tuple[int, Path]]:
    """Return the finished recovery checkpoints with their steps, the newest first."""
    return sorted(((int(path.name), path) for path in folder.glob("*") if path.name.isdigit()), reverse=True)


def newest(folder: Path, expected: str) -> Path | None:
    """Return the newest whole checkpoint with that identity, or None; every other one is removed.

    One is whole when state.json, which is written last, names its files with the bytes that they have.
    """
    found = None
    for _, path in recoveries(folder):
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            whole = state["identity"] == expected and all(
                (path / name).stat().st_size == described["bytes"] for name, described in state["files"].items()
            )
        except (OSError, ValueError, KeyError):
            whole = False
        if whole and found is None:
            found = path
        elif not whole:
            shutil.rmtree(path)
    return found
