"""The inventory of a results folder: each kind of path that may be in it, who vouches for it, and one walk over all.

What is of no kind is named, wherever it is. docs/reference/results-folder.md lists the kinds for which nobody vouches.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline import layout

MARK = ".snakemake_timestamp"  # Snakemake's mark in a folder that is an output: when it was made
UNFINISHED = ".partial"
LOCK_BEGUN = ".lock-"
CLOSED = "may not be read by this user: verify the run as one who may"

CRATE = "the crate: it lists the file with its sha256"
LOG = "the log of attestations: a line of it has the file's sha256"
JOB = "the log of attestations: the line of the job that wrote it has its sha256"
READER = "the reader: its sha256 comes from the owner of the run"
AUTHORITY = "the authority that has signed it, and the log once a later start has attested it"
NOBODY = "nobody"

FIXED = "is written once"
APPENDED = "grows at its end"
REPLACED = "is written anew when its job runs again"


class Kind(NamedTuple):
    """A kind of path that may be in a results folder.

    Attributes:
        pattern: of the path; `*` stands for a name and `**` for a path, neither with a hidden part.
        voucher: who vouches for such a file.
        change: how the content of evidence may change from one attestation to the next.
    """

    pattern: str
    voucher: str
    change: str = FIXED

    @property
    def folder(self) -> str:
        """The folder that such files are in."""
        return self.pattern.rpartition("/")[0]


KINDS = (
    Kind(layout.CRATE, READER),
    Kind(layout.RUN_README, CRATE),
    *(Kind(f"{name}/**", CRATE) for name in ("sources", "corpus", "tokenizer", "tokens", "models")),
    *(Kind(f"{name}/**", CRATE) for name in ("baselines", "evaluation", "plan", layout.REPORT, layout.WORKFLOW_FILES)),
    Kind(layout.PROV, CRATE),
    Kind(layout.CRATE_RECORD, JOB),  # written after the crate, so the crate cannot hold it
    Kind(layout.RECORD.pattern(), CRATE),
    Kind(layout.ATTESTATION_LOG, READER),
    Kind(layout.SIGNER, LOG, REPLACED),  # its owner may take another name or authority
    Kind(layout.PUBLIC_KEY, LOG),
    Kind(layout.TIMESTAMP.pattern(), AUTHORITY),
    Kind(f"{layout.LOGS}/**", LOG, REPLACED),
    *(
        Kind(f"{folder}/*.json", LOG, REPLACED)
        for folder in (layout.ACCOUNTING, layout.EXTERNAL_METERS, layout.INVOCATIONS)
    ),
    Kind(layout.ATTEMPT.pattern(), LOG),
    Kind(layout.BATCH.pattern(), LOG, REPLACED),
    Kind(layout.SOURCES_COMPLETE, LOG, REPLACED),
    Kind(layout.FROZEN_CONFIGURATION.pattern(), LOG),
    Kind(layout.ENVIRONMENT.pattern(), LOG),
    Kind(f"{layout.READINGS}/*.jsonl", LOG, APPENDED),
    Kind(layout.MODEL_SIGNATURE.pattern(), LOG, REPLACED),
    Kind(layout.RUN_LOCK, NOBODY),
    Kind(f"{layout.SCRATCH}/**", NOBODY),
)
EVIDENCE_FOLDERS = (layout.LOGS, layout.PROVENANCE)
EXCEPTIONS = (
    f"what is in `{layout.SCRATCH}/`: it lets a job continue and is no result",
    f"an empty file `{MARK}` in a folder of results: Snakemake's mark",
    "an empty folder among results and logs, and any empty folder of this table",
    "times, owner and permissions of a file, as long as you may read it",
    f"a file in `{layout.TIMESTAMPS}/` that no later start has attested: `--timestamp-certificates` checks it",
    f"`{layout.RUN_LOCK}`, where it names a start that is running on your machine and works on this folder",
)
"""What `verify` accepts without a word, as the auditor's page lists it."""

_PART = r"[^./][^/]*"
_REGEXES = tuple(
    re.compile(re.escape(kind.pattern).replace(r"\*\*", f"{_PART}(/{_PART})*").replace(r"\*", _PART), re.DOTALL)
    for kind in KINDS
)
_OPEN = tuple(f"{kind.folder}/" for kind in KINDS if kind.pattern.endswith("**"))  # there may be folders in these
_RESULTS = tuple(f"{kind.folder}/" for kind in KINDS if kind.pattern.endswith("**") and kind.voucher == CRATE)
_FIXED = {
    parent.as_posix()
    for kind in KINDS
    if kind.folder
    for parent in (Path(kind.folder), *Path(kind.folder).parents[:-1])
}


def kind_of(path: str) -> Kind | None:
    """Return the kind of a file by its path in the run; None where no run has such a file."""
    return next((kind for kind, regex in zip(KINDS, _REGEXES, strict=True) if regex.fullmatch(path)), None)


class Inventory(NamedTuple):
    """What is in a results folder.

    Attributes:
        files: the kind of each file by its path, without those in scratch.
        links: the kind of each path that is a link to a file.
        problems: a sentence for each path that must not be there, or into which this user may not look.
        closed: the folders into which this user may not look, with a slash at the end.
        special: pipes, sockets, devices and links to them among the problems: no file may be read while there is one.
    """

    files: dict[str, Kind]
    links: dict[str, Kind]
    problems: dict[str, str]
    closed: list[str]
    special: list[str]

    def of(self, voucher: str) -> list[str]:
        """Return the sorted paths of the files for which somebody vouches."""
        return sorted(path for path, kind in self.files.items() if kind.voucher == voucher)


def take_inventory(run_directory: Path, below: Iterable[str] = ("",)) -> Inventory:
    """Look once at every path below folders of a run; no link is followed, and scratch is not looked at."""
    inventory = Inventory({}, {}, {}, [], [])
    folders = [name for name in below if (place := run_directory / name).is_dir() and not (name and place.is_symlink())]
    while folders:
        folder = folders.pop()
        with os.scandir(run_directory / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_symlink():
                    _add_link(inventory, path, entry)
                elif entry.is_dir():
                    if _add_folder(inventory, path, entry):
                        folders.append(path)
                elif entry.is_file():
                    _add_file(inventory, path, entry)
                else:
                    _add_special(inventory, path)
    return inventory


def _add_special(inventory: Inventory, path: str) -> None:
    inventory.special.append(path)
    inventory.problems[path] = f"{path} is a pipe, a socket or a device, or leads to one: remove it; no file was read."


def _add_link(inventory: Inventory, path: str, entry: os.DirEntry[str]) -> None:
    inventory.problems[path] = f"{path} is a symbolic link: results are files, and this may lead anywhere."
    try:
        mode = entry.stat().st_mode
    except OSError:  # it leads nowhere
        return
    if stat.S_ISREG(mode):
        if kind := kind_of(path):
            inventory.links[path] = kind
    elif not stat.S_ISDIR(mode):
        _add_special(inventory, path)


def _add_folder(inventory: Inventory, path: str, entry: os.DirEntry[str]) -> bool:
    """Note a folder, and return whether to look into it."""
    is_known = path in _FIXED or (path.startswith(_OPEN) and entry.name[0] != ".")
    if path == layout.SCRATCH:
        return False
    if not may_read(entry):
        inventory.problems[path] = f"{path} {CLOSED}."
        inventory.closed.append(f"{path}/")
        return False
    if not is_known:
        inventory.problems[path] = (
            _unfinished(path, entry.name) or f"{path} is unknown: a results folder has no such folder."
        )
    return is_known


def _add_file(inventory: Inventory, path: str, entry: os.DirEntry[str]) -> None:
    kind = kind_of(path)
    if not may_read(entry):
        inventory.problems[path] = f"{path} {CLOSED}."
    elif kind is not None:
        inventory.files[path] = kind
    elif entry.name == MARK and path.startswith(_RESULTS):
        if entry.stat().st_size:
            inventory.problems[path] = f"{path} holds something: Snakemake's marks of folders are empty."
    else:
        inventory.problems[path] = (
            _unfinished(path, entry.name) or f"{path} is unknown: a results folder has no such file."
        )


def _unfinished(path: str, name: str) -> str | None:
    if name.startswith(UNFINISHED):
        return f"{path} is unfinished: a job that was killed left it, or somebody put it there."
    if name.startswith(LOCK_BEGUN):
        return f"{path} is a lock that no start holds: delete it where you know that no start is running."
    return None


def may_read(path: Path | os.DirEntry[str]) -> bool:
    """Return whether this user may read a file, or look into a folder."""
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def closed_evidence(run_directory: Path) -> str | None:
    """Return the first of the folder of a run, its crate and its evidence that this user may not read."""
    evidence = ("", layout.LOGS, *sorted(folder for folder in _FIXED if f"{folder}/" not in _OPEN))
    evidence += (layout.CRATE, layout.ATTESTATION_LOG, layout.SIGNER, layout.PUBLIC_KEY)
    paths = ((name, run_directory / name) for name in evidence)
    return next((name or "it" for name, path in paths if os.path.exists(path) and not may_read(path)), None)


def artefacts(run_directory: Path) -> list[str]:
    """Return the sorted paths, relative to the run, of all files that belong to its results.

    A link to a file is one: where the run was linked elsewhere, to do a step again, the step reads what it reads.
    """
    inventory = take_inventory(run_directory)
    found = {**inventory.files, **inventory.links}
    return sorted(path for path, kind in found.items() if kind.voucher == CRATE)
