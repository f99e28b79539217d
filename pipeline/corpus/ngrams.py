"""Hashes the n-grams of evaluation items, so that the corpus can be searched for them.

Every text of an item counts, at any depth: question, choices, sentences. What is written holds hashes and no words, so
that the results of a run never publish a benchmark.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.corpus.contamination_settings import NgramsSettings
from pipeline.corpus.text.word_hashes import hash_ngrams, hash_texts
from pipeline.ground.errors import InputError

NGRAM_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("prefix", pa.uint64(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("text", pa.int64(), nullable=False),
        pa.field("ngrams", pa.int64(), nullable=False),
    ]
)


def _rows(path: Path, name: str) -> Iterator[Any]:
    """Yield the items of a file: JSON lines or one JSON array, CSV or TSV, each also with .gz, or Parquet."""
    if name.endswith(".parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
        return
    content = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    text, stem = content.decode("utf-8-sig"), name.removesuffix(".gz")
    if stem.endswith((".csv", ".tsv")):
        yield from csv.reader(io.StringIO(text, newline=""), delimiter="\t" if stem.endswith(".tsv") else ",")
    elif text.lstrip().startswith("["):
        yield from json.loads(text)
    else:
        yield from (json.loads(line) for line in text.split("\n") if line.strip())


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, whatever it is nested in; what has no white space is an id or a label."""
    if isinstance(value, str) and len(value.split(maxsplit=1)) > 1:
        yield unicodedata.normalize("NFC", value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _ngrams(texts: list[str], settings: NgramsSettings) -> dict[str, npt.NDArray[Any]]:
    """Return the different n-grams of each text that is long enough: its number, their hashes and their first words'.

    A text with fewer words than an n-gram is one n-gram; of the first words, as many count as a text must have.
    """
    words, bounds = hash_texts(texts)
    lengths = np.diff(bounds)
    first_words = hash_ngrams(words, settings.minimum_words)
    found = []
    for length in range(settings.minimum_words, settings.ngram + 1):
        number = np.where(lengths == length, 1, 0) if length < settings.ngram else np.maximum(0, lengths - length + 1)
        text = np.repeat(np.arange(len(texts)), number)
        places = bounds[text] + np.arange(len(text)) - np.repeat(np.cumsum(number) - number, number)
        found.append((text, hash_ngrams(words, length)[places], first_words[places]))
    text, hashes, prefixes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((text, hashes))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(hashes[order]) != 0) | (np.diff(text[order]) != 0)
    kept = order[new]
    return {"text": text[kept], "hash": hashes[kept], "prefix": prefixes[kept]}


def run(settings: NgramsSettings, *, files: list[Path], ngrams: Path) -> dict[str, Any]:
    """Write the n-grams of all items, sorted by hash; return how many items each task has, and how many are searched.

    An item of which every text has fewer than `minimum_words` is one of those not searched; it is none of the items
    in the file.

    Raises:
        InputError: a file of items cannot be read.
    """
    texts: list[str] = []
    owners: list[tuple[str, str]] = []
    tasks: dict[str, dict[str, int]] = {}
    several = [entry.task for entry in settings.items]
    for entry, path in zip(settings.items, files, strict=True):
        counts = tasks.setdefault(entry.task, {"items": 0, "searched": 0})
        try:
            for number, row in enumerate(_rows(path, entry.name), 1):
                item = str(number) if several.count(entry.task) == 1 else f"{entry.name} {number}"
                found = sorted(set(_texts(row)))
                texts += found
                owners += [(entry.task, item)] * len(found)
                counts["items"] += 1
        except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise InputError(f"the items of the task {entry.task} in {path} cannot be read: {problem}") from None
    columns: dict[str, Any] = _ngrams(texts, settings)
    sizes = np.bincount(columns["text"], minlength=len(texts))
    for owner in {owners[number] for number in np.flatnonzero(sizes)}:
        tasks[owner[0]]["searched"] += 1
    for counts in tasks.values():
        counts["not_searched"] = counts["items"] - counts["searched"]
    for place, name in enumerate(("task", "item")):
        columns[name] = pa.array([owner[place] for owner in owners], pa.string()).take(pa.array(columns["text"]))
    table = pa.table(columns | {"ngrams": sizes[columns["text"]]}).select(NGRAM_SCHEMA.names).cast(NGRAM_SCHEMA)
    metadata = {"ngram": settings.ngram, "minimum_words": settings.minimum_words, "tasks": tasks}
    stored = {"polder": json.dumps(metadata, sort_keys=True)}
    pq.write_table(table.replace_schema_metadata(stored), ngrams, compression="zstd")
    print(f"{table.num_rows} n-grams of the items of {len(tasks)} tasks", flush=True)
    return {"ngrams": table.num_rows, "tasks": tasks}
