"""Which files make up a run's results, and their hashes."""

from __future__ import annotations

import os
from pathlib import Path

METADATA = "ro-crate-metadata.json"
RECORDS = "provenance/records"
CRATE_RECORD = f"{RECORDS}/provenance.crate.json"  # written after the crate, so the crate cannot hold it
# What is written while or after the crate is made, what only says that jobs are done, and what is no result.
OUTSIDE = (
    *("logs", "benchmarks", "scratch", "provenance/attempts", "provenance/accounting", "provenance/batches"),
    "provenance/frozen",  # a later start adds to it; the records hold the hashes
)


def artefacts(run_directory: Path) -> list[str]:
    """Sorted paths, relative to the run, of all files that belong to its results.

    Left out are the crate's own metadata and record, attempts, accounting, logs, scratch, and unfinished outputs.
    """
    found = []
    for folder, subfolders, names in os.walk(run_directory, followlinks=True):
        below = Path(folder).relative_to(run_directory)
        subfolders[:] = [
            name for name in subfolders if not name.startswith(".partial") and (below / name).as_posix() not in OUTSIDE
        ]
        found += [
            path
            for name in names
            if not name.startswith(".partial") and name != ".snakemake_timestamp"
            if (path := (below / name).as_posix()) not in (METADATA, CRATE_RECORD)
        ]
    return sorted(found)
