"""Reads the texts of evaluation items: of the fields that count, at any depth."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.normalization import composed
from pipeline.core.yaml_files import parse_json
from pipeline.corpus.contamination_settings import TaskFile


@dataclass(frozen=True)
class Item:
    """One item: its task, its name there, and its different texts, sorted."""

    task: str
    name: str
    texts: list[str]


def _rows(path: Path, entry: TaskFile) -> Iterator[Any]:
    """Yield the items of a file: JSON lines or one JSON array, CSV or TSV, each also with .gz, or Parquet."""
    if entry.name.endswith(".parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
        return
    content = gzip.decompress(path.read_bytes()) if entry.name.endswith(".gz") else path.read_bytes()
    text, stem = content.decode("utf-8-sig"), entry.name.removesuffix(".gz")
    if stem.endswith((".csv", ".tsv")):
        rows = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if stem.endswith(".tsv") else ",")
        if entry.fields is None:
            yield from rows
            return
        names = next(rows, [])
        if twice := [name for name in entry.fields if names.count(name) > 1]:
            raise ValueError(f"it has two columns {twice[0]}; give one of them another name")
        yield from (dict(zip(names, row, strict=False)) for row in rows if row)
    elif text.lstrip().startswith("["):
        yield from parse_json(text, str(path))
    else:
        lines = enumerate(text.split("\n"), 1)
        yield from (parse_json(line, f"{path}, line {number}") for number, line in lines if line.strip())


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, whatever it is nested in."""
    if isinstance(value, str):
        yield composed(value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _counted(row: Any, entry: TaskFile, missing: set[str]) -> list[str]:
    """Return the different texts of a row, and note which of the fields that count it has not."""
    if entry.fields is None:
        return sorted(set(_texts(row)))
    fields = row if isinstance(row, dict) else {}
    missing.intersection_update(set(entry.fields) - fields.keys())
    return sorted(set(_texts([fields.get(name) for name in entry.fields])))


def read_items(entries: Sequence[TaskFile], files: Sequence[Path]) -> Iterator[Item]:
    """Yield the items of the files, in their order: named by their number, after their file where a task has several.

    Raises:
        InputError: a file of items cannot be read, or none of its items has a field that is to count.
    """
    several = [entry.task for entry in entries]
    for entry, path in zip(entries, files, strict=True):
        missing = set(entry.fields or []) if entry.named else set[str]()
        try:
            for number, row in enumerate(_rows(path, entry), 1):
                name = str(number) if several.count(entry.task) == 1 else f"{entry.name} {number}"
                yield Item(entry.task, name, _counted(row, entry, missing))
        except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise InputError(f"the items of the task {entry.task} in {path} cannot be read: {problem}") from None
        if missing:
            raise InputError(
                f"no item of the task {entry.task} in {path} has the field {min(missing)}: name another one, under "
                "metadata.searched of the task file or decontamination.fields"
            )
