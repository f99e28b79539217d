"""A job's twin: one of the same step, settings, code, environment and input bytes that was done under another name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.records import FileEntry, Record, ReusedResult

# Of an instance: what a person may name otherwise. A source, a unit, a shard and a training step say what is done.
USER_NAMED_KEYS = ("corpus", "tokenizer", "tokens", "model")


@cache
def _index_record_names(folder: Path) -> dict[tuple[str, ...], list[str]]:
    """Return the names of the records in a folder, by their words but the third, a given name; listed once a job."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        stage, step, *instance = name.split(".")
        found.setdefault((stage, step, *instance[1:]), []).append(name)
    return found


def _rename_in_path(path: str, old: str, new: str) -> str:
    return "/".join(new if word == old else word for word in path.split("/"))


@dataclass(frozen=True)
class ReusableResult:
    """The record of a job's twin, the attempt that computed it, which may be of a twin's twin, and both given names."""

    record: Record
    result: ReusedResult
    other: str
    own: str

    @property
    def output_hashes(self) -> set[str]:
        """The sha256 of the files that it wrote."""
        return {entry.sha256 for entry in self.record.outputs}

    def copy_outputs(
        self, run: Path, outputs: Mapping[str, Path], partial: Mapping[str, Path], *, linked: bool
    ) -> bool:
        """Give a job what its twin wrote, under its temporary names; return whether all was there to be given.

        Args:
            outputs: the job's, by their names, in the folder `run`.
            linked: whether files are linked, which takes no stage. Snakemake compares the times of those that it knows,
                so they are copied; what lies in a folder is always linked. No step writes into a file that is there.
        """
        for entry in self.record.outputs:
            final, begun = outputs[entry.name].absolute(), partial[entry.name]
            path = run / _rename_in_path(entry.path, self.other, self.own)
            if not path.is_relative_to(final):
                return False
            target = begun / path.relative_to(final)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                (os.link if linked or path != final else shutil.copyfile)(run / entry.path, target)
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
    """Return a job's twin; None where it has none.

    Args:
        path: where the record of the job itself goes.
        instance: of the job; its first value is the given name, such as the corpus.
        settings: of the job.
        versions: of its code and its environment.
        inputs: the files that it reads.
    """
    kind, own = next(iter(instance.items()), ("", ""))
    if kind not in USER_NAMED_KEYS:
        return None
    stage, step, _, *rest = path.name.split(".")
    for name in _index_record_names(path.parent).get((stage, step, *rest), []):
        with suppress(InputError, KeyError):  # no record
            record = Record.load(path.parent / name)
            other = str(record.instance[kind])
            if "outcome" in record.counts or other == own or not record.outputs:  # a training may not reach its end
                continue
            read = [entry._replace(path=_rename_in_path(entry.path, other, own)) for entry in record.inputs]
            if (record.settings, record.code_version, record.environment_version) == (settings, *versions) and read == [
                *inputs
            ]:
                earlier = record.taken_over_from.attempt if record.taken_over_from else record.attempt
                return ReusableResult(record, ReusedResult(name, earlier), other, own)
    return None
