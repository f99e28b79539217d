"""The records and attempts of a run, unarchived or in batch archives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.archived_run_files import FileStore


def read_record(run: Path, name: str) -> dict[str, Any]:
    """Return a record by its name, such as `corpus.filter.main.laws.0`."""
    return dict(json.loads(FileStore(run).find(layout.RECORD.relative_path(job=name)).read_bytes()))


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return all records of a run."""
    return [json.loads(file.read_bytes()) for file in FileStore(run).find_all(layout.RECORD)]


def read_attempts(run: Path) -> dict[str, dict[str, Any]]:
    """Return all attempts of a run by the names of their files."""
    return {file.name: json.loads(file.read_bytes()) for file in FileStore(run).find_all(layout.ATTEMPT)}


def edit_record(run: Path, name: str, **changes: Any) -> None:
    """Change fields of a record; the result is an unarchived file, which precedes that in an archive."""
    content = json.dumps(read_record(run, name) | changes, indent=1)
    layout.RECORD.path(run, job=name).write_text(content)


def forget_record(run: Path, name: str) -> None:
    """Remove a record."""
    path = layout.RECORD.path(run, job=name)
    path.unlink(missing_ok=True)
    FileStore(run).remove_from_archives([path.relative_to(run).as_posix()])


def unpack_archives(run: Path) -> None:
    """Unpack all archives into separate files, as in a run of an earlier version."""
    for archive in (*layout.BATCH_ARCHIVE.glob(run), *run.glob("*/*/archives/*.zip")):
        with zipfile.ZipFile(archive) as files:
            files.extractall(run)
        archive.unlink()
