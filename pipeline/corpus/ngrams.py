"""Hashes the n-grams of evaluation items for the search in the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.corpus.decontamination.item_ngrams import hash_item_ngrams
from pipeline.corpus.decontamination.settings import NgramsSettings
from pipeline.corpus.documents import read_file_metadata


def run(settings: NgramsSettings, *, files: list[Path], ngrams: Path) -> dict[str, Any]:
    """Write the n-grams of all items, sorted by hash; return the numbers of items and searched items by task.

    Raises:
        InputError: a file of items cannot be read, or lacks a searched field.
    """
    table = hash_item_ngrams(settings, settings.items, files)
    pq.write_table(table, ngrams, compression="zstd")
    tasks = read_file_metadata(ngrams)["tasks"]
    print(f"{table.num_rows} n-grams of the items of {len(tasks)} tasks", flush=True)
    return {"ngrams": table.num_rows, "tasks": tasks}
