"""Snapshots of configuration and step versions, one per invocation that changed them.

Jobs run hours after an invocation, while users edit files. Their settings come from the process that planned them. The
snapshot holds what that process read, and each record names it. A job whose code or environment differs from the
snapshot refuses to run. An edit takes effect at the next invocation, which lists the changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core import atomic_files
from pipeline.core.errors import InputError
from pipeline.core.job_records import FileReference

SNAPSHOT_VARIABLE = "PIPELINE_FROZEN"  # SHA256:FILE, for the jobs of this start

Content = dict[str, Any]


class JobPlan(NamedTuple):
    """The snapshot that a job was planned with, and the git state of its invocation."""

    file: FileReference
    git: dict[str, Any] | None


def _list_snapshots(run_directory: Path) -> dict[int, Path]:
    files = layout.FROZEN_CONFIGURATION.glob(run_directory)
    return dict(sorted((int(path.stem), path) for path in files if path.stem.isdigit()))


def read_newest_snapshot(run_directory: Path) -> Content | None:
    """Return the newest snapshot of a run; None if there is none or it is broken."""
    for path in reversed(_list_snapshots(run_directory).values()):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None
    return None


def write_snapshot(run_directory: Path, content: Content) -> str:
    """Write a snapshot unless the newest one is the same; return the value of `SNAPSHOT_VARIABLE` for its jobs."""
    text = atomic_files.compact_json(content)
    files = _list_snapshots(run_directory)
    last, path = max(files.items(), default=(0, layout.FROZEN_CONFIGURATION.path(run_directory, number=0)))
    if not last or path.read_bytes() != text:
        path = layout.FROZEN_CONFIGURATION.path(run_directory, number=last + 1)
        atomic_files.write_atomically(path, text)
    return f"{hashlib.sha256(text).hexdigest()}:{path.absolute()}"


def list_changes(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yield a line for each key that differs between two snapshots: old and new value."""
    before, now = _key_by_name(before), _key_by_name(now)
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            yield from list_changes(before.get(name), now.get(name), f"{key}.{name}" if key else str(name))
    elif before != now:
        yield f"{key}: {_shorten_json(before)} → {_shorten_json(now)}"


def _key_by_name(value: Any) -> Any:
    """Return a list of named entries, such as sources, as a mapping by name; other values unchanged."""
    if isinstance(value, list) and value and all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return value


def _shorten_json(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"


def planned_platform_name(variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the platform of the invocation of this job; None for a step that a user runs directly."""
    name = variables.get(SNAPSHOT_VARIABLE, "").partition(":")[2]
    try:
        return str(json.loads(Path(name).read_bytes())["configuration"]["platform"]) if name else None
    except (OSError, ValueError, KeyError, TypeError):  # `of_this_start` says what is wrong with it
        return None


def verify_planning_snapshot(
    step: str, code: str, environment: str, variables: Mapping[str, str] = os.environ
) -> JobPlan | None:
    """Return the plan of this job; None for a step that a user runs directly.

    Raises:
        InputError: the snapshot was altered, or plans another code or environment.
    """
    sha256, _, name = variables.get(SNAPSHOT_VARIABLE, "").partition(":")
    if not name:
        return None
    path = Path(name)
    again = "run snakemake again to plan with the current code and environment"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}, by which {step} was planned, cannot be read ({error.strerror}): {again}") from None
    if hashlib.sha256(text).hexdigest() != sha256:
        raise InputError(f"{path}, by which {step} was planned, was altered since: {again}")
    content = json.loads(text)
    planned = content["versions"].get(step)
    if planned != {"code": code, "environment": environment}:
        raise InputError(f"{path} plans {step} with {planned}, not with {code} and {environment}: {again}")
    return JobPlan(
        FileReference(layout.FROZEN_CONFIGURATION.relative_path(number=path.stem), sha256), content.get("git")
    )
