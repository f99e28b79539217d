"""Verify that results agree with records, crate and attestation log.

Each file is hashed once. A changed file is reported once and then distrusted, so that one changed byte gives one
sentence about one file.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pipeline import layout
from pipeline.core.archived_run_files import StoredFile
from pipeline.core.attestation_log import LogCheckpoint
from pipeline.core.display_text import escape_to_one_line, pluralize
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import FileEntry, Record, map_producers, read_records
from pipeline.core.json_validation import parse_json
from pipeline.core.output_archives import may_hold, parse_archive_job_name
from pipeline.provenance.attestation_log_check import AttestationLogCheck, LogSignature
from pipeline.provenance.crate_graph import ARCHIVED_PREFIX, CHECKPOINT_IDENTIFIER
from pipeline.provenance.evidence_check import EvidenceCheck, check_record_against_attempt
from pipeline.provenance.inventory import CRATE_VOUCHER, UNREADABLE, find_unreadable_evidence, take_inventory
from pipeline.provenance.run_signing_and_log_checkpoint import find_logged_run_names


class _CrateMetadata:
    """The content of a crate: SHA-256 of every file, records of the run, and the log checkpoint before it."""

    def __init__(self, text: bytes) -> None:
        entities: list[dict[str, Any]] = parse_json(text)["@graph"]
        state = next((entity for entity in entities if entity["@id"] == CHECKPOINT_IDENTIFIER), None)
        self.checkpoint = state and LogCheckpoint(int(state["position"]), str(state["sha256"]))
        self.sha256_of = {
            unquote(e["@id"]).removeprefix(ARCHIVED_PREFIX): str(e["sha256"])
            for e in entities
            if "File" in e["@type"] or (e["@id"].startswith(ARCHIVED_PREFIX) and "sha256" in e)
        }
        self.records = {
            unquote(e["subjectOf"]["@id"]).removeprefix(ARCHIVED_PREFIX)
            for e in entities
            if e["@type"] == "CreateAction"
        }


def _read_crate(
    run_directory: Path, records: list[Record], crate_sha256: str | None, problems: dict[str, str]
) -> _CrateMetadata | None:
    """Return the crate, or None with a problem if it is missing, broken or not the expected one."""
    path = run_directory / layout.CRATE
    if not path.is_file():
        problems[layout.CRATE] = f"{layout.CRATE} is missing: the crate was not made or was deleted."
        return None
    actual = hash_file(path)
    outputs = [output for record in records if record.file == layout.CRATE_RECORD for output in record.outputs]
    recorded = next((output.sha256 for output in outputs if output.path == layout.CRATE), actual)
    expected, said = recorded, f"{layout.CRATE_RECORD} says {recorded}"
    if crate_sha256 is not None:
        expected, said = crate_sha256.lower(), f"the sha256 given is {crate_sha256}"
    if actual != expected:
        problems[layout.CRATE] = f"{layout.CRATE} was changed: its sha256 is {actual}, {said}."
        return None
    if actual != recorded:
        problems[layout.CRATE_RECORD] = (
            f"{layout.CRATE_RECORD} was changed: it says that the crate's sha256 is {recorded}."
        )
    try:
        return _CrateMetadata(path.read_bytes())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problems[layout.CRATE] = f"{layout.CRATE} is not a valid crate: it cannot be read as RO-Crate metadata."
        return None


def _check_document_counts(name: str, part: dict[str, Any]) -> list[str]:
    """Check that documents in = kept + removed in each stage of a source or of the totals."""
    problems, expected = [], int(part["documents_in"])
    for step in part["stages"]:
        entering, kept, removed = int(step["in"]), int(step["kept"]), sum(map(int, step["removed"].values()))
        if entering != expected:
            problems.append(f"{name}, {step['stage']}: {entering} documents came in, but {expected} were there.")
        if entering != kept + removed:
            problems.append(f"{name}, {step['stage']}: {entering} in is not {kept} kept + {removed} removed.")
        expected = kept
    if int(part["documents_out"]) != expected:
        problems.append(f"{name}: {part['documents_out']} documents came out, but {expected} were kept.")
    return problems


def _check_statistics(run_directory: Path, path: str, recorded: dict[str, Any]) -> list[str]:
    """Check that the counts of a corpus add up and are those of the record of the job that wrote them."""
    try:
        content = parse_json((run_directory / path).read_bytes())
        sources, totals = content["sources"], content["totals"]
        problems = _check_document_counts(f"{path}, totals", totals)
        for source, part in sorted(sources.items()):
            problems += _check_document_counts(f"{path}, source {source}", part)
        for key in ("documents_in", "documents_out"):
            total = sum(int(part[key]) for part in sources.values())
            if total != int(totals[key]):
                problems.append(f"{path}: {key} of the sources add up to {total}, the total says {totals[key]}.")
        for key in sorted(totals.keys() & recorded.keys()):
            if totals[key] != recorded[key]:
                problems.append(f"{path}: {key} of the totals is {totals[key]}, its record says {recorded[key]}.")
        return problems
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return [f"{path} is not valid: it does not hold the counts of a corpus."]


class TrustAnchors(NamedTuple):
    """What the reader has from the owner and not from the run: without it the run only vouches for itself."""

    crate_sha256: str | None = None
    key: Path | None = None
    timestamp_certificates: Path | None = None
    log: Path | None = None
    log_checkpoint: str | None = None


MEMBER_FOLDERS = tuple(f"{folder}/" for folder in (layout.RECORDS, layout.ATTEMPTS, layout.READINGS))
NO_TRUST_ANCHORS = TrustAnchors()


def _is_archive(path: str) -> bool:
    return parse_archive_job_name(path) is not None or layout.BATCH_ARCHIVE.parse(path) is not None


class _RunVerification:
    """One pass over a run; `problems` maps each path in question to its one sentence."""

    def __init__(self, run_directory: Path, trusted: TrustAnchors) -> None:
        self.run_directory = run_directory
        self.inventory = take_inventory(run_directory)
        special = self.inventory.special
        self.problems = {path: self.inventory.problems[path] for path in special or self.inventory.problems}
        self.files = self.inventory.files_vouched_by(CRATE_VOUCHER)
        self.closed = tuple(self.inventory.unreadable_folders)
        self.crate: _CrateMetadata | None = None
        self.records: list[Record] = []
        self.signed: LogSignature | None = None
        self.timestamps: list[datetime] = []
        self.run_names: list[str] = []
        self.hash = cache(self._hash)
        self.evidence: EvidenceCheck | None = None
        if not special:  # to read one may take for ever
            self.check(AttestationLogCheck(run_directory, self.note_problem), trusted)

    def check(self, log: AttestationLogCheck, trusted: TrustAnchors) -> None:
        run_directory = self.run_directory
        log.check_chain()
        self.signed = log.check_signatures(trusted.key)
        self.timestamps = log.verify_trusted_timestamps(sorted(self.inventory.files), trusted.timestamp_certificates)
        if trusted.log:
            log.check_published_checkpoints(trusted.log)
        if trusted.log_checkpoint is not None:
            log.check_given_checkpoint(trusted.log_checkpoint)
        self.run_names = find_logged_run_names(log.lines)
        records, broken = read_records(run_directory)
        self.crate = _read_crate(run_directory, records, trusted.crate_sha256, self.problems)
        for path, sentence in broken.items():
            if path not in self.inventory.archived:
                self.note_problem(path, f"{sentence}.")
        if self.crate is not None:
            self.check_crate_files(self.crate)
            if layout.CRATE_RECORD not in self.inventory.files:
                self.note_problem(
                    layout.CRATE_RECORD,
                    f"{layout.CRATE_RECORD} is missing: the job that wrote {layout.CRATE} has left it.",
                )
            if self.crate.checkpoint and log.lines:
                log.check_crate_checkpoint(layout.CRATE, self.crate.checkpoint)
        for path, sentence in broken.items():
            self.note_problem(path, f"{sentence}.")
        # A changed record is believed in nothing; a record of an earlier configuration is not part of this run.
        self.records = [
            record
            for record in records
            if record.file not in self.problems
            and record.archive not in self.problems
            and record.file != layout.CRATE_RECORD
            and (self.crate is None or record.file in self.crate.records)
        ]
        self.made = map_producers(self.records)
        for record in self.records:
            self.check_outputs(record)
            self.check_snapshot(record)
        self.evidence = EvidenceCheck(run_directory, self.inventory, log.lines, self.note_problem)
        self.evidence.check()
        for record in self.records:
            self.check_inputs(record)
            check_record_against_attempt(self.find, record, self.note_problem, set(self.problems))
        log.check_records((record.file for record in records), self.hash)
        log.check_written_before_read()

    def find(self, path: str) -> StoredFile:
        """Return a file of the run, by itself or in an archive."""
        return self.inventory.find(self.run_directory, path)

    def _hash(self, path: str) -> str:
        try:
            return hash_file(self.find(path))
        except OSError as error:
            return f"unknown ({error.strerror})"

    def note_problem(self, path: str, sentence: str) -> None:
        """Note a problem of a path; of what is in an archive that was changed nothing more is said."""
        if not self._is_in_changed_archive(path):
            self.problems.setdefault(path, sentence)

    def _is_in_changed_archive(self, path: str) -> bool:
        if archived := self.inventory.archived.get(path):
            return archived.archive_path in self.problems
        if path in self.inventory.files:
            return False
        if not path.startswith(MEMBER_FOLDERS):
            return any(may_hold(problem, path) for problem in self.problems)
        return path.rpartition("/")[2].startswith(tuple(self._damaged_batches()))

    def _damaged_batches(self) -> list[str]:
        """Return how the names of the units' files begin whose archive has a problem."""
        archives = [values for path in self.problems if (values := layout.BATCH_ARCHIVE.parse(path))]
        return [f"{values['job'].rpartition('.')[0]}." for values in archives]

    def check_crate_files(self, crate: _CrateMetadata) -> None:
        """Check that every file of the crate exists with its hash, and no other file."""
        present = set(self.files)
        paths = {*present, *crate.sha256_of}
        for path in sorted(paths, key=lambda path: (not _is_archive(path), path)):
            expected = crate.sha256_of.get(path)
            if expected is None:
                self.note_problem(path, f"{path} is unknown: the crate does not list it.")
            elif path.startswith(self.closed):
                continue
            elif path not in present:
                self.note_problem(path, f"{path} is missing, the crate lists it.")
            elif self.hash(path) != expected:
                self.note_problem(
                    path, f"{path} was changed: its sha256 is {self.hash(path)}, the crate says {expected}."
                )

    def check_outputs(self, record: Record) -> None:
        """Check that the outputs of a job have their recorded hashes and no other producer."""
        for output in record.outputs:
            producer = self.made[output.path][0]
            if producer is not record:
                self.note_problem(output.path, f"{output.path} has two makers: {record.file} and {producer.file}.")
            else:
                self.check_file(output.path, output.sha256, record)

    def check_inputs(self, record: Record) -> None:
        """Check that inputs of a job are the outputs of another job or existing files."""
        for given in record.inputs:
            if given.is_outside_run or given.path in self.problems or given.path.startswith(self.closed):
                continue
            if self._is_in_changed_archive(given.path):
                continue
            if given.path in self.made:
                producer, output = self.made[given.path]
                if given.sha256 != output.sha256 and not self.manifest_lists_same_unit_files(record, given):
                    self.note_problem(
                        record.file,
                        f"{record.file} breaks the chain: it read {given.path} with sha256 {given.sha256}, "
                        f"{producer.file} wrote {output.sha256}.",
                    )
            elif not self.find(given.path).is_file():
                self.note_problem(given.path, f"{given.path} is missing, {record.file} read it.")
            elif self.hash(given.path) != given.sha256:
                self.note_problem(
                    record.file,
                    f"{record.file} breaks the chain: it read {given.path} with sha256 {given.sha256}, "
                    f"the file has {self.hash(given.path)}.",
                )

    def check_snapshot(self, record: Record) -> None:
        """Check that the snapshot of a job has its recorded hash."""
        if record.frozen is not None:
            self.check_file(record.frozen.path, record.frozen.sha256, record)

    def check_file(self, path: str, sha256: str, record: Record) -> None:
        if path.startswith(self.closed):
            return
        if not self.find(path).is_file():
            self.note_problem(path, f"{path} is missing, {record.file} names it.")
        elif self.hash(path) != sha256:
            self.note_problem(
                path, f"{path} was changed: its sha256 is {self.hash(path)}, {record.file} says {sha256}."
            )

    def manifest_lists_same_unit_files(self, record: Record, manifest: FileEntry) -> bool:
        """Return whether a changed manifest still lists the files of this job's unit.

        A file added to one unit of a source changes the manifest, and only that unit is read again.
        """
        try:
            content = parse_json((self.run_directory / manifest.path).read_bytes())
            listed = content["units"][str(record.instance["unit"])]["files"]
            return {file["sha256"] for file in listed} == {i.sha256 for i in record.inputs if i.name == "files"}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False


def _run_verification(run_directory: Path, trusted: TrustAnchors) -> tuple[list[str], _RunVerification]:
    """Problems, and what was looked at."""
    if not run_directory.is_dir():
        raise InputError(f"{run_directory} does not exist: give the folder of a run's results")
    if closed := find_unreadable_evidence(run_directory):
        raise InputError(f"{run_directory}: {closed} {UNREADABLE}")
    done = _RunVerification(run_directory, trusted)
    recorded = {path: record.counts for path, (record, _) in map_producers(done.records).items()}
    counts = [
        problem
        for path in done.files
        if layout.STATISTICS.parse(path) and path not in done.problems
        for problem in _check_statistics(run_directory, path, recorded.get(path, {}))
    ]
    problems = [*(done.problems[path] for path in sorted(done.problems)), *counts]
    return [escape_to_one_line(problem) for problem in problems], done


def _format_signature(signed: LogSignature | None) -> str:
    """Who vouches for the run, and how far that goes."""
    if signed is None:
        return "unsigned: whoever could write these files could rewrite the run; compare the crate's published sha256"
    if signed.key_given:
        return f"signed by {signed.owner} with the key given (sha256 {signed.key_sha256})"
    return (
        f"signed by {signed.owner}, as the run itself says: compare the key's sha256 {signed.key_sha256} with the one "
        "that they have published, or give their key with --key"
    )


def _format_run_names(run_directory: Path, names: list[str]) -> list[str]:
    """Say which run this is, where the folder's name is another one or there have been several."""
    folder = run_directory.absolute().name
    if not names or names == [folder]:
        return []
    earlier = f", and before that {', '.join(names[:-1])}" if names[1:] else ""
    return [
        escape_to_one_line(f"{run_directory}: this is the run {names[-1]}{earlier}, as its log of attestations says.")
    ]


def _format_trust_gap(done: _RunVerification, trusted: TrustAnchors) -> list[str]:
    """One line on what the reader's pins do not cover, where they have given some."""
    if trusted.log or trusted.log_checkpoint or done.evidence is None or not (trusted.crate_sha256 or trusted.key):
        return []
    lines, more = len(done.evidence.lines), "Give --log or --log-checkpoint, from the owner and not from the run."
    if not trusted.crate_sha256:
        return [f"Not covered by --key: whether lines were removed from the end of {layout.ATTESTATION_LOG}. {more}"]
    state = done.crate.checkpoint if done.crate else None
    after = state.lines if state else 0
    alone = done.evidence.find_uncovered_evidence(after, {layout.CRATE, *(done.crate.sha256_of if done.crate else ())})
    example = f", such as {alone[0]}" if alone else ""
    return [
        f"Not covered by --crate-sha256: {layout.ATTESTATION_LOG} after line {after} (now to line {lines}), lines that "
        f"were removed there, and {pluralize(len(alone), 'file')} that it alone attests{example}. {more}"
    ]


class VerificationResult(NamedTuple):
    """The result of a verification: problems, statements about the run, and what the given hashes and keys omit."""

    problems: list[str]
    statements: list[str]
    uncovered: list[str]


def verify_run(run_directory: Path, trusted: TrustAnchors = NO_TRUST_ANCHORS) -> VerificationResult:
    """Return the problems of a run, and who vouches for what was checked, in sentences.

    Checks that the crate is the one of that sha256 (or of its record, if none is given), that its files are there
    unchanged and no others, that records agree with files, with their command lines and with each other, that no
    document got lost in the counts, and that attempts, external meters, readings and logs agree with the attestation
    log, whose chain, signatures, timestamps and published checkpoints are valid.

    Raises:
        InputError: the folder does not exist, or what was given to trust cannot be read.
    """
    problems, done = _run_verification(run_directory, trusted)
    statements = _format_run_names(run_directory, done.run_names)
    looked_at = f"{len(done.files)} files and {len(done.records)} records"
    uncovered = [escape_to_one_line(f"{run_directory}: {line}") for line in _format_trust_gap(done, trusted)]
    if problems:
        statements.append(f"{run_directory}: {pluralize(len(problems), 'problem')} in {looked_at}.")
        return VerificationResult(problems, statements, uncovered)
    statements.append(f"{run_directory}: {looked_at} are as the crate and the records say.")
    statements.append(f"{run_directory}: {_format_signature(done.signed)}.")
    if done.timestamps:
        checked = "with the given certificate" if trusted.timestamp_certificates else "without a given certificate"
        seen = f"{max(done.timestamps):%Y-%m-%d %H:%M:%S} UTC"
        statements.append(f"{run_directory}: timestamped by an authority {checked}, last at {seen}.")
    return VerificationResult(problems, statements, uncovered)
