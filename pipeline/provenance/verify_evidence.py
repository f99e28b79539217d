"""Whether the evidence of a run is what the log of attestations says, and whether a start is writing more of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from pipeline.core.attestation_log import SLSA, Line
from pipeline.core.attestations import BEGAN, CHANGED, ENDED, attempt_facts
from pipeline.core.lock_owner import Holder
from pipeline.core.strict_json import parse_json
from pipeline.layout import ATTEMPTS, ATTESTATION_LOG, RUN_LOCK, TIMESTAMPS
from pipeline.provenance.evidence import Attested, attested, difference
from pipeline.provenance.inventory import APPENDED, AUTHORITY, FIXED, LOG, Inventory, kind_of

Tell = Callable[[str, str], None]


def find_lock_owner(run_directory: Path, tell: Tell) -> Holder | None:
    """Return who works on a run, where the process that its lock names is seen to live; name any other lock."""
    path = run_directory / RUN_LOCK
    if path.is_symlink() or not path.is_file():
        return None
    try:
        first, _, count = path.read_bytes().partition(b"\n")
        owner = Holder.model_validate_json(first, extra="forbid")
        is_lock = re.fullmatch(rb"[0-9]*\n?", count) is not None
    except (OSError, ValidationError):
        is_lock = False
    if not is_lock:
        tell(RUN_LOCK, f"{RUN_LOCK} names no start: delete it where you know that no start is running.")
        return None
    if (Path(owner.working_directory) / owner.run).resolve() != run_directory.resolve():
        tell(
            RUN_LOCK,
            f"{RUN_LOCK} names a start that works on another folder, {owner.run}: it was copied from there.",
        )
        return None
    verdict = owner.seen()
    if verdict == "lives":
        return owner
    if verdict is None:
        tell(
            RUN_LOCK,
            f"{RUN_LOCK} names {owner}, which cannot be seen from here: verify on that machine, or without a lock.",
        )
    else:
        tell(RUN_LOCK, f"{RUN_LOCK} names {owner}, which does not run: the next start removes it.")
    return None


class _History(NamedTuple):
    """What the lines of a log attest of one file: the line and content each time, and the line of an attempt's end."""

    contents: list[Attested]
    began: Line | None
    end: Attested | None


def _histories(lines: list[Line]) -> dict[str, _History]:
    histories: dict[str, _History] = {}
    for line in (line for line in lines if line.statement.kind != CHANGED):
        for entry in (*line.statement.subject, *line.statement.left):
            known = histories.get(entry.name, _History([], None, None))
            content = Attested(entry.sha256, entry.annotations.bytes, line.number)
            if line.statement.kind == BEGAN:
                known = known._replace(began=line)
            else:
                known.contents.append(content)
            if line.statement.kind in (ENDED, SLSA) and entry.name.startswith(f"{ATTEMPTS}/"):
                known = known._replace(end=known.end or content)
            histories[entry.name] = known
    return histories


def _prefixes(content: bytes, sizes: set[int | None]) -> set[str]:
    """Return the hashes of the beginnings of a file that have one of these sizes, or for None that end with a line."""
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
    """The evidence in a run's folder, compared with the lines of the log."""

    def __init__(self, run_directory: Path, inventory: Inventory, lines: list[Line], tell: Tell) -> None:
        self.run_directory, self.inventory, self.lines, self.tell = run_directory, inventory, lines, tell
        self.newest = attested(lines)
        self.histories = _histories(lines)
        self.heads = {line.sha256 for line in lines}
        self.owner = find_lock_owner(run_directory, tell)

    def check(self) -> None:
        """All evidence that was attested is there as it was, and there is no other."""
        if not self.lines:  # one sentence says so
            return
        present = {path for path, kind in self.inventory.files.items() if kind.voucher in (LOG, AUTHORITY)}
        closed = tuple(self.inventory.closed)
        for path, told in sorted(self.newest.items()):
            kind = kind_of(path)
            if kind and kind.voucher in (LOG, AUTHORITY) and path not in present and not path.startswith(closed):
                self.tell(path, f"{path} is missing: line {told.line} of {ATTESTATION_LOG} attests it.")
        for path in sorted(present):
            if path in self.newest:
                self._check_content(path, self.newest[path])
            elif not self._is_stamp(path):
                self._tell_unattested(path, f"{path} is unknown: no attestation names it.", "is not attested yet")

    def _tell_unattested(self, path: str, otherwise: str, what: str) -> None:
        if self.owner is None:
            self.tell(path, otherwise)
        else:
            self.tell(path, f"{path} {what}: {self.owner} is working on the run. Verify when that start has ended.")

    def _is_stamp(self, path: str) -> bool:
        """Whether a file is named as a timestamp of a line of the log, which its authority vouches for."""
        return path.startswith(f"{TIMESTAMPS}/") and Path(path).stem in self.heads

    def _check_content(self, path: str, told: Attested) -> None:
        history, file = self.histories[path], self.run_directory / path
        if history.began:
            self._check_beginning(path, history.began)
        if not history.contents:
            return
        if sentence := difference(self.run_directory, path, told, may_grow=self.owner is not None):
            self.tell(path, sentence)
        elif told.bytes is not None and (size := file.stat().st_size) > told.bytes:
            self._tell_unattested(path, "", f"has {size} bytes, of which {told.bytes} are attested yet")
        if len({content.sha256 for content in history.contents}) > 1:
            self._check_history(path, history, told)

    def _check_history(self, path: str, history: _History, newest: Attested) -> None:
        """What was attested once was attested anew only as its kind may change."""
        kind = self.inventory.files[path]
        first: Attested | None = None
        if kind.change == APPENDED:
            sizes = {content.bytes for content in history.contents}
            prefixes = _prefixes((self.run_directory / path).read_bytes(), sizes)
            first = next((content for content in history.contents if content.sha256 not in prefixes), None)
        elif path.startswith(f"{ATTEMPTS}/"):
            first = history.end if history.end and history.end.sha256 != newest.sha256 else None
        elif kind.change == FIXED:
            first = next((content for content in history.contents if content.sha256 != newest.sha256), None)
        if first:
            self.tell(
                path,
                f"{path} was changed: line {first.line} of {ATTESTATION_LOG} attests another content, and a file like "
                f"this {APPENDED if kind.change == APPENDED else FIXED}.",
            )

    def _check_beginning(self, path: str, line: Line) -> None:
        """An attempt, also one whose end nobody has seen, is the one that began."""
        try:
            content = parse_json((self.run_directory / path).read_bytes())
            is_same = attempt_facts(content) == attempt_facts(line.statement.predicate.attempt or {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            is_same = False
        if not is_same:
            self.tell(path, f"{path} was changed: it is not the attempt whose beginning line {line.number} attests.")

    def uncovered(self, after: int, listed: set[str]) -> list[str]:
        """Return the evidence for whose content no line up to this one vouches, and no crate that lists these files."""
        return sorted(
            path
            for path, told in self.newest.items()
            if told.line > after and path in self.inventory.files and path not in listed
        )
