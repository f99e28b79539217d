"""Similarity of near duplicates to the documents kept for them, and the cost of comparing.

    PYTHONPATH=. python benchmarks/near_duplicates.py 'FOLDER/*.jsonl.gz'

Reads real texts (at most 200,000 characters each) and adds a copy of every fifth, with up to one word in twelve
replaced by another word of the same text. The step searches with `minimum_jaccard: 0` and with the default, in the
usual memory and in 40 MB. Each similarity is compared with Python sets over datatrove's simplified text.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import random
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datatrove.utils.text import simplify_text

from pipeline.corpus import find_duplicates, signatures
from pipeline.corpus.documents import DocumentCollector
from pipeline.corpus.settings import Deduplication, FindDuplicatesSettings, SignatureSettings
from pipeline.corpus.text.word_splitting import word_tokenize

CHARACTERS, COPY_EVERY, CHANGED_EVERY, LITTLE_BYTES = 200_000, 5, 12, 40_000_000


def read(pattern: str) -> dict[str, str]:
    """Return the texts by id, and changed copies of some of them."""
    draw, texts = random.Random(1), {}
    for name in sorted(glob.glob(pattern)):
        with gzip.open(name, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if (text := json.loads(line)["text"][:CHARACTERS]).strip():
                    texts[f"{Path(name).name}/{number}"] = text
    originals = [*texts]
    for number in range(len(originals) // COPY_EVERY):
        words = texts[draw.choice(originals)].split(" ")
        for _ in range(draw.randrange(max(2, len(words) // CHANGED_EVERY))):
            words[draw.randrange(len(words))] = draw.choice(words)
        texts[f"copy/{number}"] = " ".join(words)
    return texts


def run_deduplication(folder: Path, section: Deduplication) -> tuple[bytes, list[dict[str, Any]], float]:
    """Return what the step writes, its rows, and the CPU seconds that it took."""
    start = time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        find_duplicates.run(
            FindDuplicatesSettings(deduplication=section),
            signatures=[folder / "signatures"],
            documents=[folder / "documents"],
            reserved=[],
            pairs=[],
            duplicates=Path(name) / "duplicates",
        )
        seconds, path = time.process_time() - start, Path(name) / "duplicates/s.0.parquet"
        return path.read_bytes(), pq.read_table(path).to_pylist(), seconds


def main() -> None:
    """Print the documents that each way removes, their similarity, and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="gzipped JSON lines with a text")
    texts = read(parser.parse_args().pattern)

    @cache
    def n_grams(name: str) -> set[tuple[str, ...]]:
        words = [word for word in word_tokenize(simplify_text(texts[name])) if word.strip()]
        return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}

    def jaccard(one: str, other: str) -> float:
        return len(n_grams(one) & n_grams(other)) / len(n_grams(one) | n_grams(other))

    with tempfile.TemporaryDirectory() as name:
        folder, collector = Path(name), DocumentCollector()
        for document, text in texts.items():
            row = {"id": document, "text": text, "language": "nl", "language_score": 1.0, "source": "s"}
            collector.add({**row, "license": "CC0-1.0"})
        collector.write(folder / "documents", {"source": "s", "unit": 0})
        start = time.process_time()
        signatures.run(SignatureSettings(), documents=folder / "documents", signatures=folder / "signatures")
        print(f"{len(texts)} documents, {sum(map(len, texts.values())) / 1e6:.0f} million characters")
        print(f"signing: {time.process_time() - start:.1f} CPU seconds")
        least = Deduplication().minimum_similarity
        for section in (Deduplication(minimum_jaccard=0), Deduplication()):
            written, rows, seconds = run_deduplication(folder, section)
            near = [row for row in rows if row["reason"] == "near_duplicate"]
            figures = [jaccard(row["id"], row["value"]) for row in near]
            below, far = (sum(figure < bound for figure in figures) for bound in (least, 0.3))
            print(
                f"minimum_jaccard {section.minimum_similarity:.3f}: {len(near)} near copies go, {below} of them below "
                f"{least:.3f}, {far} below 0.3; {seconds:.1f} CPU seconds"
            )
        others = sum(row["jaccard"] != figure for row, figure in zip(near, figures, strict=True))
        kept = [row for row in rows if row["reason"] is None]
        similar = sum(
            one["cluster"] == other["cluster"] and jaccard(one["id"], other["id"]) >= least
            for place, one in enumerate(kept)
            for other in kept[:place]
        )
        same = run_deduplication(folder, Deduplication(memory_bytes=LITTLE_BYTES))[0] == written
        print(f"{others} figures differ from those of sets of Python, {similar} pairs that are kept are alike")
        print(f"in {LITTLE_BYTES / 1e6:.0f} MB the result has {'the same' if same else 'other'} bytes")
    if others or similar or below or not same:
        sys.exit("near copies are not decided as they should be")


if __name__ == "__main__":
    main()
