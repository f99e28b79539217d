"""Reads the texts of evaluation items, and hashes their n-grams.

The table contains hashes and no words, so that no result publishes a benchmark. A long text has many n-grams; a short
text is one n-gram. One shorter than `alone_words` is a common phrase: it counts only near another text of its item, as
an answer near its question. N-grams of more than half of the items of a task, such as an instruction, are the wording
of the task and are ignored.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.core.yaml_files import parse_unique_json
from pipeline.corpus.decontamination.settings import NgramSelection, TaskItemsFile
from pipeline.corpus.documents import encode_parquet_metadata, make_non_nullable_fields
from pipeline.corpus.text.word_hashes import Hashes, Places, hash_ngrams, hash_text_words


@dataclass(frozen=True)
class EvaluationItem:
    """One evaluation item: its task, its name in the task, and its different texts, sorted."""

    task: str
    name: str
    texts: list[str]


def _read_rows(path: Path, entry: TaskItemsFile) -> Iterator[Any]:
    """Yield the rows of a file: JSON lines, a JSON array, CSV or TSV, each also with .gz, or Parquet."""
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
            raise ValueError(f"it has two columns {twice[0]}; rename one of them")
        yield from (dict(zip(names, row, strict=False)) for row in rows if row)
    elif text.lstrip().startswith("["):
        yield from parse_unique_json(text, str(path))
    else:
        lines = enumerate(text.split("\n"), 1)
        yield from (parse_unique_json(line, f"{path}, line {number}") for number, line in lines if line.strip())


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield normalize_nfc(value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _iterate_texts(part)


def _item_texts(row: Any, entry: TaskItemsFile, missing: set[str]) -> list[str]:
    """Return the different texts of a row, and remove its fields from `missing`."""
    if entry.fields is None:
        return sorted(set(_iterate_texts(row)))
    fields = row if isinstance(row, dict) else {}
    missing.intersection_update(set(entry.fields) - fields.keys())
    return sorted(set(_iterate_texts([fields.get(name) for name in entry.fields])))


def read_items(entries: Sequence[TaskItemsFile], files: Sequence[Path]) -> Iterator[EvaluationItem]:
    """Yield the items of the files, in order, named by number, and by file if a task has several files.

    Raises:
        InputError: a file of items cannot be read, or none of its items has a searched field.
    """
    several = [entry.task for entry in entries]
    for entry, path in zip(entries, files, strict=True):
        missing = set(entry.fields or []) if entry.named else set[str]()
        try:
            for number, row in enumerate(_read_rows(path, entry), 1):
                name = str(number) if several.count(entry.task) == 1 else f"{entry.name} {number}"
                yield EvaluationItem(entry.task, name, _item_texts(row, entry, missing))
        except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise InputError(f"the items of the task {entry.task} in {path} cannot be read: {problem}") from None
        if missing:
            raise InputError(
                f"no item of the task {entry.task} in {path} has the field {min(missing)}: name another one, under "
                "metadata.searched of the task file or decontamination.fields"
            )


# `context`: one of these n-grams, the other texts of the item, must be near. Empty if the n-gram counts alone.
NGRAM_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(hash=pa.uint64(), prefix=pa.uint64(), task=pa.string(), item=pa.string()),
        *make_non_nullable_fields(text=pa.int64(), ngrams=pa.int64(), words=pa.int64(), context=pa.list_(pa.uint64())),
    ]
)
Numbers = npt.NDArray[np.int64]


def _extract_ngrams(words: Hashes, bounds: Places, longest: int) -> tuple[Numbers, Hashes, Places]:
    """Return text, hash and position of all n-grams; a text of fewer than `longest` words is one n-gram."""
    lengths = np.diff(bounds)
    parts_by_length = []
    for length in range(1, longest + 1):
        number = np.where(lengths == length, 1, 0) if length < longest else np.maximum(0, lengths - length + 1)
        text = np.repeat(np.arange(len(lengths)), number)
        places = bounds[text] + np.arange(len(text)) - np.repeat(np.cumsum(number) - number, number)
        parts_by_length.append((text, hash_ngrams(words, length)[places], places))
    text, hashes, places = (np.concatenate(parts) for parts in zip(*parts_by_length, strict=True))
    order = np.lexsort((text, hashes))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(hashes[order]) != 0) | (np.diff(text[order]) != 0)
    kept = order[new]
    return text[kept], hashes[kept], places[kept]


def _is_task_wording(hashes: Hashes, items: Numbers, tasks: Numbers) -> npt.NDArray[np.bool_]:
    """Return whether each n-gram is in more than half of the items of its task, and in at least two.

    Args:
        items: the number of the item of each n-gram.
        tasks: the number of the task of each item.
    """
    pairs = np.unique(np.stack([hashes, items.astype(np.uint64)], axis=1), axis=0)
    keys = np.stack([pairs[:, 0], tasks[pairs[:, 1].astype(np.int64)].astype(np.uint64)], axis=1)
    common, times = np.unique(keys, axis=0, return_counts=True)
    sizes = np.bincount(tasks)
    often = {
        (value, task)
        for value, task in common[(times > 1) & (times * 2 > sizes[common[:, 1].astype(np.int64)])].tolist()
    }
    ngram_keys = zip(hashes.tolist(), tasks[items].tolist(), strict=True)
    return np.fromiter((key in often for key in ngram_keys), dtype=bool, count=len(hashes))


def _context_hashes(text: Numbers, hashes: Hashes, items: Numbers, short: set[int]) -> dict[int, list[int]]:
    """Return for each of the `short` texts the sorted hashes of the other short texts of its item."""
    of_item: dict[int, set[int]] = {}
    for value, item in zip(hashes.tolist(), items[text].tolist(), strict=True):
        of_item.setdefault(item, set()).add(value)
    pairs = zip(text.tolist(), hashes.tolist(), strict=True)
    return {number: sorted(of_item[int(items[number])] - {own}) for number, own in pairs if number in short}


def hash_item_ngrams(settings: NgramSelection, entries: Sequence[TaskItemsFile], files: Sequence[Path]) -> pa.Table:
    """Return the n-grams of all items, sorted by hash; the metadata has the counts of items by task.

    An item without a searched n-gram counts as `not_searched`.

    Raises:
        InputError: a file of items cannot be read, or lacks a searched field.
    """
    all_items: list[EvaluationItem] = list(read_items(entries, files))
    names = sorted({entry.task for entry in entries})
    tasks = np.array([names.index(item.task) for item in all_items], dtype=np.int64)
    items = np.repeat(np.arange(len(all_items)), np.array([len(item.texts) for item in all_items], dtype=np.int64))
    words, bounds = hash_text_words([text for item in all_items for text in item.texts])
    lengths = np.diff(bounds)
    text, hashes, places = _extract_ngrams(words, bounds, settings.ngram)
    is_item_text = ~_is_task_wording(hashes, items[text], tasks)
    text, hashes, places = text[is_item_text], hashes[is_item_text], places[is_item_text]
    is_short_text = lengths[text] < settings.ngram
    alone = lengths >= min(settings.alone_words, settings.ngram)
    contexts = _context_hashes(text[is_short_text], hashes[is_short_text], items, set(np.flatnonzero(~alone).tolist()))
    near = np.fromiter((bool(contexts.get(number)) for number in text.tolist()), dtype=bool, count=len(text))
    searched = (lengths[text] >= settings.minimum_words) & (alone[text] | near)
    text, hashes, places = text[searched], hashes[searched], places[searched]
    counts = {name: {"items": 0, "searched": 0, "not_searched": 0} for name in names}
    searched_items = set(items[text].tolist())
    for number, item in enumerate(all_items):
        counts[item.task]["items"] += 1
        counts[item.task]["searched" if number in searched_items else "not_searched"] += 1
    columns: dict[str, Any] = {
        "hash": hashes,
        "prefix": hash_ngrams(words, settings.minimum_words)[places],
        "task": pa.array([item.task for item in all_items], pa.string()).take(pa.array(items[text])),
        "item": pa.array([item.name for item in all_items], pa.string()).take(pa.array(items[text])),
        "text": text,
        "ngrams": np.bincount(text, minlength=len(lengths))[text],
        "words": np.minimum(lengths[text], settings.ngram),
        "context": pa.array([contexts.get(number, []) for number in text.tolist()], pa.list_(pa.uint64())),
    }
    metadata = {"ngram": settings.ngram, "minimum_words": settings.minimum_words, "tasks": counts}
    table = pa.table(columns).select(NGRAM_SCHEMA.names).cast(NGRAM_SCHEMA)
    return table.replace_schema_metadata(encode_parquet_metadata(metadata))
