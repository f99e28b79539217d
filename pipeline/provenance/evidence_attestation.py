"""Evidence of a run besides its results, and its attestation.

Attempts, external meters, batch records, readings, logs and snapshots are attested when an invocation ends. Readings
and logs may grow afterwards, so their length is attested as well; they may be longer only during an invocation.

The next invocation records in the log which files changed since the last one, and does not vouch for them. Otherwise
somebody without the key could change a file and have the owner's next invocation sign it. Only the log decides which
files no job can have changed since they were attested; clocks play no part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline import layout
from pipeline.core.archived_run_files import StoredFile, file_size
from pipeline.core.attestation_log import (
    ATTEMPT_BEGAN,
    ATTEMPT_ENDED,
    EVIDENCE_ATTESTED,
    EVIDENCE_CHANGED,
    EVIDENCE_REMOVED,
    INVOCATION_ENDED,
    SLSA_PROVENANCE,
    LogLine,
    append_statement,
    read_log,
    resource_descriptor,
)
from pipeline.layout import ATTESTATION_LOG, BATCHES, LOGS, READINGS, TIMESTAMPS
from pipeline.provenance.inventory import AUTHORITY_VOUCHER, EVIDENCE_FOLDERS, LOG_VOUCHER, take_inventory

APPENDED_FOLDERS = (f"{LOGS}/", f"{READINGS}/")
ATTEMPT_FOLDERS = (f"{layout.ATTEMPTS}/", f"{layout.READINGS}/")
STEP_FOLDERS = tuple(
    f"{folder}/"
    for folder in (layout.LOGS, layout.BATCHES, layout.FROZEN, layout.ENVIRONMENTS, layout.MODEL_SIGNATURES)
)
SLURM_FOLDER = f"{layout.SLURM_LOGS}/"


class Attestation(NamedTuple):
    """The newest attestation of a file: its hash, the number of hashed bytes (None: all), and the line."""

    sha256: str
    bytes: int | None
    line: int


def list_evidence(run_directory: Path) -> dict[str, StoredFile]:
    """Return all files that the log attests by their paths relative to the run, in order."""
    inventory = take_inventory(run_directory, EVIDENCE_FOLDERS)
    paths = sorted([*inventory.files_vouched_by(LOG_VOUCHER), *inventory.files_vouched_by(AUTHORITY_VOUCHER)])
    return {path: inventory.find(run_directory, path) for path in paths}


def newest_attestation_by_file(lines: Iterable[LogLine]) -> dict[str, Attestation]:
    """Return the newest attestation of each file by path; the begin of an attempt counts only if nothing else does."""
    newest: dict[str, Attestation] = {}
    for line in (line for line in lines if line.statement.kind != EVIDENCE_CHANGED):
        for entry in (*line.statement.subject, *line.statement.byproducts):
            if line.statement.kind == EVIDENCE_REMOVED and entry.name.startswith(f"{BATCHES}/"):
                newest.pop(entry.name, None)
                continue
            attestation = Attestation(entry.sha256, entry.annotations.bytes, line.number)
            if line.statement.kind == ATTEMPT_BEGAN:
                newest.setdefault(entry.name, attestation)
            else:
                newest[entry.name] = attestation
    return newest


def hash_prefix(file: StoredFile, size_bytes: int | None) -> str:
    """Return the SHA-256 of the first bytes of a file; None means all of them."""
    digest = hashlib.sha256()
    left = size_bytes
    with file.open("rb") as stream:
        while block := stream.read(1 << 20 if left is None else min(left, 1 << 20)):
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


def describe_change(file: StoredFile, path: str, known: Attestation, may_grow: bool) -> str | None:
    """Return how a file differs from its newest attestation, as a sentence; None if it does not."""
    try:
        size, sha256 = file_size(file), hash_prefix(file, known.bytes)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if sha256 != known.sha256:
        return f"{path} was changed: it is not what line {known.line} of {ATTESTATION_LOG} attests."
    if known.bytes is not None and size > known.bytes and not may_grow:
        return (
            f"{path} was changed: {size - known.bytes} bytes were added to the {known.bytes} that line {known.line} of "
            f"{ATTESTATION_LOG} attests, and no start is running."
        )
    return None


def attest_evidence(run_directory: Path, kind: str = EVIDENCE_ATTESTED) -> int:
    """Attest all new and changed evidence; return the number of files.

    Files that the log records as changed between two invocations are not attested.

    Raises:
        InputError: the log was truncated or changed, or the key cannot be used.
    """
    lines = [*read_log(run_directory)]
    known = newest_attestation_by_file(line for line in lines if line.statement.kind != ATTEMPT_BEGAN)
    notes = (line for line in lines if line.statement.kind == EVIDENCE_CHANGED)
    refused = {(entry.name, entry.sha256) for line in notes for entry in line.statement.subject}
    line_hashes, subject = {line.sha256 for line in lines}, []
    for path, file in list_evidence(run_directory).items():
        if path.startswith(f"{TIMESTAMPS}/") and Path(path).stem not in line_hashes:  # of another log
            continue
        try:
            size = file_size(file) if path.startswith(APPENDED_FOLDERS) else None
            sha256 = hash_prefix(file, size)
        except OSError:  # its archive is damaged, which the next start records
            continue
        if (path, sha256) in refused:
            continue
        if path not in known or (known[path].sha256, known[path].bytes) not in ((sha256, None), (sha256, size)):
            subject.append(
                resource_descriptor(path, sha256) if size is None else resource_descriptor(path, sha256, bytes=size)
            )
    if subject:
        append_statement(run_directory, kind, subject, {"log": ATTESTATION_LOG})
    return len(subject)


def attest_batch_record_removal(run_directory: Path, paths: Iterable[Path]) -> None:
    """Attest that batch records of removed units were deleted; no other evidence may be deleted.

    Raises:
        InputError: the log was truncated or changed, or the key cannot be used.
    """
    known = newest_attestation_by_file(read_log(run_directory))
    names = [path.relative_to(run_directory).as_posix() for path in paths if path.is_relative_to(run_directory)]
    subject = [
        resource_descriptor(name, known[name].sha256)
        for name in sorted(names)
        if name.startswith(f"{BATCHES}/") and name in known
    ]
    if subject:
        append_statement(run_directory, EVIDENCE_REMOVED, subject, {"log": ATTESTATION_LOG})


def _attempt_name(line: LogLine) -> str:
    names = (entry.name for entry in (*line.statement.subject, *line.statement.byproducts))
    path = next((name for name in names if name.startswith(f"{layout.ATTEMPTS}/")), "")
    return path.removeprefix(f"{layout.ATTEMPTS}/").removesuffix(".json")


def _step_name(name: str) -> str:
    """Return the step at the start of the name of an attempt, log or batch record."""
    return ".".join(name.split(".")[:2])


def _build_closed_check(lines: list[LogLine]) -> Callable[[str, Attestation], bool]:
    """Return a function that says whether a file is closed: no job can have changed it since it was attested.

    The files of an attempt are closed when it has ended, the readings of a Snakemake process when its invocation has
    ended, and logs and similar files when no line follows the end of the last invocation. An attempt without an end may
    still write: it runs in Slurm, or was killed. Accounting is never closed, because meters are queried again.
    """
    ended = {_attempt_name(line) for line in lines if line.statement.kind in (ATTEMPT_ENDED, SLSA_PROVENANCE)}
    endless = {_attempt_name(line) for line in lines if line.statement.kind == ATTEMPT_BEGAN} - ended
    ends = {line.number for line in lines if line.statement.kind == INVOCATION_ENDED}

    def is_evidence_file_final(path: str, known: Attestation) -> bool:
        name = path.rpartition("/")[2]
        if path.startswith(ATTEMPT_FOLDERS):
            attempt = name.partition("@")[0].removesuffix(".json")
            return attempt in ended or (attempt.startswith("snakemake.") and known.line <= max(ends, default=0))
        if not path.startswith(STEP_FOLDERS) or len(lines) not in ends:
            return False
        return not endless if path.startswith(SLURM_FOLDER) else _step_name(name) not in {*map(_step_name, endless)}

    return is_evidence_file_final


def record_changed_evidence(run_directory: Path, say: Callable[[str], None]) -> None:
    """Record in the log which closed files differ from their attestation, and print them.

    Raises:
        InputError: the log was truncated or changed, or the key cannot be used.
    """
    lines = [*read_log(run_directory)]
    known = newest_attestation_by_file(line for line in lines if line.statement.kind != ATTEMPT_BEGAN)
    closed, subject = _build_closed_check(lines), []
    for path, file in list_evidence(run_directory).items():
        if path not in known or not closed(path, known[path]):
            continue
        if sentence := describe_change(file, path, known[path], may_grow=False):
            say(f"{sentence} Put back what it was: it is not attested again")
            try:
                subject.append(resource_descriptor(path, hash_prefix(file, None)))
            except OSError:  # it is in a damaged archive
                subject.append(resource_descriptor(path, hashlib.sha256().hexdigest()))
    if subject:
        append_statement(run_directory, EVIDENCE_CHANGED, subject, {"log": layout.ATTESTATION_LOG})
