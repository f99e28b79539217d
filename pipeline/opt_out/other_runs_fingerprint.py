"""State of the other runs and archives in a results folder, which decides whether a search is repeated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.job_records import FileEntry, Record, read_job_files
from pipeline.core.output_archives import OutputArchives

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
RECORD_PLACES = (layout.RECORD, layout.BATCH_ARCHIVE)
WEIGHTS_SUFFIX = ".safetensors"
IMPORTING_STEPS = ("pretrain.adopt", "evaluate.baselines")
FINISHED_PATTERN = "[!.]*"  # partial files of running jobs begin with a dot
# What people and other steps put there or take away without a record.
FOLDER_PATTERNS = (
    *(f"{folder.glob_pattern()}/*" for folder in (layout.CORPUS, layout.TOKEN_SET)),
    *(
        place.glob_pattern()
        for place in (layout.MILESTONE, layout.FINAL_MODEL, layout.SEGMENT_SCRATCH, layout.FILE_PARTS)
    ),
)


def list_runs(results: Path) -> list[Path]:
    """Return the folders of the runs, sorted by name."""
    return sorted(folder.parents[1] for folder in results.glob(f"*/{layout.RECORDS}") if folder.is_dir())


def run_private_folder(results: Path, run: str) -> Path:
    return results.parent / "private" / run


def find_archives(results: Path) -> Iterator[Path]:
    """Yield the archives below the results folder, in the order of their paths; those of jobs hold no texts."""
    for folder, subfolders, names in os.walk(results):
        subfolders.sort()
        run, _, below = Path(folder).relative_to(results).as_posix().partition("/")
        of_jobs = {*FileStore(results / run).archives} if below == layout.BATCH_ARCHIVES else set[str]()
        if below.endswith("/archives") and below.count("/") == 2:
            of_jobs = {
                file.archive_path for file in OutputArchives(results / run, PurePath(below).parent).archived.values()
            }
        archives = [name for name in sorted(names) if name.endswith(ARCHIVES)]
        yield from (Path(folder, name) for name in archives if f"{below}/{name}" not in of_jobs)


def read_unit_free_records(run: Path, *steps: str) -> list[Record]:
    """Return the records of steps without units, which are never archived."""
    return read_job_files(Record, [path for step in steps for path in layout.RECORD.glob(run, job=f"{step}.*")])[0]


def list_weights_imported_by_run(run: Path) -> Iterator[tuple[FileEntry, Path]]:
    """Yield the files of weights outside of a run that its records name, each with the path in the job's command."""
    for record in read_unit_free_records(run, *IMPORTING_STEPS):
        paths = {path.name: path for path in map(Path, record.command)}
        for entry in record.inputs:
            if entry.is_outside_run and entry.path.endswith(WEIGHTS_SUFFIX):
                named = entry.resolve_path(run)  # for a file outside of the project its name alone
                yield entry, paths.get(named.name, named)


def _file_state(path: Path) -> str:
    """Return name, size and time of a file; of one that somebody has just taken away its name."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return path.name
    return f"{path.name} {state.st_size} {state.st_mtime_ns}"


@cache
def hash_other_runs(results: Path, run: str) -> dict[str, str]:
    """Return a hash of the state of each other run, and of each archive by its path; it reads records of imports alone.

    It is looked at once in a process, so that all jobs see the same.
    """
    hashes = {}
    for folder in list_runs(results):
        if folder.name == run:
            continue
        lines = [_file_state(path) for place in RECORD_PLACES for path in place.glob(folder)]
        lines += [path.relative_to(folder).as_posix() for pattern in FOLDER_PATTERNS for path in folder.glob(pattern)]
        lines += [
            _file_state(path) for path in run_private_folder(results, folder.name).rglob(f"{FINISHED_PATTERN}.parquet")
        ]
        lines += [_file_state(path) for _, path in list_weights_imported_by_run(folder)]
        hashes[folder.name] = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
    for path in find_archives(results):
        hashes[path.relative_to(results).as_posix()] = hashlib.sha256(_file_state(path).encode()).hexdigest()[:16]
    return hashes
