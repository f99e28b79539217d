"""Evidence that was changed between two starts: the next start notes it in the log, and vouches for none of it.

Whoever has no key could otherwise change a file and wait until the owner's next start signs it. The log alone decides
which files no job can have written since they were attested: no clock is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline import layout
from pipeline.core.attestation_log import SLSA, Line, append, lines, resource
from pipeline.core.attestations import BEGAN, CHANGED, ENDED, START_ENDED
from pipeline.provenance.evidence import Attested, attested, difference, files, sha256_of_first

OF_ATTEMPTS = (f"{layout.ATTEMPTS}/", f"{layout.READINGS}/")
OF_STEPS = tuple(
    f"{folder}/"
    for folder in (layout.LOGS, layout.BATCHES, layout.FROZEN, layout.ENVIRONMENTS, layout.MODEL_SIGNATURES)
)
OF_SLURM = f"{layout.SLURM_LOGS}/"


def _attempt(line: Line) -> str:
    """Return the name of the attempt that a line of a job is about."""
    names = (entry.name for entry in (*line.statement.subject, *line.statement.left))
    path = next((name for name in names if name.startswith(f"{layout.ATTEMPTS}/")), "")
    return path.removeprefix(f"{layout.ATTEMPTS}/").removesuffix(".json")


def _step(name: str) -> str:
    """Return the step with which the name of an attempt, a log or a list of batches begins."""
    return ".".join(name.split(".")[:2])


def _closed(found: list[Line]) -> Callable[[str, Attested], bool]:
    """Return a function that says whether a file is closed: no job can have written it since it was attested.

    The files of an attempt are closed when it has ended, the reading of Snakemake's own process when its start has, and
    logs and the like when nothing came after the end of the last start. An attempt without an end may still write: it
    goes on in Slurm, or was killed. Accounting is not closed, as meters are asked again for what they did not know.
    """
    ended = {_attempt(line) for line in found if line.statement.kind in (ENDED, SLSA)}
    endless = {_attempt(line) for line in found if line.statement.kind == BEGAN} - ended
    ends = {line.number for line in found if line.statement.kind == START_ENDED}

    def closed(path: str, known: Attested) -> bool:
        name = path.rpartition("/")[2]
        if path.startswith(OF_ATTEMPTS):
            attempt = name.partition("@")[0].removesuffix(".json")
            return attempt in ended or (attempt.startswith("snakemake.") and known.line <= max(ends, default=0))
        if not path.startswith(OF_STEPS) or len(found) not in ends:
            return False
        return not endless if path.startswith(OF_SLURM) else _step(name) not in {*map(_step, endless)}

    return closed


def attest_changes(run_directory: Path, say: Callable[[str], None]) -> None:
    """Note in the log which closed files are not what it attests, and say it.

    Raises:
        InputError: the log was cut or changed, or the key cannot be used.
    """
    found = [*lines(run_directory)]
    known = attested(line for line in found if line.statement.kind != BEGAN)
    closed, subject = _closed(found), []
    for path in files(run_directory):
        if path not in known or not closed(path, known[path]):
            continue
        if sentence := difference(run_directory, path, known[path], may_grow=False):
            say(f"{sentence} Put back what it was: it is not attested again")
            subject.append(resource(path, sha256_of_first(run_directory / path, None)))
    if subject:
        append(run_directory, CHANGED, subject, {"log": layout.ATTESTATION_LOG})
