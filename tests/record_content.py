"""Records and attempts with all required fields, for changes by tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOMENT = "2026-01-05T10:00:00.000+00:00"
COST: dict[str, Any] = {"wall_seconds": 1.0, "cpu_seconds": 1.0, "peak_memory_bytes": 1}
ENTRY: dict[str, Any] = {"name": "file", "path": "file", "sha256": "ab" * 32, "bytes": 7}


def entries(some: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return file entries with all fields."""
    return [{**ENTRY, **entry} for entry in some]


def record_content(step: str, **fields: Any) -> dict[str, Any]:
    """Return the content of a record; its file entries get their missing fields."""
    content = {
        "step": step,
        "instance": {},
        "settings": {},
        "command": ["python", "-m", "pipeline", *step.split(".")],
        "code_version": "code",
        "environment_version": "environment",
        "started": MOMENT,
        "ended": MOMENT,
        **COST,
        **fields,
    }
    return {**content, **{kind: entries(fields.get(kind, ())) for kind in ("inputs", "outputs")}}


def attempt_content(step: str, **fields: Any) -> dict[str, Any]:
    """Return the content of an attempt."""
    command = ["python", "-m", "pipeline", *step.split(".")]
    started: dict[str, Any] = {"step": step, "instance": {}, "command": command, "started": MOMENT, "status": "running"}
    return {**started, **COST, "last_seen": MOMENT, "ended": None, "error": None, **fields}
