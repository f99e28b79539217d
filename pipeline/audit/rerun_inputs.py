"""Link what a step read into the folder of its rerun: its inputs, and the run as it was when the step began."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pipeline import layout
from pipeline.core.archived_run_files import ArchivedFile, FileStore, StoredFile
from pipeline.core.attestation_log import ATTEMPT_BEGAN, LogLine, read_log
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Attempt, FileEntry, Record, select_record_files
from pipeline.core.output_archives import ArchivedOutput, find_output
from pipeline.job.job_execution import list_files

GROWING_FOLDERS = (
    *(layout.LOGS, layout.SCRATCH, layout.BATCHES, layout.FROZEN, layout.RECORDS, layout.BATCH_ARCHIVES),
)


@dataclass(frozen=True)
class RerunInputs:
    """Links files of a run, which is only read, into the folder of a rerun of one of its steps."""

    run_directory: Path
    record: Record
    rerun_folder: Path

    def _link(self, path: str) -> None:
        target = self.rerun_folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(self.run_directory / path)

    def _link_checked_file(self, path: str, sha256: str) -> None:
        check_input(find_output(self.run_directory / path), path, sha256)
        self._link_output(path)

    def _link_output(self, path: str) -> None:
        """Link a file, or write a copy of it if it is in an archive."""
        file = find_output(self.run_directory / path)
        if isinstance(file, ArchivedOutput):
            file.copy_into_folder(self.rerun_folder)
        else:
            self._link(path)

    def link_inputs(self, listings: Iterable[str]) -> None:
        """Link inputs, files that inputs name, and all files for a step that reads the whole run.

        Args:
            listings: the listings that the command names, as paths relative to the run.

        Raises:
            InputError: a file of it is gone or has other bytes than were read.
        """
        (self.rerun_folder / layout.RECORDS).mkdir(parents=True)
        for entry in self.record.inputs:
            if not entry.is_outside_run:
                self._link_checked_file(entry.path, entry.sha256)
                if layout.TOKEN_INDEX.parse(entry.path):
                    self.link_shards(entry)
        for listing in listings:
            if find_output(self.run_directory / listing).is_file():
                self._link_output(listing)
        lists = [entry.path for entry in self.record.inputs if layout.UNIT_RECORDS.parse(entry.path)]
        for file in select_record_files(FileStore(self.run_directory), [self.run_directory / path for path in lists]):
            if not isinstance(file, ArchivedFile):
                self._link(f"{layout.RECORDS}/{file.name}")
        if not self.record.instance:
            self.link_run_files()
            lines, is_known = self.read_earlier_attestations()
            self.link_archives(lines)
            if is_known:
                self.copy_attestation_log(len(lines))

    def link_shards(self, index: FileEntry) -> None:
        """Link the shards that an index of tokens names, with their hashes."""
        folder = Path(index.path).parent
        content = json.loads((self.run_directory / index.path).read_text(encoding="utf-8"))
        for shard in (shard for split in ("train", "validation") for shard in content[split]["shards"]):
            self._link_checked_file((folder / shard["path"]).as_posix(), shard["sha256"])

    def link_run_files(self) -> None:
        """Link the other files of the run as they were when the step began."""
        outputs = {entry.path for entry in self.record.outputs}
        for path in list_files(self.run_directory):
            below = path.relative_to(self.run_directory).as_posix()
            grows = any(below.startswith(f"{folder}/") for folder in GROWING_FOLDERS)
            if below in (*outputs, layout.CRATE, layout.ATTESTATION_LOG) or grows or path.name.startswith(".partial"):
                continue
            if path.name == self.record.attempt or (
                below.startswith(f"{layout.ATTEMPTS}/") and Attempt.load(path).started >= self.record.started
            ):
                continue
            if below.startswith(f"{layout.READINGS}/"):
                self.copy_readings(below)
            else:
                self._link(below)

    def read_earlier_attestations(self) -> tuple[list[LogLine], bool]:
        """Return the lines of the attestation log from before the step began, and whether a line says when it began."""
        own, lines = f"{layout.ATTEMPTS}/{self.record.attempt}", list[LogLine]()
        for line in read_log(self.run_directory):
            if line.statement.kind == ATTEMPT_BEGAN and line.statement.subject[0].name == own:
                return lines, True
            lines.append(line)
        return lines, False

    def link_archives(self, lines: list[LogLine]) -> None:
        """Link the archives of batches that were complete before the step began; no clock of another node decides."""
        attested = {entry.name for line in lines for entry in (*line.statement.subject, *line.statement.byproducts)}
        for path, names in FileStore(self.run_directory).archives.items():
            if attested.issuperset(names):
                self._link(path)

    def copy_attestation_log(self, lines: int) -> None:
        with (self.run_directory / layout.ATTESTATION_LOG).open("rb") as text:
            (self.rerun_folder / layout.ATTESTATION_LOG).write_bytes(b"".join(islice(text, lines)))

    def copy_readings(self, readings: str) -> None:
        """Copy the readings of a meter up to the end of the step."""
        until = self.record.ended_seconds
        lines = (self.run_directory / readings).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and _reading_end_time(line, until) <= until]
        if kept:
            (self.rerun_folder / readings).parent.mkdir(parents=True, exist_ok=True)
            (self.rerun_folder / readings).write_text("".join(kept), encoding="utf-8")


def _reading_end_time(line: str, otherwise: float) -> float:
    """Return the end of an interval of readings, or a default for a broken line."""
    try:
        return float(json.loads(line)["ended"])
    except (ValueError, KeyError, TypeError):
        return otherwise


def check_input(file: StoredFile, path: str, sha256: str) -> None:
    """Raise InputError unless a file is there with the bytes that a step read."""
    if not file.is_file():
        raise InputError(f"its input {path} is missing: put it back, or run the step that makes it")
    if hash_file(file) != sha256:
        raise InputError(f"its input {path} has other bytes than it read (sha256 {sha256}): put those back")
