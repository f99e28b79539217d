"""Whether the log of attestations is whole, who signed it, and whether records and evidence are what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.attestation import keys
from pipeline.attestation.log import FILE, NOTHING_BEFORE, SLSA, Line, lines
from pipeline.attestation.statements import ATTEMPT_FACTS, BEGAN
from pipeline.ground.errors import InputError
from pipeline.provenance import evidence
from pipeline.provenance.evidence import PUBLIC_KEY, SIGNER, TIMESTAMPS
from pipeline.provenance.heads import heads, of_run, run_names
from pipeline.provenance.records import ATTEMPTS, RECORDS
from pipeline.provenance.timestamps import seen

Tell = Callable[[str, str], None]


class Signed(NamedTuple):
    """Who signed a run: the owner that it names, the key's SHA-256, and whether the reader has given the key."""

    owner: str
    key_sha256: str
    key_given: bool


class Log:
    """The log of a run, read once: its lines as far as they are whole, and what they say of each file."""

    def __init__(self, run_directory: Path, tell: Tell) -> None:
        self.run_directory, self.tell = run_directory, tell
        self.lines: list[Line] = []
        try:
            self.lines.extend(lines(run_directory))
        except InputError as error:
            tell(FILE, f"{error}.")
            self.lines.clear()  # what comes after a line that is none is not known: the log is believed in nothing
        if not self.lines:
            tell(FILE, f"{FILE} is missing or empty: nothing says which attempts there were and what they did.")
        self.attested = evidence.attested(self.lines)

    def check_chain(self) -> None:
        """Every line names the one before it."""
        self.is_whole = True
        expected = NOTHING_BEFORE
        for line in self.lines:
            if line.statement.before != expected:
                self.is_whole = False
                self.tell(
                    FILE,
                    f"{FILE}, line {line.number} ({_told(line)}), does not follow the line before it: one of them was "
                    "changed, left out or put in.",
                )
            expected = line.sha256

    def check_signatures(self, given: Path | None) -> Signed | None:
        """What is signed is signed by that key, and from the first signature on everything is; None if nothing is.

        A key that lies in the run is the run's own word, also where it is given.

        Raises:
            InputError: the key that was given is none.
        """
        own = self.run_directory / PUBLIC_KEY
        signed = [line for line in self.lines if line.signatures]
        if not signed:
            if given:
                self.tell(FILE, f"{FILE} is not signed: whoever could write these files could write the run anew.")
            return None
        if given is None and not own.is_file():
            self.tell(PUBLIC_KEY, f"{PUBLIC_KEY} is missing: give the owner's key with --key.")
            return None
        try:
            key = keys.public(given or own)
        except InputError as error:
            if given:
                raise
            self.tell(PUBLIC_KEY, f"{PUBLIC_KEY} was changed: {error}.")
            return None
        name = keys.key_sha256(key)
        for line in self.lines[signed[0].number - 1 :]:
            if not line.signatures:
                self.tell(FILE, f"{FILE}, line {line.number} ({_told(line)}), is not signed, and one before it is.")
            elif name not in line.signatures:
                self.tell(
                    FILE, f"{FILE}, line {line.number} ({_told(line)}), is signed with another key than {name[:16]}…"
                )
            elif not keys.verifies(key, line.signatures[name], line.signed):
                self.tell(FILE, f"{FILE}, line {line.number} ({_told(line)}), was changed: its signature is not of it.")
        try:
            owner = str(json.loads((self.run_directory / SIGNER).read_bytes())["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            self.tell(SIGNER, f"{SIGNER} is missing or was changed: it says whose key it is.")
            owner = "not stated"
        is_others = given is not None and not given.resolve().is_relative_to(self.run_directory.resolve())
        return Signed(owner, name, is_others)

    def check_timestamps(self, certificates: Path | None) -> list[datetime]:
        """Return when an authority saw heads of the log that it still has; the last one has to be among them.

        Raises:
            InputError: the certificates are none.
        """
        times, heads = [], {line.sha256: line.number for line in self.lines}
        files = sorted((self.run_directory / TIMESTAMPS).glob("[!.]*"))
        for file in files:
            path = f"{TIMESTAMPS}/{file.name}"
            try:
                time = seen(file, certificates)
            except ValueError as error:
                self.tell(path, f"{path} is no timestamp of that head: {error}.")
                continue
            if file.stem in heads:
                times.append(time)
            else:
                self.tell(path, f"{FILE} was written anew since {time:%Y-%m-%d %H:%M} UTC: {path} was of another one.")
        if certificates and self.lines and f"{self.lines[-1].sha256}.tsr" not in {file.name for file in files}:
            self.tell(TIMESTAMPS, f"{TIMESTAMPS}: no authority has seen the last line of {FILE}.")
        return times

    def check_published(self, published: Path) -> None:
        """The log has all checkpoints that were published of this run, and the newest of them is its last line.

        Raises:
            InputError: the file with the checkpoints cannot be read.
        """
        if not self.lines:  # one sentence says so
            return
        names = run_names(self.lines) or [self.run_directory.absolute().name]
        known = of_run(heads(published), names, self.lines[0].sha256)
        own = {(line.sha256, line.number) for line in self.lines}
        for head in known:
            if (head.sha256, head.lines) not in own:
                self.tell(
                    FILE,
                    f"{FILE} was written anew or cut: {published.name} has the checkpoint {head.sha256[:16]}… of its "
                    f"line {head.lines}.",
                )
        if not known:
            self.tell(
                FILE, f"{FILE} was never published in {published.name}: it has no checkpoint of the run {names[-1]}."
            )
        elif known[-1].sha256 != self.lines[-1].sha256:
            self.tell(FILE, f"{FILE} has lines that were never published in {published.name}.")

    def check_checkpoint(self, given: str) -> None:
        """The last line of the log is the one whose hash the reader has from the owner."""
        numbers = {line.sha256: line.number for line in self.lines}
        if not self.lines or self.lines[-1].sha256 == given.lower():
            return
        number, last = numbers.get(given.lower()), self.lines[-1].number
        self.tell(
            FILE,
            f"{FILE} was cut or changed: no line has the checkpoint given, {given}."
            if number is None
            else f"{FILE} has {last - number} lines after the checkpoint given: ask the owner for the newest one.",
        )

    def check_evidence(self) -> None:
        """All evidence that was attested is there as it was, and there is no other."""
        if not self.lines:  # one sentence says so
            return
        present = set(evidence.files(self.run_directory))
        ongoing = (self.run_directory / evidence.LOCK).is_file()  # somebody works on the run: it is attested at the end
        folders = tuple(f"{name}/" for name in evidence.FOLDERS)
        for path, told in sorted(self.attested.items()):
            if path.startswith(folders) and path not in present:
                self.tell(path, f"{path} is missing: line {told.line} of {FILE} attests it.")
        began = {e.name: line for line in self.lines if line.statement.kind == BEGAN for e in line.statement.subject}
        for path in sorted(present):
            if path not in self.attested:
                if not ongoing:
                    self.tell(path, f"{path} is unknown: no attestation names it.")
                continue
            told = self.attested[path]
            if path in began and told.line == began[path].number:
                self._check_beginning(path, began[path])
            elif sentence := evidence.difference(self.run_directory, path, told, may_grow=ongoing):
                self.tell(path, sentence)

    def _check_beginning(self, path: str, line: Line) -> None:
        """An attempt that goes on, or of which nobody has seen the end, is the one that began."""
        try:
            content = json.loads((self.run_directory / path).read_bytes())
            facts = {name: content[name] for name in ATTEMPT_FACTS}
        except (OSError, ValueError, KeyError, TypeError):
            facts = {}
        if facts != line.statement.predicate.attempt:
            self.tell(path, f"{path} was changed: it is not the attempt whose beginning line {line.number} attests.")

    def check_records(self, records: Iterable[str], sha256_of: Callable[[str], str]) -> None:
        """Every record is the newest that its step has attested: none is forged, none is an older one."""
        if not self.lines:
            return
        history: dict[str, list[str]] = {}
        for line in self._jobs():
            history.setdefault(line.statement.subject[0].name, []).append(line.statement.subject[0].sha256)
        for path in records:
            *older, newest = history.get(path, [""])
            found = sha256_of(path)
            if found in older and found != newest:
                self.tell(path, f"{path} is an older one: its step has run again since, as {FILE} says.")
            elif found != newest:
                self.tell(path, f"{path} was changed: no line of {FILE} attests it.")

    def check_order(self) -> None:
        """No job read what no job before it had written."""
        if not self.is_whole:  # its order is then none
            return
        ever = {entry.name for line in self._jobs() for entry in line.statement.subject}
        newest = {line.statement.subject[0].name: line.number for line in self._jobs()}
        written: dict[str, set[str]] = {}
        for line in self._jobs():
            record = line.statement.subject[0].name
            for entry in line.statement.read if newest[record] == line.number else []:
                if entry.name in ever and entry.sha256 not in written.get(entry.name, set()):
                    self.tell(record, f"{record} read {entry.name} before any job had written it so.")
            for entry in line.statement.subject:
                written.setdefault(entry.name, set()).add(entry.sha256)

    def _jobs(self) -> list[Line]:
        """The lines of finished jobs; the first subject of each is its record."""
        return [line for line in self.lines if line.statement.kind == SLSA]


def _told(line: Line) -> str:
    """The first file that a line attests, and how many more."""
    first, *more = (
        entry.name.removeprefix(f"{RECORDS}/").removeprefix(f"{ATTEMPTS}/") for entry in line.statement.subject
    )
    return f"{first} and {len(more)} more" if more else first
