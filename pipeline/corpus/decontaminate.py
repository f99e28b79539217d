"""Removes the documents of one unit that contain evaluation items, which makes its final documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.corpus.contamination_settings import DecontaminateSettings
from pipeline.corpus.documents import DocumentWriter, read_metadata, write_removed
from pipeline.corpus.removal import CONTAMINATED
from pipeline.corpus.text.word_hashes import extend, hash_ngrams, hash_texts

HIT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("found", pa.int64(), nullable=False),
        pa.field("ngrams", pa.int64(), nullable=False),
    ]
)
_SIEVE_PER_PREFIX = 16  # slots of the sieve for each n-gram: one in 16 other runs of words passes it


class Items:
    """The n-grams of evaluation items, to be found in texts."""

    def __init__(self, ngrams: Path, minimum_overlap: float) -> None:
        described = read_metadata(ngrams)
        table = pq.read_table(ngrams)
        self.tasks: dict[str, dict[str, int]] = described["tasks"]
        self._lengths = range(described["minimum_words"], described["ngram"] + 1)
        self._hashes = table["hash"].to_numpy()
        self._texts = table["text"].to_numpy()
        self._ngrams = table["ngrams"].to_numpy()
        self._names = table.select(["task", "item"])
        self._needed = np.maximum(1, np.ceil(minimum_overlap * self._ngrams - 1e-9))
        self._prefixes = np.unique(table["prefix"].to_numpy())
        slots = 1 << max(10, (len(self._prefixes) * _SIEVE_PER_PREFIX).bit_length())
        self._mask = np.uint64(slots - 1)
        self._sieve = np.zeros(slots, dtype=bool)
        self._sieve[self._prefixes & self._mask] = True

    def _pairs(self, words: npt.NDArray[np.uint64], bounds: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield (document, row of an n-gram) of all n-grams that documents contain, shape (pairs, 2).

        Where the first words of no n-gram stand, none begins; the others grow word by word to every length.
        """
        shortest = self._lengths[0]
        hashes = hash_ngrams(words, shortest)
        places = np.flatnonzero(self._sieve[hashes & self._mask])
        hashes = hashes[places]
        for length in self._lengths:
            documents = np.searchsorted(bounds, places, side="right") - 1
            inside = places + length <= bounds[documents + 1]
            if length == shortest:
                at = np.minimum(np.searchsorted(self._prefixes, hashes), len(self._prefixes) - 1)
                inside &= self._prefixes[at] == hashes
            places, documents, hashes = places[inside], documents[inside], hashes[inside]
            if length > shortest:
                hashes = extend(hashes, words[places + length - 1], length - 1)
            first = np.searchsorted(self._hashes, hashes)
            number = np.searchsorted(self._hashes, hashes, side="right") - first
            found = np.unique(np.stack([documents, first, number], axis=1)[number > 0], axis=0)
            sizes = found[:, 2]
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            yield np.stack([np.repeat(found[:, 0], sizes), np.repeat(found[:, 1], sizes) + within], axis=1)

    def find(self, texts: list[str]) -> Iterator[tuple[int, str, str, int, int]]:
        """Yield (number of the text, task, item, n-grams found, n-grams) of items that texts contain, in order.

        An item stands once for a text, with that of its own texts of which most n-grams were found.
        """
        if not len(self._hashes):
            return
        rows = np.concatenate(list(self._pairs(*hash_texts(texts))))
        keys, first, found = np.unique(
            np.stack([rows[:, 0], self._texts[rows[:, 1]]], axis=1), axis=0, return_index=True, return_counts=True
        )
        row = rows[first, 1]
        enough = found >= self._needed[row]
        names = self._names.take(row[enough])
        best: dict[tuple[int, str, str], tuple[int, int]] = {}
        for document, task, item, number, size in zip(
            keys[enough, 0].tolist(),
            names["task"].to_pylist(),
            names["item"].to_pylist(),
            found[enough].tolist(),
            self._ngrams[row[enough]].tolist(),
            strict=True,
        ):
            best[document, task, item] = max(best.get((document, task, item), (0, 0)), (number, size))
        for key, counts in sorted(best.items()):
            yield *key, *counts


def run(
    settings: DecontaminateSettings, *, documents: Path, ngrams: Path, final: Path, removed: Path, hits: Path
) -> dict[str, Any]:
    """Write the documents without items, the removed ones, and every item that was found; return their numbers.

    The value of a removed document is `TASK: ITEM`, of its items the one of which most n-grams were found.
    """
    items = Items(ngrams, settings.minimum_overlap)
    known = read_metadata(documents)
    unit = {"source": known["source"], "unit": known["unit"], "stage": "decontaminate"}
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    with (
        pq.ParquetFile(documents) as file,
        DocumentWriter(final, file.schema_arrow.remove_metadata()) as writer,
    ):
        writer.metadata |= {**unit, "documents_in": known["documents"], "bytes_in": known["bytes"]}
        for group in range(file.num_row_groups):
            table = file.read_row_group(group).replace_schema_metadata(None)
            texts, ids = table["text"].to_pylist(), table["id"].to_pylist()
            best: dict[int, tuple[int, str]] = {}
            for number, task, item, matched, size in items.find(texts):
                found.append({"id": ids[number], "task": task, "item": item, "found": matched, "ngrams": size})
                if matched > best.get(number, (0, ""))[0]:
                    best[number] = matched, f"{task}: {item}"
            for number, (_, value) in best.items():
                rows.append(
                    {
                        "id": ids[number],
                        "source": unit["source"],
                        "stage": "decontaminate",
                        "reason": CONTAMINATED,
                        "value": value,
                        "bytes": len(texts[number].encode()),
                        "language": table["language"][number].as_py(),
                    }
                )
            clean = np.ones(len(ids), dtype=bool)
            clean[list(best)] = False
            writer.write(table.filter(pa.array(clean)))
    write_removed(removed, rows, unit)
    stored = {"polder": json.dumps({**unit, "tasks": items.tasks}, sort_keys=True)}
    listed = pa.Table.from_pylist(found, schema=HIT_SCHEMA).sort_by([(name, "ascending") for name in HIT_SCHEMA.names])
    pq.write_table(listed.replace_schema_metadata(stored), hits, compression="zstd")
    print(f"{unit['source']}.{unit['unit']}: {len(rows)} documents contain evaluation items", flush=True)
    return {
        "documents_in": known["documents"],
        "bytes_in": known["bytes"],
        "documents_out": writer.metadata["documents"],
        "bytes_out": writer.metadata["bytes"],
        "removed": {CONTAMINATED: len(rows)} if rows else {},
        "tasks": {
            task: pc.count_distinct(listed.filter(pc.equal(listed["task"], task))["id"]).as_py()
            for task in pc.unique(listed["task"]).to_pylist()
        },
    }
