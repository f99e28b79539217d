"""What is attested: that an attempt began, how it ended, and what evidence there is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.attestation_log import SLSA, append, lines, resource
from pipeline.core.command_lines import short_command
from pipeline.core.hashing import sha256_of
from pipeline.core.records import Attempt, Record

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
