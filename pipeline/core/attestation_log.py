"""The log of a run's attestations, JSON Lines of DSSE envelopes with in-toto statements, chained, and what is attested.

The format is in-toto's bundle (attestation framework 1.0) with DSSE envelopes 1.0. Every statement names the SHA-256 of
the line before it, so that a line that was changed, left out or put in between is found, and the last signature
covers all of them. Lines are appended under a lock, by all jobs of a run; none is ever written again. What a job had
written of its line when it was killed is no line: the next one takes its place.
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

from pipeline.core.command_lines import short_command
from pipeline.core.disk_space import disk_full, is_full
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.json_values import parse_json
from pipeline.core.records import Attempt, Record
from pipeline.layout import ATTESTATION_LOG

if TYPE_CHECKING:
    from pipeline.core.signing_keys import PrivateKey


KEY = "PIPELINE_SIGNING_KEY"
"""The variable with the path of the private key, for the jobs of a start; without it nothing is signed."""

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SLSA = "https://slsa.dev/provenance/v1"
NOTHING_BEFORE = "0" * 64
BEFORE = "attestation before"
BLOCK_BYTES = 1 << 16
BEGAN = "urn:polder:attempt-began:1"
ENDED = "urn:polder:attempt-ended:1"
EVIDENCE = "urn:polder:evidence:1"
CHANGED = "urn:polder:evidence-changed:1"
START_ENDED = "urn:polder:start-ended:1"
REMOVED = "urn:polder:evidence-removed:1"
BUILD_TYPE = "urn:polder:step:1"
BUILDER = "urn:polder"
ATTEMPT_FACTS = ("step", "instance", "command", "snakemake", "host", "slurm", "started")
"""What is known of an attempt when it begins, and never changes."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Annotations(_Read):
    """What is said of a file besides its hash."""

    bytes: int | None = None


class Resource(_Read):
    """A file, by its path in the run, and its hash; of one that grows, how many bytes were hashed."""

    name: str
    digest: dict[str, str]
    annotations: Annotations = Annotations()

    @property
    def sha256(self) -> str:
        """The hash; nothing where the digest is another one."""
        return self.digest.get("sha256", "")


class _Definition(_Read):
    externalParameters: dict[str, Any] = {}
    resolvedDependencies: list[Resource]  # the names are SLSA's


class _Details(_Read):
    byproducts: list[Resource]


class _Predicate(_Read):
    before: str | None = None
    attempt: dict[str, Any] | None = None
    buildDefinition: _Definition | None = None
    runDetails: _Details | None = None


class InTotoStatement(_Read):
    """A statement of in-toto, as far as it is read again."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Resource] = Field(min_length=1)
    kind: str = Field(alias="predicateType")
    predicate: _Predicate

    @property
    def read(self) -> list[Resource]:
        """What a job read."""
        return self.predicate.buildDefinition.resolvedDependencies if self.predicate.buildDefinition else []

    @property
    def left(self) -> list[Resource]:
        """What a job left besides its outputs."""
        made = self.predicate.runDetails.byproducts if self.predicate.runDetails else []
        return [entry for entry in made if entry.name != BEFORE]

    @property
    def before(self) -> str | None:
        """The hash of the line before."""
        made = self.predicate.runDetails.byproducts if self.predicate.runDetails else []
        return next((entry.sha256 for entry in made if entry.name == BEFORE), self.predicate.before)


class _Strict(BaseModel):
    """A part of an envelope: no signature and no hash of a line vouches for a field that nobody reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Signature(_Strict):
    keyid: str
    sig: Base64Bytes


class _Envelope(_Strict):
    payloadType: Literal["application/vnd.in-toto+json"]
    payload: Base64Bytes
    signatures: list[_Signature]


class Line(NamedTuple):
    """One line of the log: its number from 1, its hash, its statement, what was signed and the signatures by key."""

    number: int
    sha256: str
    statement: InTotoStatement
    signed: bytes
    signatures: dict[str, bytes]


def signed_bytes(payload: bytes) -> bytes:
    """Return what a signature is of: DSSE's pre-authentication encoding of a payload."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def resource(name: str, sha256: str, **annotations: Any) -> dict[str, Any]:
    """Return in-toto's description of a file: its name and hash, and what else is said of it."""
    described: dict[str, Any] = {"name": name, "digest": {"sha256": sha256}}
    return {**described, "annotations": annotations} if annotations else described


def _last_line(log: IO[bytes]) -> bytes:
    end = log.seek(0, os.SEEK_END)
    found = b""
    while end and b"\n" not in found.rstrip(b"\n"):
        start = max(0, end - BLOCK_BYTES)
        log.seek(start)
        found, end = log.read(end - start) + found, start
    return found.rstrip(b"\n").rpartition(b"\n")[2]


def _ends(log: IO[bytes], end: int) -> bool:
    log.seek(max(0, end - 1))
    return log.read(1) in (b"", b"\n")


def _without_remainder(log: IO[bytes]) -> tuple[bytes, int]:
    """Return the last line of a log and the size of the file, from which what a killed job had begun is taken away."""
    last, end = _last_line(log), log.seek(0, os.SEEK_END)
    if not _ends(log, end):
        try:
            _Envelope.model_validate_json(last)
        except ValidationError:
            end -= len(last)
            os.ftruncate(log.fileno(), end)
            last = _last_line(log)
    return last, end


def remove_remainder(run_directory: Path) -> None:
    """Remove what a killed job had begun of its line, before the log of a run is read."""
    if (run_directory / ATTESTATION_LOG).is_file():
        with (run_directory / ATTESTATION_LOG).open("a+b") as log:
            fcntl.lockf(log, fcntl.LOCK_EX)
            _without_remainder(log)


def envelope(payload: bytes) -> bytes:
    """Return a payload in its envelope, signed with the key that `KEY` names, if it names one."""
    signatures = []
    if key := signing_key():
        from pipeline.core import signing_keys

        signature = base64.b64encode(signing_keys.sign(key, signed_bytes(payload))).decode()
        signatures.append({"keyid": signing_keys.key_sha256(key.public_key()), "sig": signature})
    content = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return _canonical(content)


def _canonical(content: Any) -> bytes:
    """Return the one spelling that a line or a statement of the log has."""
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def signing_key() -> PrivateKey | None:
    """Return the key that `KEY` names; None where nothing shall be signed.

    Raises:
        InputError: the key cannot be used.
    """
    if KEY not in os.environ:
        return None
    from pipeline.core import signing_keys  # it loads OpenSSL, which most starts of a job do without

    return signing_keys.private(Path(os.environ[KEY]))


def append(run_directory: Path, kind: str, subject: list[dict[str, Any]], predicate: dict[str, Any]) -> str:
    """Append a statement to the log of a run and return the hash of its line.

    Raises:
        InputError: the key cannot be used.
        DiskFull: there was no room; the log is as it was.
    """
    path = run_directory / ATTESTATION_LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as log:
        fcntl.lockf(log, fcntl.LOCK_EX)
        last, end = _without_remainder(log)
        head = hashlib.sha256(last).hexdigest() if last else NOTHING_BEFORE
        if kind == SLSA:
            details = predicate["runDetails"]
            made = [*details["byproducts"], resource(BEFORE, head)]
            predicate = {**predicate, "runDetails": {**details, "byproducts": made}}
        else:
            predicate = {**predicate, "before": head}
        statement = {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}
        line = envelope(_canonical(statement))
        try:
            log.write((b"" if _ends(log, end) else b"\n") + line + b"\n")
            log.flush()
        except OSError as error:
            os.ftruncate(log.fileno(), end)
            if is_full(error):
                raise disk_full(error, [path.parent]) from error
            raise
    return hashlib.sha256(line).hexdigest()


def _refuse_other_spelling(text: bytes, found: _Envelope) -> None:
    """Raise ValueError where a line is not spelled as `append` spells it, so that it might say two things."""
    given = parse_json(text)
    encoded = [(found.payload, given["payload"])]
    encoded += [(one.sig, other["sig"]) for one, other in zip(found.signatures, given["signatures"], strict=True)]
    is_canonical = text == _canonical(given) + b"\n" and len(encoded) <= 2  # one signature at most
    is_canonical &= all(base64.b64encode(content).decode() == word for content, word in encoded)
    if not is_canonical or found.payload != _canonical(parse_json(found.payload, allow_nan=True)):
        raise ValueError("another spelling than append's")


def lines(run_directory: Path, *, strict: bool = False) -> Iterator[Line]:
    """Read the log of a run; nothing where there is none.

    Args:
        run_directory: the run's folder.
        strict: whether each line has to be spelled byte by byte as `append` spells it, its end included. Else a last
            line that a job had only begun when it was killed is no line.

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
                found = _Envelope.model_validate_json(text)
                statement = InTotoStatement.model_validate_json(found.payload)
                if strict:
                    _refuse_other_spelling(text, found)
            except ValueError:  # pydantic's errors are of these
                if not strict and not text.endswith(b"\n"):
                    return  # what a job had written when it was killed: the next line takes its place
                raise InputError(
                    f"{ATTESTATION_LOG}, line {number}, is no attestation: it was cut or changed"
                ) from None
            sha256 = hashlib.sha256(text.rstrip(b"\n")).hexdigest()
            signatures = {one.keyid: one.sig for one in found.signatures}
            yield Line(number, sha256, statement, signed_bytes(found.payload), signatures)


class Checkpoint(NamedTuple):
    """A state of the log of a run: how many lines it had, and the sha256 of the last one, which covers all of them."""

    lines: int
    sha256: str


def checkpoint_before(run_directory: Path, step: str) -> Checkpoint | None:
    """Return the state of the log before the attempt of a step that goes on, or its state now; None for an empty log.

    Raises:
        InputError: the log was cut or changed.
    """
    last: Checkpoint | None = None
    began: dict[str, Checkpoint | None] = {}  # the attempts that go on, with the state of the log before each
    for line in lines(run_directory):
        names = [entry.name for entry in (*line.statement.subject, *line.statement.left)]
        if line.statement.kind == BEGAN and (line.statement.predicate.attempt or {}).get("step") == step:
            began[names[0]] = last
        elif line.statement.kind in (ENDED, SLSA):
            for name in names:
                began.pop(name, None)
        last = Checkpoint(line.number, line.sha256)
    return [*began.values()][-1] if began else last


def _files(run_directory: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
    folder = run_directory.absolute()
    found = [path.absolute() for path in paths if path.is_file()]
    return [resource(path.relative_to(folder).as_posix(), sha256_of(path)) for path in found]


def began(run_directory: Path, path: Path, attempt: Attempt) -> None:
    """Attest that an attempt began: from now on its file cannot be lost without a trace."""
    append(run_directory, BEGAN, _files(run_directory, [path]), {"attempt": attempt_facts(attempt.to_dict())})


def attempt_facts(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an attempt's file, or the line of its beginning, says that never changes; of its command the digest.

    Raises:
        KeyError: one of the facts is missing.
    """
    facts = {name: attempt[name] for name in ATTEMPT_FACTS}
    if isinstance(facts["command"], list):
        words = json.dumps(short_command(facts["command"]), ensure_ascii=False)
        facts["command"] = f"sha256:{hashlib.sha256(words.encode()).hexdigest()}"
    return facts


def ended(run_directory: Path, attempt: Path, status: str, readings: Iterable[Path]) -> None:
    """Attest how an attempt without a result ended, and what its meters had read."""
    append(run_directory, ENDED, _files(run_directory, [attempt, *readings]), {"status": status})


def finished(run_directory: Path, attempt: Path, readings: Iterable[Path], path: Path, record: Record) -> None:
    """Attest what a job read and wrote, with which settings, code and environment: SLSA's provenance 1.0 of a step."""
    own = _files(run_directory, [path])
    read = [resource(entry.path, entry.sha256) for entry in (*record.inputs, record.frozen) if entry]
    if commit := (record.git or {}).get("commit"):
        read.append({"name": "code", "digest": {"gitCommit": commit}})
    byproducts = _files(run_directory, [attempt, *readings])
    if record.environment_file:
        byproducts.append(resource(record.environment_file.path, record.environment_file.sha256))
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
    append(run_directory, SLSA, [*own, *(resource(entry.path, entry.sha256) for entry in record.outputs)], predicate)
