"""Check the attestation log: hash chain, signatures, timestamps, published checkpoints, and records against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.core import signing_keys
from pipeline.core.attestation_log import NO_PREVIOUS_LINE, SLSA_PROVENANCE, LogCheckpoint, LogLine, read_log
from pipeline.core.errors import InputError
from pipeline.core.json_validation import parse_json
from pipeline.layout import ATTEMPTS, ATTESTATION_LOG, PUBLIC_KEY, RECORDS, SIGNER, TIMESTAMP, TIMESTAMPS
from pipeline.provenance.run_signing_and_log_checkpoint import (
    find_logged_run_names,
    read_published_checkpoints,
    select_checkpoints_of_log,
)
from pipeline.provenance.trusted_timestamps import read_timestamp

ReportProblem = Callable[[str, str], None]


class LogSignature(NamedTuple):
    """The signer of a run: owner, key fingerprint, and whether the reader gave the key."""

    owner: str
    key_sha256: str
    key_given: bool


class AttestationLogCheck:
    """Checks the attestation log of a run, which is read once."""

    def __init__(self, run_directory: Path, report: ReportProblem) -> None:
        self.run_directory, self.report = run_directory, report
        self.lines: list[LogLine] = []
        try:
            self.lines.extend(read_log(run_directory, strict=True))
        except InputError as error:
            report(ATTESTATION_LOG, f"{error}.")
            self.lines.clear()  # lines after a broken one are unknown, so the whole log is distrusted
        if not self.lines:
            report(
                ATTESTATION_LOG,
                f"{ATTESTATION_LOG} is missing or empty: nothing says which attempts there were and what they did.",
            )

    def _report_log(self, sentence: str) -> None:
        self.report(ATTESTATION_LOG, f"{ATTESTATION_LOG} {sentence}")

    def _report_line(self, line: LogLine, sentence: str) -> None:
        self.report(ATTESTATION_LOG, f"{ATTESTATION_LOG}, line {line.number} ({_describe_line(line)}), {sentence}")

    def check_chain(self) -> None:
        """Check that every line names the previous one."""
        self.is_whole = True
        expected = NO_PREVIOUS_LINE
        for line in self.lines:
            if line.statement.previous_line_sha256 != expected:
                self.is_whole = False
                self._report_line(line, "does not follow the line before it: one was changed, removed or inserted.")
            expected = line.sha256

    def check_signatures(self, given: Path | None) -> LogSignature | None:
        """Check all signatures with one key; from the first one on every line needs one. None for an unsigned log.

        A key from the run itself proves nothing about its owner, even if it is given.

        Raises:
            InputError: the key that was given is none.
        """
        own = self.run_directory / PUBLIC_KEY
        signed = [line for line in self.lines if line.signatures]
        if not signed:
            if given:
                self._report_log("is not signed: whoever could write these files could rewrite the whole run.")
            elif own.is_file():
                self._report_log(f"is not signed, although {PUBLIC_KEY} is the key of a signed run.")
            return None
        if given is None and not own.is_file():
            self.report(PUBLIC_KEY, f"{PUBLIC_KEY} is missing: give the owner's key with --key.")
            return None
        try:
            key = signing_keys.load_public_key(given or own)
        except InputError as error:
            if given:
                raise
            self.report(PUBLIC_KEY, f"{PUBLIC_KEY} was changed: {error}.")
            return None
        name = signing_keys.key_sha256(key)
        for line in self.lines[signed[0].number - 1 :]:
            if not line.signatures:
                self._report_line(line, "is not signed, and one before it is.")
            elif name not in line.signatures:
                self._report_line(line, f"is signed with another key than {name[:16]}…")
            elif not signing_keys.verify_signature(key, line.signatures[name], line.signed):
                self._report_line(line, "was changed: its signature does not match its content.")
        try:
            owner = str(parse_json((self.run_directory / SIGNER).read_bytes())["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            self.report(SIGNER, f"{SIGNER} is missing or was changed: it names the owner of the key.")
            owner = "not stated"
        is_others = given is not None and not given.resolve().is_relative_to(self.run_directory.resolve())
        return LogSignature(owner, name, is_others)

    def verify_trusted_timestamps(self, files: Iterable[str], certificates: Path | None) -> list[datetime]:
        """Return the times of valid timestamps of lines of the log; the last line needs one if certificates are given.

        Raises:
            InputError: the certificates are none.
        """
        times, hashes = [], {line.sha256 for line in self.lines}
        stamps = [path for path in files if path.startswith(f"{TIMESTAMPS}/")]
        for path in stamps:
            file = self.run_directory / path
            try:
                time = read_timestamp(file, certificates)
            except ValueError as error:
                self.report(path, f"{path} is no timestamp of that line: {error}.")
                continue
            if file.stem in hashes:
                times.append(time)
            else:
                self.report(
                    path,
                    f"{ATTESTATION_LOG} was rewritten since {time:%Y-%m-%d %H:%M} UTC: {path} was of another one.",
                )
        last = TIMESTAMP.relative_path(sha256=self.lines[-1].sha256) if self.lines else ""
        if certificates and last and last not in stamps:
            self.report(last, f"{last} is missing: no authority has seen the last line of {ATTESTATION_LOG}.")
        return times

    def check_published_checkpoints(self, published: Path) -> None:
        """Check that the log has all published checkpoints of the run, and that the newest is its last line.

        Raises:
            InputError: the file with the checkpoints cannot be read.
        """
        if not self.lines:  # one sentence says so
            return
        names = find_logged_run_names(self.lines) or [self.run_directory.absolute().name]
        known = select_checkpoints_of_log(read_published_checkpoints(published), names, self.lines[0].sha256)
        own = {(line.sha256, line.number) for line in self.lines}
        for checkpoint in known:
            if (checkpoint.sha256, checkpoint.lines) not in own:
                self._report_log(
                    f"was rewritten or truncated: {published.name} has the checkpoint {checkpoint.sha256[:16]}… of its "
                    f"line {checkpoint.lines}."
                )
        if not known:
            self._report_log(f"was never published in {published.name}: it has no checkpoint of the run {names[-1]}.")
        elif known[-1].sha256 != self.lines[-1].sha256:
            self._report_log(f"has lines that were never published in {published.name}.")

    def check_given_checkpoint(self, given: str) -> None:
        """Check that the last line has the SHA-256 that the reader has from the owner."""
        number = next((line.number for line in self.lines if line.sha256 == given.lower()), None)
        if self.lines and number is None:
            self._report_log(f"was cut or changed: no line has the checkpoint given, {given}.")
        elif number is not None and number < len(self.lines):
            after = len(self.lines) - number
            self._report_log(f"has {after} lines after the checkpoint given: ask the owner for the newest one.")

    def check_crate_checkpoint(self, crate: str, checkpoint: LogCheckpoint) -> None:
        if len(self.lines) < checkpoint.lines or self.lines[checkpoint.lines - 1].sha256 != checkpoint.sha256:
            self._report_log(
                f"was rewritten or truncated: {crate} says that line {checkpoint.lines} has the sha256 "
                f"{checkpoint.sha256}."
            )

    def check_records(self, records: Iterable[str], sha256_of: Callable[[str], str]) -> None:
        """Check that every record is the newest one that its step attested."""
        if not self.lines:
            return
        history: dict[str, list[str]] = {}
        for line in self._job_lines():
            history.setdefault(line.statement.subject[0].name, []).append(line.statement.subject[0].sha256)
        for path in records:
            *older, newest = history.get(path, [""])
            sha256 = sha256_of(path)
            if sha256 in older and sha256 != newest:
                self.report(path, f"{path} is an older one: its step has run again since, as {ATTESTATION_LOG} says.")
            elif sha256 != newest:
                self.report(path, f"{path} was changed: no line of {ATTESTATION_LOG} attests it.")

    def check_written_before_read(self) -> None:
        """Check that no job read a file before a job had written it."""
        if not self.is_whole:  # its order is then none
            return
        ever = {entry.name for line in self._job_lines() for entry in line.statement.subject}
        newest = {line.statement.subject[0].name: line.number for line in self._job_lines()}
        written: dict[str, set[str]] = {}
        for line in self._job_lines():
            record = line.statement.subject[0].name
            for entry in line.statement.dependencies if newest[record] == line.number else []:
                if entry.name in ever and entry.sha256 not in written.get(entry.name, set()):
                    self.report(record, f"{record} read {entry.name} before any job had written it so.")
            for entry in line.statement.subject:
                written.setdefault(entry.name, set()).add(entry.sha256)

    def _job_lines(self) -> list[LogLine]:
        """Return the lines of finished jobs; the first subject of each is its record."""
        return [line for line in self.lines if line.statement.kind == SLSA_PROVENANCE]


def _describe_line(line: LogLine) -> str:
    """Return the first file of a line and the number of further ones."""
    first, *more = (
        entry.name.removeprefix(f"{RECORDS}/").removeprefix(f"{ATTEMPTS}/") for entry in line.statement.subject
    )
    return f"{first} and {len(more)} more" if more else first
