"""Evidence: what a run leaves beside its results, and what the log of attestations says of it.

Attempts, books, lists of batches, readings, logs and copies of the configuration are attested when a start ends. What
grows (readings, logs) may be attested while it does, so its length is attested as well; it is compared to its end, and
may be longer only while a start works on the run.

What was changed between two starts is noted in the log by the next one, which vouches for none of it: else whoever has
no key could change a file and wait until the owner's next start signs it. The log alone decides which files no job can
have written since they were attested: no clock is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline import layout
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
    """What the newest attestation says of a file: its hash, the bytes that this is of (None: all), and the line."""

    sha256: str
    bytes: int | None
    line: int


def list_evidence(run_directory: Path) -> list[str]:
    """Return the sorted paths of all files that the log attests, relative to the run."""
    inventory = take_inventory(run_directory, EVIDENCE_FOLDERS)
    return sorted([*inventory.vouched_by(LOG_VOUCHER), *inventory.vouched_by(AUTHORITY_VOUCHER)])


def newest_attestations(found: Iterable[LogLine]) -> dict[str, Attestation]:
    """Return what is attested of each file, by its path; of an attempt's beginning only that it was."""
    newest: dict[str, Attestation] = {}
    for line in (line for line in found if line.statement.kind != EVIDENCE_CHANGED):
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


def hash_prefix(path: Path, size_bytes: int | None) -> str:
    """Return the hash of the first bytes of a file, of all for None; of a shorter file that of what there is."""
    digest = hashlib.sha256()
    left = size_bytes
    with path.open("rb") as stream:
        while block := stream.read(1 << 20 if left is None else min(left, 1 << 20)):
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


def describe_change(run_directory: Path, path: str, known: Attestation, may_grow: bool) -> str | None:
    """Return in what a file differs from its newest attestation, as a sentence; None where it does not."""
    size = (run_directory / path).stat().st_size
    if hash_prefix(run_directory / path, known.bytes) != known.sha256:
        return f"{path} was changed: it is not what line {known.line} of {ATTESTATION_LOG} attests."
    if known.bytes is not None and size > known.bytes and not may_grow:
        return (
            f"{path} was changed: {size - known.bytes} bytes were added to the {known.bytes} that line {known.line} of "
            f"{ATTESTATION_LOG} attests, and no start is running."
        )
    return None


def attest_evidence(run_directory: Path, kind: str = EVIDENCE_ATTESTED) -> int:
    """Attest all evidence that is new or has changed since it was attested last; return how many files that are.

    What somebody changed between two starts, as the log notes, is not attested as long as it is so.

    Raises:
        InputError: the log was cut or changed, or the key cannot be used.
    """
    found = [*read_log(run_directory)]
    known = newest_attestations(line for line in found if line.statement.kind != ATTEMPT_BEGAN)
    notes = (line for line in found if line.statement.kind == EVIDENCE_CHANGED)
    refused = {(entry.name, entry.sha256) for line in notes for entry in line.statement.subject}
    line_hashes, subject = {line.sha256 for line in found}, []
    for path in list_evidence(run_directory):
        if path.startswith(f"{TIMESTAMPS}/") and Path(path).stem not in line_hashes:  # it is of another log
            continue
        size = (run_directory / path).stat().st_size if path.startswith(APPENDED_FOLDERS) else None
        sha256 = hash_prefix(run_directory / path, size)
        if (path, sha256) in refused:
            continue
        if path not in known or (known[path].sha256, known[path].bytes) not in ((sha256, None), (sha256, size)):
            subject.append(
                resource_descriptor(path, sha256) if size is None else resource_descriptor(path, sha256, bytes=size)
            )
    if subject:
        append_statement(run_directory, kind, subject, {"log": ATTESTATION_LOG})
    return len(subject)


def attest_removed_batches(run_directory: Path, paths: Iterable[Path]) -> None:
    """Attest which lists of batches were deleted, as their units are no more; no other evidence may ever go.

    Raises:
        InputError: the log was cut or changed, or the key cannot be used.
    """
    known = newest_attestations(read_log(run_directory))
    names = [path.relative_to(run_directory).as_posix() for path in paths if path.is_relative_to(run_directory)]
    subject = [
        resource_descriptor(name, known[name].sha256)
        for name in sorted(names)
        if name.startswith(f"{BATCHES}/") and name in known
    ]
    if subject:
        append_statement(run_directory, EVIDENCE_REMOVED, subject, {"log": ATTESTATION_LOG})


def _attempt_name(line: LogLine) -> str:
    """Return the name of the attempt that a line of a job is about."""
    names = (entry.name for entry in (*line.statement.subject, *line.statement.byproducts))
    path = next((name for name in names if name.startswith(f"{layout.ATTEMPTS}/")), "")
    return path.removeprefix(f"{layout.ATTEMPTS}/").removesuffix(".json")


def _step_name(name: str) -> str:
    """Return the step with which the name of an attempt, a log or a list of batches begins."""
    return ".".join(name.split(".")[:2])


def _build_closed_check(found: list[LogLine]) -> Callable[[str, Attestation], bool]:
    """Return a function that says whether a file is closed: no job can have written it since it was attested.

    The files of an attempt are closed when it has ended, the reading of Snakemake's own process when its start has, and
    logs and the like when nothing came after the end of the last start. An attempt without an end may still write: it
    goes on in Slurm, or was killed. Accounting is not closed, as meters are asked again for what they did not know.
    """
    ended = {_attempt_name(line) for line in found if line.statement.kind in (ATTEMPT_ENDED, SLSA_PROVENANCE)}
    endless = {_attempt_name(line) for line in found if line.statement.kind == ATTEMPT_BEGAN} - ended
    ends = {line.number for line in found if line.statement.kind == INVOCATION_ENDED}

    def closed(path: str, known: Attestation) -> bool:
        name = path.rpartition("/")[2]
        if path.startswith(ATTEMPT_FOLDERS):
            attempt = name.partition("@")[0].removesuffix(".json")
            return attempt in ended or (attempt.startswith("snakemake.") and known.line <= max(ends, default=0))
        if not path.startswith(STEP_FOLDERS) or len(found) not in ends:
            return False
        return not endless if path.startswith(SLURM_FOLDER) else _step_name(name) not in {*map(_step_name, endless)}

    return closed


def attest_changes(run_directory: Path, say: Callable[[str], None]) -> None:
    """Note in the log which closed files are not what it attests, and say it.

    Raises:
        InputError: the log was cut or changed, or the key cannot be used.
    """
    found = [*read_log(run_directory)]
    known = newest_attestations(line for line in found if line.statement.kind != ATTEMPT_BEGAN)
    closed, subject = _build_closed_check(found), []
    for path in list_evidence(run_directory):
        if path not in known or not closed(path, known[path]):
            continue
        if sentence := describe_change(run_directory, path, known[path], may_grow=False):
            say(f"{sentence} Put back what it was: it is not attested again")
            subject.append(resource_descriptor(path, hash_prefix(run_directory / path, None)))
    if subject:
        append_statement(run_directory, EVIDENCE_CHANGED, subject, {"log": layout.ATTESTATION_LOG})
