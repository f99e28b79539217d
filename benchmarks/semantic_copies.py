"""Pairs of documents that are similar by TF-IDF or LSA, and that deduplication by MinHash keeps.

    PYTHONPATH=. python benchmarks/semantic_copies.py FOLDER [--sample 20]

FOLDER has files SOURCE.jsonl.gz with a text per line. Documents of at least 50 words are deduplicated with the default
settings. Those that are kept are compared by the cosine of TF-IDF vectors of their words, and of 200 dimensions of
their singular value decomposition (latent semantic analysis, Deerwester et al. 1990). A sample of the pairs is for
reading.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy import sparse

from pipeline.corpus import find_duplicates, signatures
from pipeline.corpus.documents import DocumentCollector
from pipeline.corpus.settings import Deduplication, FindDuplicatesSettings, SignatureSettings
from pipeline.corpus.text.word_hashes import hash_ngrams, hash_text_words

LEAST_WORDS, DIMENSIONS, BLOCK = 50, 200, 500
COSINES = (0.8, 0.9, 0.95, 0.99)


def read(folder: Path) -> dict[str, str]:
    """Return the texts by id."""
    texts = {}
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if len((text := json.loads(line)["text"].strip()).split()) >= LEAST_WORDS:
                    texts[f"{path.name.split('.')[0]}/{number}"] = text
    return texts


def find_copies(texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the documents with copies by MinHash, with the default settings."""
    with tempfile.TemporaryDirectory() as name:
        folder, collector = Path(name), DocumentCollector()
        for document, text in texts.items():
            row = {"id": document, "text": text, "language": "nl", "language_score": 1.0, "source": "s"}
            collector.add({**row, "license": None})
        collector.write(folder / "documents", {"source": "s", "unit": 0})
        signatures.run(SignatureSettings(), documents=folder / "documents", signatures=folder / "signatures")
        settings = FindDuplicatesSettings(deduplication=Deduplication())
        parts: dict[str, list[Path]] = {"signatures": [folder / "signatures"], "reserved": [], "pairs": []}
        find_duplicates.run(settings, **parts, documents=[folder / "documents"], duplicates=folder / "duplicates")
        return {row["id"]: row for row in pq.read_table(folder / "duplicates/s.0.parquet").to_pylist()}


def tf_idf(texts: list[str]) -> sparse.csr_matrix:
    """Return a unit vector per text: (1 + log of the count of a word) · log of its rarity; words of one text are 0."""
    hashes, bounds = hash_text_words(texts)
    _, columns = np.unique(hashes, return_inverse=True)
    shape = (len(texts), int(columns.max()) + 1)
    counts = sparse.csr_matrix((np.ones(len(columns)), columns, bounds), shape=shape)
    counts.sum_duplicates()
    documents = np.bincount(counts.indices, minlength=shape[1])
    counts.data = (1 + np.log(counts.data)) * np.log(len(texts) / documents)[counts.indices]
    vectors = counts[:, documents > 1]
    norms = np.sqrt(vectors.multiply(vectors).sum(axis=1)).A1
    return sparse.diags(1 / np.maximum(norms, 1e-12)) @ vectors


def similar_pairs(vectors: Any, least: float) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of rows with at least this cosine."""
    for start in range(0, vectors.shape[0], BLOCK):
        cosines = vectors[start : start + BLOCK] @ vectors.T
        cosines = cosines.toarray() if sparse.issparse(cosines) else cosines
        for row, other in np.argwhere(cosines >= least).tolist():
            if start + row < other:
                yield start + row, other, float(cosines[row, other])


def jaccard(one: str, other: str) -> float:
    """Return the share of different 5-grams of words that two texts have in common."""
    sets = [{*hash_ngrams(hash_text_words([text])[0], 5).tolist()} for text in (one, other)]
    return len(sets[0] & sets[1]) / max(1, len(sets[0] | sets[1]))


def main() -> None:
    """Print the number of pairs and documents by least cosine, their similarity by 5-grams, and a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=0)
    options = parser.parse_args()
    texts = read(options.folder)
    copies = find_copies(texts)
    removed = {name: row["value"] for name, row in copies.items() if row["reason"] == "near_duplicate"}
    names = [name for name in texts if (copies.get(name) or {"reason": None})["reason"] is None]
    number_of = {name: number for number, name in enumerate([*names, *removed])}
    print(f"{len(texts)} documents, {len(names)} kept, {len(removed)} near copies removed by MinHash")
    start = time.process_time()
    vectors = tf_idf([texts[name] for name in number_of])
    seconds = {"TF-IDF": time.process_time() - start}
    left, values, _ = sparse.linalg.svds(vectors, k=DIMENSIONS, random_state=np.random.default_rng(1))
    reduced: npt.NDArray[np.float64] = left * values
    reduced /= np.maximum(np.linalg.norm(reduced, axis=1, keepdims=True), 1e-12)
    seconds["LSA"] = time.process_time() - start
    for way, compared in (("TF-IDF", vectors), ("LSA", reduced)):
        start = time.process_time()
        pairs = [*similar_pairs(compared[: len(names)], min(COSINES))]
        seconds[way] += time.process_time() - start
        for least in COSINES:
            close_pairs = [(one, other) for one, other, cosine in pairs if cosine >= least]
            same = [
                float(np.asarray((compared[number_of[one]] @ compared[number_of[kept]].T).sum()))
                for one, kept in removed.items()
            ]
            chosen = random.Random(1).sample(close_pairs, min(len(close_pairs), 300))
            overlaps = sorted(jaccard(texts[names[one]], texts[names[other]]) for one, other in chosen)
            middle = f"{overlaps[len(overlaps) // 2]:.2f}" if overlaps else "none"
            later = len({other for _, other in close_pairs})
            print(
                f"{way}, {least}: {len(close_pairs)} pairs, {later} documents with an earlier one, "
                f"median Jaccard {middle}; of the near copies {sum(cosine >= least for cosine in same)} of {len(same)}"
            )
            for one, other in chosen[: options.sample]:
                ends = " | ".join(
                    f"{names[each]}: {' '.join(texts[names[each]].split())[:150]}" for each in (one, other)
                )
                print(f"  {jaccard(texts[names[one]], texts[names[other]]):.2f} {ends}")
        print(f"{way}: {seconds[way]:.0f} CPU seconds")


if __name__ == "__main__":
    main()
