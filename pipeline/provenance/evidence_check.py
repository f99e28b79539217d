"""Check evidence against the attestation log, and records against their commands and attempts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from pipeline import layout
from pipeline.core.archived_run_files import StoredFile, file_size
from pipeline.core.attestation_log import (
    ATTEMPT_BEGAN,
    ATTEMPT_ENDED,
    EVIDENCE_CHANGED,
    SLSA_PROVENANCE,
    LogLine,
    fixed_attempt_fields,
)
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import DIGEST_PREFIX, command_option
from pipeline.core.job_records import Attempt, Record
from pipeline.core.json_validation import parse_json
from pipeline.core.lock_owner import LockOwner
from pipeline.layout import ATTEMPTS, ATTESTATION_LOG, RUN_LOCK, TIMESTAMPS
from pipeline.provenance.evidence_attestation import Attestation, describe_change, newest_attestation_by_file
from pipeline.provenance.inventory import (
    APPEND_ONLY,
    AUTHORITY_VOUCHER,
    LOG_VOUCHER,
    WRITE_ONCE,
    Inventory,
    find_file_kind,
)

ReportProblem = Callable[[str, str], None]
ROUNDING_SECONDS = 0.01  # times of the calendar are whole milliseconds
SET_CLOCK_SECONDS = 60.0  # a step of the clock while a job runs, by NTP or where a virtual machine was halted
VERSION_OPTIONS = {"--code": "code_version", "--environment": "environment_version"}


def find_lock_owner(run_directory: Path, report: ReportProblem) -> LockOwner | None:
    """Return the lock owner of a run if its process is known to live; report any other lock."""
    path = run_directory / RUN_LOCK
    if path.is_symlink() or not path.is_file():
        return None
    try:
        first, _, count = path.read_bytes().partition(b"\n")
        owner = LockOwner.model_validate_json(first, extra="forbid")
        is_lock = re.fullmatch(rb"[0-9]*\n?", count) is not None
    except (OSError, ValidationError):
        is_lock = False
    if not is_lock:
        report(RUN_LOCK, f"{RUN_LOCK} names no start: delete it where you know that no start is running.")
        return None
    if (Path(owner.working_directory) / owner.run).resolve() != run_directory.resolve():
        report(
            RUN_LOCK,
            f"{RUN_LOCK} names a start that works on another folder, {owner.run}: it was copied from there.",
        )
        return None
    verdict = owner.process_state()
    if verdict == "lives":
        return owner
    if verdict is None:
        report(
            RUN_LOCK,
            f"{RUN_LOCK} names {owner}, which cannot be seen from here: verify on that machine, or without a lock.",
        )
    else:
        report(RUN_LOCK, f"{RUN_LOCK} names {owner}, which does not run: the next start removes it.")
    return None


class _FileHistory(NamedTuple):
    """The attestations of one file: contents, the line of an attempt's begin, and the content at its end."""

    contents: list[Attestation]
    began: LogLine | None
    end: Attestation | None


def _collect_histories(lines: list[LogLine]) -> dict[str, _FileHistory]:
    histories: dict[str, _FileHistory] = {}
    for line in (line for line in lines if line.statement.kind != EVIDENCE_CHANGED):
        for entry in (*line.statement.subject, *line.statement.byproducts):
            known = histories.get(entry.name, _FileHistory([], None, None))
            content = Attestation(entry.sha256, entry.annotations.bytes, line.number)
            if line.statement.kind == ATTEMPT_BEGAN:
                known = known._replace(began=line)
            else:
                known.contents.append(content)
            if line.statement.kind in (ATTEMPT_ENDED, SLSA_PROVENANCE) and entry.name.startswith(f"{ATTEMPTS}/"):
                known = known._replace(end=known.end or content)
            histories[entry.name] = known
    return histories


def _hash_prefixes(content: bytes, sizes: set[int | None]) -> set[str]:
    """Return the hashes of prefixes of a file with these sizes; None stands for all prefixes that end with a line."""
    ends = {len(content), *(size for size in sizes if size is not None and size <= len(content))}
    if None in sizes:
        ends |= {match.end() for match in re.finditer(b"\n", content)}
    digest, hashes, place = hashlib.sha256(), {hashlib.sha256().hexdigest()}, 0
    for end in sorted(ends):
        digest.update(content[place:end])
        place = end
        hashes.add(digest.hexdigest())
    return hashes


class EvidenceCheck:
    """Compares the evidence of a run with the lines of the log."""

    def __init__(self, run_directory: Path, inventory: Inventory, lines: list[LogLine], report: ReportProblem) -> None:
        self.run_directory, self.inventory, self.lines, self.report = run_directory, inventory, lines, report
        self.newest = newest_attestation_by_file(lines)
        self.histories = _collect_histories(lines)
        self.line_hashes = {line.sha256 for line in lines}
        self.owner = find_lock_owner(run_directory, report)

    def check(self) -> None:
        """Check that all attested evidence exists unchanged, and no other."""
        if not self.lines:  # one sentence says so
            return
        present = {
            path for path, kind in self.inventory.files.items() if kind.voucher in (LOG_VOUCHER, AUTHORITY_VOUCHER)
        }
        closed = tuple(self.inventory.unreadable_folders)
        for path, attestation in sorted(self.newest.items()):
            kind = find_file_kind(path)
            if (
                kind
                and kind.voucher in (LOG_VOUCHER, AUTHORITY_VOUCHER)
                and path not in present
                and not path.startswith(closed)
            ):
                self.report(path, f"{path} is missing: line {attestation.line} of {ATTESTATION_LOG} attests it.")
        for path in sorted(present):
            if path in self.newest:
                self._check_content(path, self.newest[path])
            elif not (path.startswith(f"{TIMESTAMPS}/") and Path(path).stem in self.line_hashes):
                self._report_unattested(path, f"{path} is unknown: no attestation names it.", "is not attested yet")

    def _report_unattested(self, path: str, otherwise: str, what: str) -> None:
        if self.owner is None:
            self.report(path, otherwise)
        else:
            self.report(path, f"{path} {what}: {self.owner} is working on the run. Verify when that start has ended.")

    def _check_content(self, path: str, attestation: Attestation) -> None:
        history, file = self.histories[path], self.inventory.find(self.run_directory, path)
        if history.began:
            self._check_attempt_begin(path, history.began)
        if not history.contents:
            return
        if sentence := describe_change(file, path, attestation, may_grow=self.owner is not None):
            self.report(path, sentence)
            return
        if attestation.bytes is not None and (size := file_size(file)) > attestation.bytes:
            self._report_unattested(path, "", f"has {size} bytes, of which {attestation.bytes} are attested yet")
        if len({content.sha256 for content in history.contents}) > 1:
            self._check_history(path, history, attestation)

    def _check_history(self, path: str, history: _FileHistory, newest: Attestation) -> None:
        """Check that a file was attested again only as its kind may change."""
        kind = self.inventory.files[path]
        first: Attestation | None = None
        if kind.change == APPEND_ONLY:
            sizes = {content.bytes for content in history.contents}
            prefixes = _hash_prefixes(self.inventory.find(self.run_directory, path).read_bytes(), sizes)
            first = next((content for content in history.contents if content.sha256 not in prefixes), None)
        elif path.startswith(f"{ATTEMPTS}/"):
            first = history.end if history.end and history.end.sha256 != newest.sha256 else None
        elif kind.change == WRITE_ONCE:
            first = next((content for content in history.contents if content.sha256 != newest.sha256), None)
        if first:
            self.report(
                path,
                f"{path} was changed: line {first.line} of {ATTESTATION_LOG} attests another content, and a file like "
                f"this {APPEND_ONLY if kind.change == APPEND_ONLY else WRITE_ONCE}.",
            )

    def _check_attempt_begin(self, path: str, line: LogLine) -> None:
        """Check that an attempt is the one that began, also if it has no end."""
        try:
            content = parse_json(self.inventory.find(self.run_directory, path).read_bytes())
            is_same = fixed_attempt_fields(content) == fixed_attempt_fields(line.statement.predicate.attempt or {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            is_same = False
        if not is_same:
            self.report(path, f"{path} was changed: it is not the attempt whose beginning line {line.number} attests.")

    def _was_attested(self, path: str, sha256: str, until: int) -> bool:
        return any(content.sha256 == sha256 and content.line <= until for content in self.histories[path].contents)

    def find_uncovered_evidence(self, after: int, listed: set[str]) -> list[str]:
        """Return evidence whose content neither lines up to `after` nor the listed files of a crate cover."""
        return sorted(
            path
            for path, attestation in self.newest.items()
            if path in self.inventory.files and path not in listed
            if attestation.line > after and not self._was_attested(path, attestation.sha256, after)
        )


def _differing_keys(settings: dict[str, Any], given: dict[str, Any], key: str = "") -> list[str]:
    """Return the keys whose values differ from the settings."""
    keys = []
    for name, value in given.items():
        own, place = settings.get(name), f"{key}{name}"
        if isinstance(value, dict) and isinstance(own, dict):
            keys += _differing_keys(own, value, f"{place}.")
        elif own != value:
            keys.append(place)
    return keys


def _check_command(record: Record) -> list[str]:
    problems = []
    if record.command[3:5] != record.step.split("."):
        problems.append(f"its command is {' '.join(record.command[3:5])}, its step {record.step}")
    try:
        text = command_option(record.full_command, "--settings") or ""
        given = None if text.startswith(DIGEST_PREFIX) else json.loads(text)
    except ValueError:
        return [*problems, "its command names no settings"]
    if given is None:
        problems.append("its command has the digest of other settings")
    elif wrong := _differing_keys(record.settings, given):
        problems.append(f"its command has other settings: {', '.join(wrong)}")
    for option, field in VERSION_OPTIONS.items():
        if (command_option(record.command, option) or "") != getattr(record, field):
            problems.append(f"its command has another {field.replace('_', ' ')}")
    return problems


def check_record_against_attempt(
    find_file: Callable[[str], StoredFile], record: Record, report: ReportProblem, known: set[str]
) -> None:
    """Report where a record contradicts its command line, its attempt or its own times.

    An attempt that is `known` to be changed is believed in nothing.
    """
    problems = _check_command(record)
    try:
        wall = (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
        if abs(wall - record.wall_seconds) > ROUNDING_SECONDS + SET_CLOCK_SECONDS:
            problems.append(f"it took {record.wall_seconds} s and lasted {wall:.3f} s")
    except ValueError:
        problems.append("its times are none")
    if record.attempt is None:
        problems.append("it names no attempt")
    elif f"{layout.ATTEMPTS}/{record.attempt}" not in known:
        try:
            attempt = Attempt.load(find_file(f"{layout.ATTEMPTS}/{record.attempt}"), strict=True)
        except InputError as error:
            problems.append(str(error))
        else:
            for name in ("step", "host", "started", "ended", "wall_seconds", "cpu_seconds"):
                if getattr(attempt, name) != getattr(record, name):
                    problems.append(f"its attempt has other {name.replace('_', ' ')}")
            if attempt.status != "finished":
                problems.append(f"its attempt is {attempt.status}")
    if problems:
        report(record.file, f"{record.file} contradicts itself: {'; '.join(problems)}.")
