"""What lies beside a run and must agree with it, where it is at hand: the raw files, and the commits of its code.

Both are of the reader: raw files are looked for below the working directory or a folder that is named, commits in the
repository of the working directory. What is not at hand is counted and proves nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.audit.code_differences import Tree, commit_of
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.records import Record, read_records

OUTSIDE = "data:"


@dataclass
class Compared:
    """What was compared: sentences on what differs, what agreed, and what could not be compared, by why."""

    what: str
    problems: list[str] = field(default_factory=list)
    agreed: int = 0
    absent: dict[str, int] = field(default_factory=dict)

    def told(self) -> list[str]:
        """Return the problems, and one line on how far the comparison went; nothing where there was nothing to do."""
        parts = [f"{self.agreed} agree"] if self.agreed else []
        parts += [f"{len(self.problems)} differ"] if self.problems else []
        parts += [f"{number} {why}" for why, number in sorted(self.absent.items())]
        return [*self.problems, *([f"{self.what}: {', '.join(parts)}."] if parts else [])]

    def leave(self, why: str) -> None:
        """Count one that cannot be compared."""
        self.absent[why] = self.absent.get(why, 0) + 1


def raw_files(records: list[Record], raw: Path | None) -> Compared:
    """Compare the raw files that jobs read, and the models that trainings began with, with those at hand, by hashes.

    Files of one name in two folders outside of the project have one name in the records: either hash will do.
    """
    compared = Compared("Raw files")
    read: dict[str, dict[str, str]] = {}
    for record in records:
        for entry in record.inputs:
            is_raw = entry.name == "files" and "source" in record.instance
            if entry.is_outside and (is_raw or (record.step == "pretrain.adopt" and entry.name == "model")):
                read.setdefault(entry.path.removeprefix(OUTSIDE), {}).setdefault(entry.sha256, record.file)
    for path, hashes in sorted(read.items()):
        places = [Path(path)] + ([raw / path] if raw else [])
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            compared.leave("not at hand (name their folder with --raw FOLDER)")
        elif (now := sha256_of(file)) in hashes:
            compared.agreed += 1
        else:
            said = ", ".join(f"{record} read {sha256}" for sha256, record in sorted(hashes.items()))
            compared.problems.append(f"{file}, a raw file, was changed since: its sha256 is {now}, {said}.")
    return compared


def code(records: list[Record]) -> Compared:
    """Compare the code versions of the records with those that the trees of their commits have."""
    compared = Compared("Code of the steps by the commits that their records name")
    steps: dict[str, dict[str, dict[str, str]]] = {}
    for record in records:
        if commit := commit_of(record):
            if (record.git or {}).get("dirty") is False:
                steps.setdefault(commit, {}).setdefault(record.step, {})[record.code_version] = record.file
            else:
                compared.leave("records of a checkout with changes that no commit has")
        else:
            compared.leave("records that name no commit")
    for commit, found in sorted(steps.items()):
        with tempfile.TemporaryDirectory(prefix="commit-") as folder:
            try:
                tree = Tree(commit, Path(folder))
            except InputError as error:
                for _ in found:
                    compared.leave(f"of commit {commit[:12]} not compared ({error})")
                continue
            for step, versions in sorted(found.items()):
                expected = tree.code_version(step)
                others = {version: file for version, file in versions.items() if version != expected}
                if expected is None:
                    compared.leave(f"of commit {commit[:12]}, which reckons versions otherwise or has no such step")
                elif others:
                    compared.problems += [
                        f"{file} says that {step} ran code {version} of commit {commit}, whose tree has {expected}."
                        for version, file in sorted(others.items())
                    ]
                else:
                    compared.agreed += 1
    return compared


def at_hand(run_directory: Path, raw: Path | None) -> list[Compared]:
    """Return the comparisons of a run with its raw files and its code.

    Raises:
        InputError: the folder of raw files is none.
    """
    if raw is not None and not raw.is_dir():
        raise InputError(f"{raw} is no folder: name the one that the raw files lie in with --raw FOLDER")
    records, _ = read_records(run_directory)
    return [raw_files(records, raw), code(records)]
