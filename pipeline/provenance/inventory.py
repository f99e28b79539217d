"""The inventory of a results folder: allowed kinds of files, who vouches for each, and one walk over all paths.

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
from pipeline.core.archived_run_files import ArchivedFile, FileStore, SingleFile, StoredFile
from pipeline.core.output_archives import OutputArchives

SNAKEMAKE_MARK = ".snakemake_timestamp"  # Snakemake's mark in a folder that is an output: when it was made
PARTIAL_PREFIX = ".partial"
LOCK_PREFIX = ".lock-"
UNREADABLE = "may not be read by this user: verify the run as one who may"

CRATE_VOUCHER = "the crate: it lists the file with its sha256"
LOG_VOUCHER = "the log of attestations: a line of it has the file's sha256"
JOB_VOUCHER = "the log of attestations: the line of the job that wrote it has its sha256"
READER_VOUCHER = "the reader: its sha256 comes from the owner of the run"
AUTHORITY_VOUCHER = "the authority that has signed it, and the log once a later start has attested it"
NO_VOUCHER = "nobody"

WRITE_ONCE = "is written once"
APPEND_ONLY = "grows at its end"
REPLACEABLE = "is rewritten when its job runs again"


class FileKind(NamedTuple):
    """A kind of path that may be in a results folder.

    Attributes:
        pattern: of the path; `*` stands for a name and `**` for a path, neither with a hidden part.
        voucher: who vouches for such a file.
        change: how the content of evidence may change from one attestation to the next.
    """

    pattern: str
    voucher: str
    change: str = WRITE_ONCE

    @property
    def folder_pattern(self) -> str:
        return self.pattern.rpartition("/")[0]


FILE_KINDS = (
    FileKind(layout.CRATE, READER_VOUCHER),
    FileKind(layout.RUN_README, CRATE_VOUCHER),
    *(FileKind(f"{name}/**", CRATE_VOUCHER) for name in ("sources", "corpus", "tokenizer", "tokens", "models")),
    *(
        FileKind(f"{name}/**", CRATE_VOUCHER)
        for name in ("baselines", "evaluation", "plan", layout.REPORT, layout.WORKFLOW_FILES)
    ),
    FileKind(layout.FORMER_PROV, CRATE_VOUCHER),
    FileKind(layout.CRATE_RECORD, JOB_VOUCHER),  # written after the crate, so the crate cannot hold it
    FileKind(layout.RECORD.glob_pattern(), CRATE_VOUCHER),
    FileKind(layout.ATTESTATION_LOG, READER_VOUCHER),
    FileKind(layout.SIGNER, LOG_VOUCHER, REPLACEABLE),  # its owner may take another name or authority
    FileKind(layout.PUBLIC_KEY, LOG_VOUCHER),
    FileKind(layout.TIMESTAMP.glob_pattern(), AUTHORITY_VOUCHER),
    FileKind(f"{layout.LOGS}/**", LOG_VOUCHER, REPLACEABLE),
    *(
        FileKind(f"{folder}/*.json", LOG_VOUCHER, REPLACEABLE)
        for folder in (layout.ACCOUNTING, layout.EXTERNAL_METERS, layout.INVOCATIONS)
    ),
    FileKind(layout.ATTEMPT.glob_pattern(), LOG_VOUCHER),
    FileKind(layout.BATCH.glob_pattern(), LOG_VOUCHER, REPLACEABLE),
    FileKind(layout.BATCH_ARCHIVE.glob_pattern(), CRATE_VOUCHER),
    FileKind(layout.UNIT_RECORDS.glob_pattern(), CRATE_VOUCHER),
    FileKind(layout.SOURCES_COMPLETE, LOG_VOUCHER, REPLACEABLE),
    FileKind(layout.FROZEN_CONFIGURATION.glob_pattern(), LOG_VOUCHER),
    FileKind(layout.ENVIRONMENT.glob_pattern(), LOG_VOUCHER),
    FileKind(f"{layout.READINGS}/*.jsonl", LOG_VOUCHER, APPEND_ONLY),
    FileKind(layout.MODEL_SIGNATURE.glob_pattern(), LOG_VOUCHER, REPLACEABLE),
    FileKind(layout.RUN_LOCK, NO_VOUCHER),
    FileKind(f"{layout.SCRATCH}/**", NO_VOUCHER),
)
EVIDENCE_FOLDERS = (layout.LOGS, layout.PROVENANCE)
ACCEPTED_WITHOUT_VOUCHER = (
    f"what is in `{layout.SCRATCH}/`: it lets a job continue and is no result",
    f"an empty file `{SNAKEMAKE_MARK}` in a folder of results: Snakemake's mark",
    "an empty folder among results and logs, and any empty folder of this table",
    "other times, owner, permissions and extended attributes of a file that you may read, and a hard link to it",
    "the other form of the last line's signature: each ECDSA signature has two valid forms",
    f"a file in `{layout.TIMESTAMPS}/` that no later invocation has attested: `--timestamp-certificates` checks it",
    "in such a file the name of the signature's algorithm, nine bytes that OpenSSL does not read",
    f"`{layout.RUN_LOCK}`, if it names an invocation that is running on your machine and works on this folder",
)
"""What `verify` accepts silently, as listed on the auditor's page."""

_NAME_PATTERN = r"[^./][^/]*"
_REGEXES = tuple(
    re.compile(
        re.escape(kind.pattern).replace(r"\*\*", f"{_NAME_PATTERN}(/{_NAME_PATTERN})*").replace(r"\*", _NAME_PATTERN),
        re.DOTALL,
    )
    for kind in FILE_KINDS
)
_FREE_FOLDERS = tuple(
    f"{kind.folder_pattern}/" for kind in FILE_KINDS if kind.pattern.endswith("**")
)  # there may be folders in these
_RESULT_FOLDERS = tuple(
    f"{kind.folder_pattern}/" for kind in FILE_KINDS if kind.pattern.endswith("**") and kind.voucher == CRATE_VOUCHER
)
_KNOWN_FOLDERS = {
    parent.as_posix()
    for kind in FILE_KINDS
    if kind.folder_pattern
    for parent in (Path(kind.folder_pattern), *Path(kind.folder_pattern).parents[:-1])
}


def find_file_kind(path: str) -> FileKind | None:
    """Return the kind of a file by its path in the run; None if runs have no such file."""
    return next((kind for kind, regex in zip(FILE_KINDS, _REGEXES, strict=True) if regex.fullmatch(path)), None)


class Inventory(NamedTuple):
    """The files of a results folder, and problems with its paths.

    Attributes:
        files: the kind of each file by its path, without those in scratch; a member of an archive of a batch is one.
        links: the kind of each path that is a link to a file.
        problems: a sentence for each path that must not be there, or into which this user may not look.
        unreadable_folders: the folders into which this user may not look, with a slash at the end.
        special: pipes, sockets, devices and links to them among the problems: no file may be read while there is one.
        archived: the members of archives among the files, where there is no file by itself.
    """

    files: dict[str, FileKind]
    links: dict[str, FileKind]
    problems: dict[str, str]
    unreadable_folders: list[str]
    special: list[str]
    archived: dict[str, ArchivedFile]

    def find(self, run_directory: Path, path: str) -> StoredFile:
        """Return a file of the run, by itself or in an archive."""
        return self.archived.get(path) or SingleFile(path, run_directory)

    def files_vouched_by(self, voucher: str) -> list[str]:
        """Return the sorted paths of the files for which somebody vouches."""
        return sorted(path for path, kind in self.files.items() if kind.voucher == voucher)


def take_inventory(run_directory: Path, below: Iterable[str] = ("",)) -> Inventory:
    """List every path below folders of a run once; links are not followed and scratch is skipped."""
    inventory = Inventory({}, {}, {}, [], [], {})
    folders_listed = [*below]
    folders = [
        name
        for name in folders_listed
        if (place := run_directory / name).is_dir() and not (name and place.is_symlink())
    ]
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
    if any(layout.BATCH_ARCHIVES.startswith(name) for name in folders_listed):
        _add_archived_files(inventory, FileStore(run_directory))
    if "" in folders_listed:
        _add_archived_files(inventory, OutputArchives(run_directory))
    return inventory


def _add_archived_files(inventory: Inventory, store: FileStore | OutputArchives) -> None:
    """Add the members of archives, which are listed after files by themselves, since a job may move them meanwhile."""
    for path, problem in store.problems.items():
        inventory.problems.setdefault(path, f"{problem}.")
    for path, file in store.archived.items():
        if path not in inventory.files and (kind := find_file_kind(path)):
            inventory.files[path], inventory.archived[path] = kind, file


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
        if kind := find_file_kind(path):
            inventory.links[path] = kind
    elif not stat.S_ISDIR(mode):
        _add_special(inventory, path)


def _add_folder(inventory: Inventory, path: str, entry: os.DirEntry[str]) -> bool:
    """Note a folder, and return whether to look into it."""
    is_known = path in _KNOWN_FOLDERS or (path.startswith(_FREE_FOLDERS) and entry.name[0] != ".")
    if path == layout.SCRATCH:
        return False
    if not is_readable(entry):
        inventory.problems[path] = f"{path} {UNREADABLE}."
        inventory.unreadable_folders.append(f"{path}/")
        return False
    if not is_known:
        inventory.problems[path] = (
            _describe_unfinished(path, entry.name) or f"{path} is unknown: a results folder has no such folder."
        )
    return is_known


def _add_file(inventory: Inventory, path: str, entry: os.DirEntry[str]) -> None:
    kind = find_file_kind(path)
    if not is_readable(entry):
        inventory.problems[path] = f"{path} {UNREADABLE}."
    elif kind is not None:
        inventory.files[path] = kind
    elif entry.name == SNAKEMAKE_MARK and path.startswith(_RESULT_FOLDERS):
        if entry.stat().st_size:
            inventory.problems[path] = f"{path} holds something: Snakemake's marks of folders are empty."
    else:
        inventory.problems[path] = (
            _describe_unfinished(path, entry.name) or f"{path} is unknown: a results folder has no such file."
        )


def _describe_unfinished(path: str, name: str) -> str | None:
    if name.startswith(PARTIAL_PREFIX):
        return f"{path} is unfinished: a job that was killed left it, or somebody put it there."
    if name.startswith(LOCK_PREFIX):
        return f"{path} is a lock that no start holds: delete it where you know that no start is running."
    return None


def is_readable(path: Path | os.DirEntry[str]) -> bool:
    """Return whether this user may read a file, or look into a folder."""
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def find_unreadable_evidence(run_directory: Path) -> str | None:
    """Return the first of run folder, crate and evidence that this user may not read; None if all are readable."""
    evidence = ("", layout.LOGS, *sorted(folder for folder in _KNOWN_FOLDERS if f"{folder}/" not in _FREE_FOLDERS))
    evidence += (layout.CRATE, layout.ATTESTATION_LOG, layout.SIGNER, layout.PUBLIC_KEY)
    paths = ((name, run_directory / name) for name in evidence)
    return next((name or "it" for name, path in paths if os.path.exists(path) and not is_readable(path)), None)


def list_artifacts(run_directory: Path) -> list[str]:
    """Return the sorted paths, relative to the run, of all files that belong to its results, archives as a whole.

    A link to a file is one: where the run was linked elsewhere, to do a step again, the step reads what it reads.
    """
    inventory = take_inventory(run_directory)
    files = {**inventory.files, **inventory.links}
    return sorted(
        path for path, kind in files.items() if kind.voucher == CRATE_VOUCHER and path not in inventory.archived
    )
