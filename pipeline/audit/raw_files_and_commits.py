"""Compare a run with evidence outside of it: raw files and git commits.

Both come from the reader: raw files below the working directory or a given folder, commits from the repository of the
working directory. Missing evidence is counted and proves nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.audit.commit_differences import CommitTree, recorded_commit
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Record, read_records

RAW_PREFIX = "data:"


@dataclass
class EvidenceComparison:
    """The result of a comparison: problems, the number that agree, and missing evidence by reason."""

    what: str
    problems: list[str] = field(default_factory=list)
    agreed: int = 0
    absent: dict[str, int] = field(default_factory=dict)

    def format_lines(self) -> list[str]:
        """Return the problems and a summary line; nothing if there was nothing to compare."""
        parts = [f"{self.agreed} agree"] if self.agreed else []
        parts += [f"{len(self.problems)} differ"] if self.problems else []
        parts += [f"{number} {why}" for why, number in sorted(self.absent.items())]
        return [*self.problems, *([f"{self.what}: {', '.join(parts)}."] if parts else [])]

    def count_incomparable_item(self, why: str) -> None:
        """Count an item that cannot be compared."""
        self.absent[why] = self.absent.get(why, 0) + 1


def compare_raw_files(records: list[Record], raw: Path | None) -> EvidenceComparison:
    """Compare raw files and pretrained models with the hashes in the records.

    Files with one name in two folders outside of the project share a name in the records: either hash is accepted.
    """
    compared = EvidenceComparison("Raw files")
    read: dict[str, dict[str, str]] = {}
    for record in records:
        for entry in record.inputs:
            is_raw = entry.name == "files" and "source" in record.instance
            if entry.is_outside_run and (is_raw or (record.step == "pretrain.adopt" and entry.name == "model")):
                read.setdefault(entry.path.removeprefix(RAW_PREFIX), {}).setdefault(entry.sha256, record.file)
    for path, hashes in sorted(read.items()):
        places = [Path(path)] + ([raw / path] if raw else [])
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            compared.count_incomparable_item("not found (name their folder with --raw FOLDER)")
        elif (now := hash_file(file)) in hashes:
            compared.agreed += 1
        else:
            said = ", ".join(f"{record} read {sha256}" for sha256, record in sorted(hashes.items()))
            compared.problems.append(f"{file}, a raw file, was changed since: its sha256 is {now}, {said}.")
    return compared


def check_recorded_code_versions(records: list[Record]) -> EvidenceComparison:
    """Compare the code versions of records with the trees of their commits."""
    compared = EvidenceComparison("Code of the steps, against the commits in their records")
    steps: dict[str, dict[str, dict[str, str]]] = {}
    for record in records:
        if commit := recorded_commit(record):
            if (record.git or {}).get("dirty") is False:
                steps.setdefault(commit, {}).setdefault(record.step, {})[record.code_version] = record.file
            else:
                compared.count_incomparable_item("records of a checkout with changes that no commit has")
        else:
            compared.count_incomparable_item("records that name no commit")
    for commit, versions_by_step in sorted(steps.items()):
        with tempfile.TemporaryDirectory(prefix="commit-") as folder:
            try:
                tree = CommitTree(commit, Path(folder))
            except InputError as error:
                for _ in versions_by_step:
                    compared.count_incomparable_item(f"of commit {commit[:12]} not compared ({error})")
                continue
            for step, versions in sorted(versions_by_step.items()):
                expected = tree.step_code_version(step)
                others = {version: file for version, file in versions.items() if version != expected}
                if expected is None:
                    compared.count_incomparable_item(
                        f"of commit {commit[:12]}, which versions code otherwise or lacks the step"
                    )
                elif others:
                    compared.problems += [
                        f"{file} says that {step} ran code {version} of commit {commit}, but its tree has {expected}."
                        for version, file in sorted(others.items())
                    ]
                else:
                    compared.agreed += 1
    return compared


def compare_files_and_commits(run_directory: Path, raw: Path | None) -> list[EvidenceComparison]:
    """Return the comparisons of a run with raw files and commits.

    Raises:
        InputError: the folder of raw files is none.
    """
    if raw is not None and not raw.is_dir():
        raise InputError(f"{raw} is no folder: name the folder of the raw files with --raw FOLDER")
    records, _ = read_records(run_directory)
    return [compare_raw_files(records, raw), check_recorded_code_versions(records)]
