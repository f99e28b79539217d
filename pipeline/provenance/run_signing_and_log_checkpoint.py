"""Signing of a run: key setup at the begin of an invocation; signatures, attestation and checkpoint at its end.

Models get a signature in the format of OpenSSF's model-signing 1.0, which its own command makes and verifies. The log
checkpoint, the hash of the log's last line, covers all that was attested; an authority's timestamp (RFC 3161) says that
it was there then, and a line in a log outside the results, to which nothing but new checkpoints is added, that it was
seen.

All of it happens after Snakemake's last job, while the interpreter shuts down: then no thread can start, and the exit
code is settled. So models are signed in a process of their own, and incomplete signing ends by `exit_with_failure`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

from pipeline import layout
from pipeline.core import atomic_files, output_lease, signing_keys
from pipeline.core.attestation_log import (
    ATTEMPT_BEGAN,
    INVOCATION_ENDED,
    SIGNING_KEY_VARIABLE,
    LogLine,
    read_log,
    remove_partial_line,
)
from pipeline.core.errors import InputError
from pipeline.provenance import evidence_attestation
from pipeline.provenance.evidence_attestation import record_changed_evidence
from pipeline.provenance.inventory import SNAKEMAKE_MARK
from pipeline.provenance.settings import Provenance

PrintLine = Callable[[str], None]


class PublishedCheckpoint(NamedTuple):
    """A published checkpoint of the attestation log of a run.

    Attributes:
        run: the run's name.
        lines: how many lines the log had.
        sha256: the hash of the last one.
        first: the hash of the first one, which identifies the log; None if an earlier version wrote it.
    """

    run: str
    lines: int
    sha256: str
    first: str | None = None


def current_log_checkpoint(run_directory: Path) -> PublishedCheckpoint | None:
    """Return the current checkpoint of a run's log; None for an empty log.

    Raises:
        InputError: the log was truncated or changed.
    """
    hashes = [line.sha256 for line in read_log(run_directory)]
    return PublishedCheckpoint(run_directory.name, len(hashes), hashes[-1], hashes[0]) if hashes else None


def find_logged_run_names(lines: Iterable[LogLine]) -> list[str]:
    """Return the run names in the attempts of a log, the newest last; several if the run was renamed."""
    attempts = (line.statement.predicate.attempt or {} for line in lines if line.statement.kind == ATTEMPT_BEGAN)
    starts = (str(attempt.get("snakemake") or "") for attempt in attempts)
    return [*dict.fromkeys(start.rpartition(".")[2] for start in starts if start)]


def select_checkpoints_of_log(
    published: Iterable[PublishedCheckpoint], names: Iterable[str], first: str
) -> list[PublishedCheckpoint]:
    """Return the checkpoints of a log, and those of any log with one of its run names.

    The name of the folder does not matter, because a copy may be anywhere. A rewritten log has another first line but
    the same run name.
    """
    own = set(names)
    return [checkpoint for checkpoint in published if checkpoint.first == first or checkpoint.run in own]


def read_published_checkpoints(path: Path) -> list[PublishedCheckpoint]:
    """Return all checkpoints of a file, in their order.

    Raises:
        InputError: it cannot be read, or a line of it is no checkpoint.
    """
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            PublishedCheckpoint(str(entry["run"]), int(entry["lines"]), str(entry["head"]), entry.get("first"))
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} is no log of checkpoints, as provenance.log writes it") from None


def append_to_checkpoint_log(path: Path, checkpoint: PublishedCheckpoint) -> None:
    """Append a checkpoint to a file, which is created if needed; a known checkpoint is not added again.

    Raises:
        InputError: the file is no log of checkpoints: nothing is written to it.
        OSError: it cannot be written.
    """
    if path.exists() and checkpoint.sha256 in {known.sha256 for known in read_published_checkpoints(path)}:
        return
    entry = {"run": checkpoint.run, "lines": checkpoint.lines, "head": checkpoint.sha256, "first": checkpoint.first}
    line = json.dumps({**entry, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with path.open("a+b") as log:
        log.seek(max(log.seek(0, 2) - 1, 0))
        is_whole = log.read(1) in (b"", b"\n")  # an editor may have left the last line without its end
        log.write(b"" if is_whole else b"\n")
        log.write(f"{line}\n".encode())


def print_to_stderr(sentence: str) -> None:
    """Print to standard error, for when Snakemake's log is closed."""
    print(sentence, file=sys.stderr, flush=True)


def begin_signing(run_directory: Path, settings: Provenance, say: PrintLine) -> None:
    """Set the signing key for the jobs of this invocation, write its owner, and record changed evidence.

    Raises:
        InputError: the key cannot be used, the run is signed with another one, or its log was truncated or changed.
    """
    remove_partial_line(run_directory)
    _set_signing_key(run_directory, settings)
    record_changed_evidence(run_directory, say)


def _set_signing_key(run_directory: Path, settings: Provenance) -> None:
    if settings.key is None:
        if (run_directory / layout.PUBLIC_KEY).is_file():
            raise InputError(f"{run_directory} is signed: give provenance.key, so that what is added is signed as well")
        os.environ.pop(SIGNING_KEY_VARIABLE, None)  # of the user's shell; nobody could verify what it signs
        return
    path = Path(settings.key).expanduser().absolute()
    public = signing_keys.load_private_key(path).public_key()
    text, own = signing_keys.public_key_pem(public), run_directory / layout.PUBLIC_KEY
    if own.is_file() and own.read_bytes() != text:
        raise InputError(f"provenance.key: {run_directory} is signed with another key: use that one or a new folder")
    if any(not line.signatures for line in read_log(run_directory)) and not own.is_file():
        raise InputError(
            f"provenance.key: {run_directory} was begun unsigned, and a signature would vouch for what nobody signed: "
            "take another run.name"
        )
    os.environ[SIGNING_KEY_VARIABLE] = str(path)
    atomic_files.write_atomically(own, text)  # half a key would be another one for the next start
    signer = {
        "owner": settings.owner,
        "algorithm": signing_keys.key_algorithm(public),
        "key_sha256": signing_keys.key_sha256(public),
    }
    content = {**signer, "timestamp": settings.timestamps and settings.timestamps.url}
    atomic_files.write_json(run_directory / layout.SIGNER, content)


def sign_models(run_directory: Path, key: Path) -> None:
    """Sign the final folder of each model without a signature newer than its export, with a P-256 key.

    Raises:
        InputError: a model cannot be signed.
    """
    if signing_keys.key_algorithm(signing_keys.load_private_key(key).public_key()) != "p256":
        return  # the format knows no Ed25519 keys
    for record in layout.RECORD.glob(run_directory, job="pretrain.export.*"):
        model = record.name.split(".")[2]
        folder = layout.FINAL_MODEL.path(run_directory, model=model)
        signature = layout.MODEL_SIGNATURE.path(run_directory, model=model)
        if folder.is_dir() and not (signature.is_file() and signature.stat().st_mtime >= record.stat().st_mtime):
            signature.parent.mkdir(exist_ok=True)
            partial = output_lease.temporary_output_path(signature)
            words = [sys.executable, "-m", "model_signing", "sign", "key", "--private_key", str(key)]
            # The signature lists what it leaves out: the model holds with Snakemake's mark, and in a copy without it.
            words += ["--signature", str(partial), "--ignore-paths", str(folder / SNAKEMAKE_MARK), str(folder)]
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                partial.unlink(missing_ok=True)
                cause = (done.stderr.splitlines() or [f"model_signing ended with {done.returncode}"])[-1]
                raise InputError(f"{folder} is not signed: {cause}")
            partial.replace(signature)


def publish_log_checkpoint(run_directory: Path, settings: Provenance, say: PrintLine) -> None:
    """Timestamp the checkpoint, append it to the public log, unless that was done, and print it.

    An authority that does not answer is no failure: the next start asks again.

    Raises:
        InputError: one of the logs is none.
        OSError: the log outside cannot be written.
    """
    published = current_log_checkpoint(run_directory)
    if published is None:
        return
    timestamp = layout.TIMESTAMP.path(run_directory, sha256=published.sha256)
    if settings.timestamps and not timestamp.is_file():
        from pipeline.provenance import trusted_timestamps  # few starts ask

        try:
            answer = trusted_timestamps.request_timestamp(published.sha256, settings.timestamps)
            atomic_files.write_atomically(timestamp, answer)
        except InputError as error:
            say(str(error))
    if settings.log:
        append_to_checkpoint_log(Path(settings.log).expanduser(), published)
    say(f"log checkpoint: {published.sha256} (line {published.lines} of {run_directory / layout.ATTESTATION_LOG})")


def finish_signing(run_directory: Path, settings: Provenance, say: PrintLine) -> bool:
    """Sign the models, attest the evidence and publish the checkpoint.

    A model that cannot be signed takes nothing from the rest.

    Returns:
        Whether all of it was done; what was not is said.
    """

    def sign_models_if_keyed() -> None:
        if os.environ.get(SIGNING_KEY_VARIABLE):
            sign_models(run_directory, Path(os.environ[SIGNING_KEY_VARIABLE]))

    def attest_and_publish() -> None:
        evidence_attestation.attest_evidence(run_directory, INVOCATION_ENDED)
        publish_log_checkpoint(run_directory, settings, say)

    is_done = True
    for part in (sign_models_if_keyed, attest_and_publish):
        try:
            part()
        # Python prints what leaves a function of atexit, and ends with the exit code that it would have had anyway.
        except (Exception, KeyboardInterrupt) as error:
            is_done = False
            expected = isinstance(error, (InputError, OSError))
            cause = str(error) if expected else f"{type(error).__name__} {error}".rstrip()
            say(f"the evidence of this start is not complete: {cause}; start again to complete it")
    return is_done


def exit_with_failure() -> NoReturn:
    """Exit with code 1 while the interpreter shuts down."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
