"""The lineage of one file: back through the jobs that made it to the raw data and their licences."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from pipeline.ground.errors import InputError
from pipeline.provenance.crate import source_of
from pipeline.provenance.files import RECORDS
from pipeline.provenance.records import FileEntry, Record, load_records, producers

SHOWN_FILES = 6
INDENT = "  "


class _Lineage:
    """Writes the tree of jobs behind a file; each job is told once and then referred to."""

    def __init__(self, run_directory: Path) -> None:
        self.run_directory = run_directory
        self.made = producers(load_records(run_directory))
        self.lines: list[str] = []
        self.told: dict[str, Record] = {}
        self.licences: dict[str, str] = {}

    def write(self, depth: int, text: str) -> None:
        """Add one line."""
        self.lines.append(INDENT * depth + text)

    def job(self, record: Record, depth: int) -> None:
        """Tell one job, and before what it read the jobs behind that."""
        if record.file in self.told:
            self.write(depth, f"made by {record.title}, told above")
            return
        self.told[record.file] = record
        meters = ", ".join(sorted({meter.meter for meter in record.energy.meters})) or "no meter"
        certainty = "measured" if record.energy.measured else "estimated in part or whole"
        self.write(depth, f"made by {record.title}")
        self.write(depth + 1, f"record: {record.file}")
        self.write(depth + 1, f"command: {shlex.join(record.command)}")
        self.write(depth + 1, f"code: {record.code_version}, environment: {record.environment_version}")
        self.write(depth + 1, f"energy: {record.energy.joules:.6g} J, {certainty} ({meters})")
        groups: dict[str, list[FileEntry]] = {}
        for entry in record.inputs:
            maker = self.made[entry.path][0].file if entry.path in self.made else ""
            groups.setdefault(maker, []).append(entry)
        for maker, entries in sorted(groups.items()):
            self.inputs(record, entries, depth + 1)
            if maker:
                self.job(self.made[entries[0].path][0], depth + 2)

    def inputs(self, record: Record, entries: list[FileEntry], depth: int) -> None:
        """Tell the files of one maker that a job read; raw files with their source's licence."""
        for entry in entries[:SHOWN_FILES]:
            licence = self.licence(record) if entry.is_outside else ""
            self.write(depth, f"read {entry.path} (sha256 {entry.sha256[:16]}, {entry.bytes} bytes){licence}")
        if len(entries) > SHOWN_FILES:
            self.write(depth, f"read {len(entries) - SHOWN_FILES} more files with them")

    def licence(self, record: Record) -> str:
        """The source and licence of a job's raw files, in words; nothing for raw files that belong to no source."""
        name = str(record.instance.get("source", ""))
        manifest = self.run_directory / "sources" / name / "manifest.json"
        if not name or not manifest.is_file():
            return ""
        source = source_of(manifest)
        rights = source.get("rights")
        basis = (
            f", {', '.join(f'{k}: {v}' for k, v in sorted(rights.items()) if v)}" if isinstance(rights, dict) else ""
        )
        self.licences[name] = f"{source.get('license', 'no licence stated')}{basis}"
        return f", source {name}, licence {self.licences[name]}"


def _relative(run_directory: Path, file: str) -> str:
    """The file's path as records name it, from a path below the run or from the working folder."""
    path = Path(file)
    if path.is_absolute() or (not (run_directory / path).exists() and path.exists()):
        path = path.absolute()
        if path.is_relative_to(run_directory.absolute()):
            return path.relative_to(run_directory.absolute()).as_posix()
    return path.as_posix()


def trace(run_directory: Path, file: str) -> list[str]:
    """The lineage of a file as the lines of an indented tree, and its sources and joules summed up at the end.

    A directory, such as a milestone, is traced by the job that made it.

    Raises:
        InputError: no record lists the file.
    """
    lineage = _Lineage(run_directory)
    path = _relative(run_directory, file)
    inside = sorted(made for made in lineage.made if made == path or made.startswith(f"{path}/"))
    if not inside:
        raise InputError(f"no record in {run_directory / RECORDS} says where {file} comes from: give a file of the run")
    makers = {lineage.made[name][0].file: lineage.made[name][0] for name in inside}
    lineage.write(0, path if inside != [path] else f"{path} (sha256 {lineage.made[path][1].sha256})")
    for _, record in sorted(makers.items()):
        lineage.job(record, 1)
    joules = sum(record.energy.joules for record in lineage.told.values())
    lineage.write(0, f"behind it: {len(lineage.told)} job(s), {joules:.6g} J")
    lineage.lines += [f"source {name}: {licence}" for name, licence in sorted(lineage.licences.items())]
    return lineage.lines


def main(arguments: list[str]) -> int:
    """`python -m pipeline trace results/RUN FILE`."""
    parser = argparse.ArgumentParser(prog="python -m pipeline trace", description=__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("file", help="a file or folder of the run")
    options = parser.parse_args(arguments)
    print("\n".join(trace(options.run_directory, options.file)))
    return 0
