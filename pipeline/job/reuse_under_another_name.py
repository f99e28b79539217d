"""Reuse the outputs of an identical job that ran under another corpus, tokenizer, token set or model name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.errors import InputError
from pipeline.core.job_records import FileEntry, Record, ReusedResult
from pipeline.core.output_archives import ArchivedOutput, find_output
from pipeline.layout import RECORD

# Instance keys whose value is a name of the user. A source, a unit, a shard and a training step affect the result.
USER_NAMED_KEYS = ("corpus", "tokenizer", "tokens", "model")


@cache
def index_records(run: Path, step: str) -> dict[tuple[str, ...], list[StoredFile]]:
    """Return the records of a step by the words of their names after the user's name; listed once for all units."""
    records_by_instance: dict[tuple[str, ...], list[StoredFile]] = {}
    for file in FileStore(run, f"{step}.").find_all(RECORD, job=f"{step}.*"):
        _, *instance = file.name.removeprefix(f"{step}.").split(".")
        records_by_instance.setdefault((*instance,), []).append(file)
    return records_by_instance


def _rename_in_path(path: str, old: str, new: str) -> str:
    return "/".join(new if word == old else word for word in path.split("/"))


@dataclass(frozen=True)
class ReusableResult:
    """The record of an identical job, the attempt that computed its outputs, and both user-chosen names."""

    record: Record
    result: ReusedResult
    other: str
    own: str

    @property
    def output_hashes(self) -> set[str]:
        return {entry.sha256 for entry in self.record.outputs}

    def copy_outputs(
        self, run: Path, outputs: Mapping[str, Path], partial: Mapping[str, Path], *, linked: bool
    ) -> bool:
        """Copy or link the outputs to the temporary paths of a job; return whether all of them were available.

        Args:
            run: the folder of the run.
            outputs: the final paths of the job's outputs by name.
            partial: the temporary paths of the job's outputs by name.
            linked: link all files, which takes no space. Otherwise files that Snakemake knows are copied, because it
                compares their times; files in folders are always linked. No step modifies an existing file.
        """
        for entry in self.record.outputs:
            final, begun = outputs[entry.name].absolute(), partial[entry.name]
            path = run / _rename_in_path(entry.path, self.other, self.own)
            if not path.is_relative_to(final):
                return False
            target = begun / path.relative_to(final)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                if isinstance(file := find_output(run / entry.path), ArchivedOutput):
                    target.write_bytes(file.read_bytes())
                else:
                    (os.link if linked or path != final else shutil.copyfile)(file, target)
            except OSError:
                return False
        return True


def find_reusable_result(
    path: Path,
    instance: Mapping[str, str],
    settings: Mapping[str, Any],
    versions: tuple[str, str],
    inputs: Iterable[FileEntry],
) -> ReusableResult | None:
    """Return the reusable result of an identical job; None if there is none.

    Args:
        path: the record of the job itself.
        instance: of the job; its first value is a name of the user, such as the corpus.
        settings: of the job.
        versions: of its code and its environment.
        inputs: the files that it reads.
    """
    kind, own = next(iter(instance.items()), ("", ""))
    if kind not in USER_NAMED_KEYS:
        return None
    stage, step, _, *rest = path.name.split(".")
    for file in index_records(path.absolute().parents[2], f"{stage}.{step}").get((*rest,), []):
        with suppress(InputError, KeyError):  # no record
            record = Record.load(file)
            other = str(record.instance[kind])
            if "outcome" in record.counts or other == own or not record.outputs:  # a training may not reach its end
                continue
            read = [entry._replace(path=_rename_in_path(entry.path, other, own)) for entry in record.inputs]
            if (record.settings, record.code_version, record.environment_version) == (settings, *versions) and read == [
                *inputs
            ]:
                earlier = record.taken_over_from.attempt if record.taken_over_from else record.attempt
                return ReusableResult(record, ReusedResult(file.name, earlier), other, own)
    return None
