"""What may lie in a run's folder: results, evidence, and what is none of either."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pipeline.attestation.log import FILE
from pipeline.provenance.evidence import FOLDERS, PUBLIC_KEY, SIGNER, TIMESTAMPS
from pipeline.provenance.records import RECORDS

METADATA = "ro-crate-metadata.json"
CRATE_RECORD = f"{RECORDS}/provenance.crate.json"  # written after the crate, so the crate cannot hold it
PROVENANCE = "provenance"
CLOSED = "may not be read by this user: verify the run as one who may"
SCRATCH = "scratch"  # what lets a job continue: no result, nobody vouches for it, and any job may remove it
# The crate holds results. Evidence grows while and after it is made: the log of attestations has it.
OUTSIDE = (*FOLDERS, SCRATCH, TIMESTAMPS)
FILES_OUTSIDE = (METADATA, CRATE_RECORD, FILE, SIGNER, PUBLIC_KEY)


class Found(NamedTuple):
    """What lies in a run's folder.

    Attributes:
        results: the paths of its results.
        foreign: a sentence for each path that must not be there, or into which this user may not look.
        closed: the folders into which this user may not look, with a slash at the end.
    """

    results: list[str]
    foreign: dict[str, str]
    closed: tuple[str, ...]


def found(run_directory: Path) -> Found:
    """Return what lies in a run's folder; no link to a folder is followed, and scratch is not looked at.

    A link to a file is both: where the run was linked elsewhere, to do a step again, the step reads what it reads.
    """
    results, foreign, closed = [], {}, []
    for folder, subfolders, names in os.walk(run_directory):
        below = Path(folder).relative_to(run_directory)
        for name in [*subfolders, *names]:
            path = (below / name).as_posix()
            if path == SCRATCH and name in subfolders:
                subfolders.remove(name)
            elif (run_directory / path).is_symlink():
                foreign[path] = f"{path} is a symbolic link: results are files, and this may lead anywhere."
            elif not may_read(run_directory / path):
                foreign[path] = f"{path} {CLOSED}."
                closed += [f"{path}/"] * (name in subfolders)
                subfolders[:] = [other for other in subfolders if other != name]
            elif name.startswith(".partial"):
                foreign[path] = f"{path} is unfinished: a job that was killed left it, or somebody put it there."
                subfolders[:] = [other for other in subfolders if other != name]
            elif name == ".snakemake_timestamp" and name in names and (run_directory / path).stat().st_size:
                foreign[path] = f"{path} holds something: Snakemake's marks of folders are empty."
        subfolders.sort()
        results += [
            path
            for name in names
            if (path := (below / name).as_posix()) not in FILES_OUTSIDE
            and (path not in foreign or (run_directory / path).is_file())
            and not name.startswith(".partial")
            and name != ".snakemake_timestamp"
            and not path.startswith(tuple(f"{outside}/" for outside in OUTSIDE))
        ]
    return Found(sorted(results), foreign, tuple(closed))


def may_read(path: Path) -> bool:
    """Return whether this user may read a file, or look into a folder; what is not there keeps nobody off."""
    return not os.path.exists(path) or os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def closed_evidence(run_directory: Path) -> str | None:
    """Return the first of the folder of a run, its crate and its evidence that this user may not read."""
    evidence = ("", PROVENANCE, RECORDS, METADATA, FILE, *FOLDERS, TIMESTAMPS, SIGNER, PUBLIC_KEY)
    return next((path or "it" for path in evidence if not may_read(run_directory / path)), None)


def special(run_directory: Path) -> dict[str, str]:
    """Return a sentence for each pipe, socket and device in a run's folder, and each link to one: none of them ends."""
    paths = (Path(folder) / name for folder, _, names in os.walk(run_directory) for name in names)
    readable = (path for path in paths if may_read(path.parent))
    strange = (path for path in readable if path.exists() and not path.is_file() and not path.is_dir())
    told = "is a pipe, a socket or a device, or leads to one: remove it; no file was read."
    return {(name := path.relative_to(run_directory).as_posix()): f"{name} {told}" for path in strange}


def artefacts(run_directory: Path) -> list[str]:
    """Return the sorted paths, relative to the run, of all files that belong to its results."""
    return found(run_directory).results
