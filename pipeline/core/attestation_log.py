"""The attestation log of a run: JSON Lines of DSSE envelopes with in-toto statements, in a hash chain.

The format is in-toto's bundle (attestation framework 1.0) with DSSE envelopes 1.0. Every statement names the SHA-256 of
the previous line. So changed, removed and inserted lines are found, and the last signature covers all lines. All jobs
of a run append lines under a lock; no line is ever rewritten. The next line overwrites a partial line of a killed job.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import disk_full_error, is_disk_full
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import replace_settings_by_digest
from pipeline.core.job_records import Attempt, Record
from pipeline.core.json_validation import parse_json
from pipeline.layout import ATTESTATION_LOG

if TYPE_CHECKING:
    from pipeline.core.signing_keys import PrivateKey


SIGNING_KEY_VARIABLE = "PIPELINE_SIGNING_KEY"
"""The environment variable with the path of the private key; without it nothing is signed."""

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SLSA_PROVENANCE = "https://slsa.dev/provenance/v1"
NO_PREVIOUS_LINE = "0" * 64
PREVIOUS_LINE = "attestation before"
BLOCK_BYTES = 1 << 16
ATTEMPT_BEGAN = "urn:polder:attempt-began:1"
ATTEMPT_ENDED = "urn:polder:attempt-ended:1"
EVIDENCE_ATTESTED = "urn:polder:evidence:1"
EVIDENCE_CHANGED = "urn:polder:evidence-changed:1"
INVOCATION_ENDED = "urn:polder:start-ended:1"
EVIDENCE_REMOVED = "urn:polder:evidence-removed:1"
BUILD_TYPE = "urn:polder:step:1"
BUILDER = "urn:polder"
FIXED_ATTEMPT_FIELDS = ("step", "instance", "command", "snakemake", "host", "slurm", "started")
"""Fields of an attempt that are set when it begins and never change."""


class _LenientModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Annotations(_LenientModel):
    """Size of a file besides its hash."""

    bytes: int | None = None


class Resource(_LenientModel):
    """Path and hash of a file in the run; for a file that grows, also the number of hashed bytes."""

    name: str
    digest: dict[str, str]
    annotations: Annotations = Annotations()

    @property
    def sha256(self) -> str:
        """The SHA-256; empty if the digest uses another algorithm."""
        return self.digest.get("sha256", "")


class _BuildDefinition(_LenientModel):
    externalParameters: dict[str, Any] = {}
    resolvedDependencies: list[Resource]  # the names are SLSA's


class _RunDetails(_LenientModel):
    byproducts: list[Resource]


class _Predicate(_LenientModel):
    before: str | None = None
    attempt: dict[str, Any] | None = None
    buildDefinition: _BuildDefinition | None = None
    runDetails: _RunDetails | None = None


class InTotoStatement(_LenientModel):
    """The fields of an in-toto statement that Polder reads."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Resource] = Field(min_length=1)
    kind: str = Field(alias="predicateType")
    predicate: _Predicate

    @property
    def dependencies(self) -> list[Resource]:
        """The files that a job read."""
        return self.predicate.buildDefinition.resolvedDependencies if self.predicate.buildDefinition else []

    @property
    def byproducts(self) -> list[Resource]:
        """The files that a job wrote besides its outputs."""
        made = self.predicate.runDetails.byproducts if self.predicate.runDetails else []
        return [entry for entry in made if entry.name != PREVIOUS_LINE]

    @property
    def previous_line_sha256(self) -> str | None:
        made = self.predicate.runDetails.byproducts if self.predicate.runDetails else []
        return next((entry.sha256 for entry in made if entry.name == PREVIOUS_LINE), self.predicate.before)


class _StrictModel(BaseModel):
    """A part of an envelope; unknown fields are refused, because nothing verifies them."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Signature(_StrictModel):
    keyid: str
    sig: Base64Bytes


class _Envelope(_StrictModel):
    payloadType: Literal["application/vnd.in-toto+json"]
    payload: Base64Bytes
    signatures: list[_Signature]


class LogLine(NamedTuple):
    """One line of the log: its number from 1, its hash, its statement, what was signed and the signatures by key."""

    number: int
    sha256: str
    statement: InTotoStatement
    signed: bytes
    signatures: dict[str, bytes]


def pre_authentication_encoding(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding of a payload: the bytes that a signature covers."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def resource_descriptor(name: str, sha256: str, **annotations: Any) -> dict[str, Any]:
    """Return in-toto's resource descriptor of a file: name, SHA-256 and annotations."""
    described: dict[str, Any] = {"name": name, "digest": {"sha256": sha256}}
    return {**described, "annotations": annotations} if annotations else described


def _read_last_line(log: IO[bytes]) -> bytes:
    end = log.seek(0, os.SEEK_END)
    tail = b""
    while end and b"\n" not in tail.rstrip(b"\n"):
        start = max(0, end - BLOCK_BYTES)
        log.seek(start)
        tail, end = log.read(end - start) + tail, start
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _ends_with_newline(log: IO[bytes], end: int) -> bool:
    log.seek(max(0, end - 1))
    return log.read(1) in (b"", b"\n")


def _truncate_partial_line(log: IO[bytes]) -> tuple[bytes, int]:
    """Remove a partial line of a killed job; return the last complete line and the size of the file."""
    last, end = _read_last_line(log), log.seek(0, os.SEEK_END)
    if not _ends_with_newline(log, end):
        try:
            _Envelope.model_validate_json(last)
        except ValidationError:
            end -= len(last)
            os.ftruncate(log.fileno(), end)
            last = _read_last_line(log)
    return last, end


def remove_partial_line(run_directory: Path) -> None:
    """Remove the partial line of a killed job from the log of a run."""
    if (run_directory / ATTESTATION_LOG).is_file():
        with (run_directory / ATTESTATION_LOG).open("a+b") as log:
            fcntl.lockf(log, fcntl.LOCK_EX)
            _truncate_partial_line(log)


def build_envelope(payload: bytes) -> bytes:
    """Return a payload in its DSSE envelope, signed if `SIGNING_KEY_VARIABLE` names a key."""
    signatures = []
    if key := load_signing_key():
        from pipeline.core import signing_keys

        signature = base64.b64encode(signing_keys.sign_message(key, pre_authentication_encoding(payload))).decode()
        signatures.append({"keyid": signing_keys.key_sha256(key.public_key()), "sig": signature})
    content = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return _canonical_json(content)


def _canonical_json(content: Any) -> bytes:
    """Return the canonical JSON of a line or statement."""
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def load_signing_key() -> PrivateKey | None:
    """Return the key that `SIGNING_KEY_VARIABLE` names; None if nothing is to be signed.

    Raises:
        InputError: the key cannot be used.
    """
    if SIGNING_KEY_VARIABLE not in os.environ:
        return None
    from pipeline.core import signing_keys  # loads OpenSSL, which most jobs do not need

    return signing_keys.load_private_key(Path(os.environ[SIGNING_KEY_VARIABLE]))


def append_statement(run_directory: Path, kind: str, subject: list[dict[str, Any]], predicate: dict[str, Any]) -> str:
    """Append a statement to the log of a run and return the hash of its line.

    Raises:
        InputError: the key cannot be used.
        DiskFull: the disk is full; the log is unchanged.
    """
    path = run_directory / ATTESTATION_LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as log:
        fcntl.lockf(log, fcntl.LOCK_EX)
        last, end = _truncate_partial_line(log)
        previous = hashlib.sha256(last).hexdigest() if last else NO_PREVIOUS_LINE
        if kind == SLSA_PROVENANCE:
            details = predicate["runDetails"]
            made = [*details["byproducts"], resource_descriptor(PREVIOUS_LINE, previous)]
            predicate = {**predicate, "runDetails": {**details, "byproducts": made}}
        else:
            predicate = {**predicate, "before": previous}
        statement = {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}
        line = build_envelope(_canonical_json(statement))
        try:
            log.write((b"" if _ends_with_newline(log, end) else b"\n") + line + b"\n")
            log.flush()
        except OSError as error:
            os.ftruncate(log.fileno(), end)
            if is_disk_full(error):
                raise disk_full_error(error, [path.parent]) from error
            raise
    return hashlib.sha256(line).hexdigest()


def _check_canonical(text: bytes, envelope: _Envelope) -> None:
    """Raise ValueError unless a line has the canonical bytes of `append_statement`."""
    given = parse_json(text)
    encoded = [(envelope.payload, given["payload"])]
    encoded += [(one.sig, other["sig"]) for one, other in zip(envelope.signatures, given["signatures"], strict=True)]
    is_canonical = text == _canonical_json(given) + b"\n" and len(encoded) <= 2  # one signature at most
    is_canonical &= all(base64.b64encode(content).decode() == word for content, word in encoded)
    if not is_canonical or envelope.payload != _canonical_json(parse_json(envelope.payload, allow_nan=True)):
        raise ValueError("another spelling than append's")


def read_log(run_directory: Path, *, strict: bool = False) -> Iterator[LogLine]:
    """Yield the lines of the log of a run; none if there is no log.

    Args:
        run_directory: the run's folder.
        strict: require the canonical bytes of `append_statement`, line end included. Otherwise a partial last line of
            a killed job is skipped.

    Raises:
        InputError: a line is no envelope with a statement.
    """
    try:
        log = (run_directory / ATTESTATION_LOG).open("rb")
    except (FileNotFoundError, IsADirectoryError):
        return
    with log:
        for number, text in enumerate(log, start=1):
            try:
                envelope = _Envelope.model_validate_json(text)
                statement = InTotoStatement.model_validate_json(envelope.payload)
                if strict:
                    _check_canonical(text, envelope)
            except ValueError:  # pydantic's errors are of these
                if not strict and not text.endswith(b"\n"):
                    return  # a partial line of a killed job
                raise InputError(
                    f"{ATTESTATION_LOG}, line {number}, is no attestation: it was truncated or changed"
                ) from None
            sha256 = hashlib.sha256(text.rstrip(b"\n")).hexdigest()
            signatures = {one.keyid: one.sig for one in envelope.signatures}
            yield LogLine(number, sha256, statement, pre_authentication_encoding(envelope.payload), signatures)


class LogCheckpoint(NamedTuple):
    """A state of the log: its number of lines and the SHA-256 of the last one, which covers all lines."""

    lines: int
    sha256: str


def find_checkpoint_before_attempt(run_directory: Path, step: str) -> LogCheckpoint | None:
    """Return the state of the log before the running attempt of a step, else its current state; None for an empty log.

    Raises:
        InputError: the log was truncated or changed.
    """
    last: LogCheckpoint | None = None
    began: dict[str, LogCheckpoint | None] = {}  # running attempts, with the state of the log before each
    for line in read_log(run_directory):
        names = [entry.name for entry in (*line.statement.subject, *line.statement.byproducts)]
        if line.statement.kind == ATTEMPT_BEGAN and (line.statement.predicate.attempt or {}).get("step") == step:
            began[names[0]] = last
        elif line.statement.kind in (ATTEMPT_ENDED, SLSA_PROVENANCE):
            for name in names:
                began.pop(name, None)
        last = LogCheckpoint(line.number, line.sha256)
    return [*began.values()][-1] if began else last


def _describe_files(run_directory: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
    folder = run_directory.absolute()
    files = [path.absolute() for path in paths if path.is_file()]
    return [resource_descriptor(path.relative_to(folder).as_posix(), hash_file(path)) for path in files]


def attest_attempt_begin(run_directory: Path, path: Path, attempt: Attempt) -> None:
    """Attest that an attempt began, so that removing its file is noticed."""
    append_statement(
        run_directory,
        ATTEMPT_BEGAN,
        _describe_files(run_directory, [path]),
        {"attempt": fixed_attempt_fields(attempt.to_dict())},
    )


def fixed_attempt_fields(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixed fields of an attempt's file or of its first line in the log, with the digest of its command.

    Raises:
        KeyError: one of the facts is missing.
    """
    facts = {name: attempt[name] for name in FIXED_ATTEMPT_FIELDS}
    if isinstance(facts["command"], list):
        words = json.dumps(replace_settings_by_digest(facts["command"]), ensure_ascii=False)
        facts["command"] = f"sha256:{hashlib.sha256(words.encode()).hexdigest()}"
    return facts


def attest_attempt_end(run_directory: Path, attempt: Path, status: str, readings: Iterable[Path]) -> None:
    """Attest the end of an attempt without a result, and its meter readings."""
    append_statement(
        run_directory, ATTEMPT_ENDED, _describe_files(run_directory, [attempt, *readings]), {"status": status}
    )


def attest_finished_job(
    run_directory: Path, attempt: Path, readings: Iterable[Path], path: Path, record: Record
) -> None:
    """Attest inputs, outputs, settings, code and environment of a finished job as SLSA provenance 1.0."""
    own = _describe_files(run_directory, [path])
    read = [resource_descriptor(entry.path, entry.sha256) for entry in (*record.inputs, record.frozen) if entry]
    if commit := (record.git or {}).get("commit"):
        read.append({"name": "code", "digest": {"gitCommit": commit}})
    byproducts = _describe_files(run_directory, [attempt, *readings])
    if record.environment_file:
        byproducts.append(resource_descriptor(record.environment_file.path, record.environment_file.sha256))
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {name: getattr(record, name) for name in ("step", "instance", "settings")},
            "internalParameters": {name: getattr(record, name) for name in ("operation", "launch")},
            "resolvedDependencies": read,
        },
        "runDetails": {
            "builder": {
                "id": BUILDER,
                "version": {"code": record.code_version, "environment": record.environment_version},
            },
            "metadata": {
                "invocationId": attempt.name,
                "startedOn": record.started,
                "finishedOn": record.ended,
            },
            "byproducts": byproducts,
        },
    }
    append_statement(
        run_directory,
        SLSA_PROVENANCE,
        [*own, *(resource_descriptor(entry.path, entry.sha256) for entry in record.outputs)],
        predicate,
    )
