"""Repeated passages and lines of real text: what is removed, at which cost, and whether it is exact.

    PYTHONPATH=. python benchmarks/repeated_text.py FOLDER [--check] [--words 50] [--sources NAME …]

FOLDER has files SOURCE.jsonl.gz with a text and an address per line, as in `shared/corpora/text`. Copies of documents
are removed first. Two ways that share no code with the step find the passages too: a dictionary of all windows, and a
suffix array of the words (libdivsufsort). The suffix array also gives what the rule of Lee et al. (2022) removes, by
bytes of whole words: all occurrences of what is repeated, not all but one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydivsufsort import divsufsort, kasai

from pipeline.corpus import deduplicate, find_duplicates, signatures
from pipeline.corpus.documents import DocumentCollector
from pipeline.corpus.settings import DeduplicateSettings, Deduplication, FindDuplicatesSettings, SignatureSettings

WORD = re.compile(rb"[^ \t\n\r\f\v]+")


def write_documents(path: Path, into: Path) -> int:
    """Write the texts of a source as filtered documents; return their bytes."""
    source, collector, size = path.name.split(".")[0], DocumentCollector(), 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            content = json.loads(line)
            if text := content["text"].strip():
                row = {"id": f"{source}/{number}", "text": text, "language": "nl", "language_score": 1.0}
                collector.add({**row, "source": source, "license": None, "url": content["url"]})
                size += len(text.encode())
    collector.write(into, {"source": source, "unit": 0, "stage": "filter"})
    return size


def run_steps(folder: Path, files: list[Path], section: Deduplication) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the rows of find_duplicates by id, and the CPU seconds of the steps."""
    signed, seconds = [], dict.fromkeys(("signatures", "find_duplicates", "deduplicate"), 0.0)
    out = Path(tempfile.mkdtemp(dir=folder))
    for file in files:
        start = time.process_time()
        signed.append(out / f"{file.name}.signatures")
        keys = section.model_dump(include=set(SignatureSettings.model_fields))
        signatures.run(SignatureSettings(**keys), documents=file, signatures=signed[-1])
        seconds["signatures"] += time.process_time() - start
    start = time.process_time()
    settings = FindDuplicatesSettings(deduplication=section)
    parts: dict[str, list[Path]] = {"signatures": signed, "documents": files, "reserved": [], "pairs": []}
    find_duplicates.run(settings, **parts, duplicates=out / "duplicates")
    seconds["find_duplicates"] += time.process_time() - start
    start = time.process_time()
    for file in files:
        names = {"deduplicated": out / f"{file.name}.kept", "removed": out / f"{file.name}.removed"}
        deduplicate.run(
            DeduplicateSettings(), documents=file, duplicates=out / "duplicates" / f"{file.stem}.0.parquet", **names
        )
    seconds["deduplicate"] += time.process_time() - start
    seconds["bytes of signatures"] = sum(path.stat().st_size for path in signed)
    rows = [row for file in sorted((out / "duplicates").iterdir()) for row in pq.read_table(file).to_pylist()]
    return {row["id"]: row for row in rows}, seconds


def find_with_dictionary(texts: list[list[bytes]], size: int) -> list[list[bool]]:
    """Return whether each word is in a window of `size` words of an earlier document, by a dictionary of windows."""
    seen: dict[bytes, int] = {}
    results = []
    for number, words in enumerate(texts):
        repeated = [False] * len(words)
        for start in range(len(words) - size + 1):
            window = hashlib.sha256(b" ".join(words[start : start + size])).digest()
            if seen.setdefault(window, number) != number:
                repeated[start : start + size] = [True] * size
        results.append(repeated)
    return results


def find_with_suffix_array(texts: list[list[bytes]], size: int) -> list[list[list[bool]]]:
    """Return whether each word is in a window of an earlier document, of an earlier place, and of any other place."""
    content = b"".join(b"\n " + b" ".join(words) + b" " for words in texts)
    data = np.frombuffer(content, dtype=np.uint8).copy()
    order = divsufsort(data)
    common = kasai(data, order)  # with the next suffix in order
    begins, ends, first = [], [], [0]
    place = 0
    for words in texts:
        place += 1
        starts = place + np.cumsum([0, *(len(word) + 1 for word in words)])  # of the space before each word
        number = max(0, len(words) - size + 1)
        begins.append(starts[:number])
        ends.append(starts[size : size + number] + 1)
        first.append(first[-1] + number)
        place = int(starts[-1]) + 1
    starts, lengths = np.concatenate(begins), np.concatenate(ends) - np.concatenate(begins)
    window_at = np.full(len(data), -1, dtype=np.int64)
    window_at[starts] = np.arange(len(starts))
    document = np.repeat(np.arange(len(texts)), np.diff(first))
    in_earlier, before, anywhere = (np.zeros(len(starts), dtype=bool) for _ in range(3))
    group: list[int] = []
    least = 0

    def close() -> None:
        if len(group) > 1:
            windows = np.sort(group)
            anywhere[windows] = before[windows[1:]] = True
            in_earlier[windows[document[windows] != document[windows[0]]]] = True

    for rank, suffix in enumerate(order.tolist()):
        window = int(window_at[suffix])
        if window >= 0:
            if group and least < lengths[group[0]]:
                close()
                group = []
            group.append(window)
            least = int(common[rank])
        else:
            least = min(least, int(common[rank]))
    close()
    results = []
    for chosen in (in_earlier, before, anywhere):
        marked = []
        for number, words in enumerate(texts):
            repeated = [False] * len(words)
            for start in np.flatnonzero(chosen[first[number] : first[number + 1]]).tolist():
                repeated[start : start + size] = [True] * size
            marked.append(repeated)
        results.append(marked)
    return results


def check_passages(files: list[Path], rows: dict[str, Any], size: int) -> str:
    """Return the words that the step and the two other ways mark, and the bytes by Lee's rule."""
    documents = [row for file in files for row in pq.read_table(file, columns=["id", "text", "id_hash"]).to_pylist()]
    kept = [row for row in documents if (rows.get(row["id"]) or {"reason": None})["reason"] is None]
    kept.sort(key=lambda row: row["id_hash"])
    texts, of_step, total = [], [], 0
    for row in kept:
        content = row["text"].encode()
        places = [match.span() for match in WORD.finditer(content)]
        texts.append([content[start:end] for start, end in places])
        total += len(content)
        listed = [span for span in (rows.get(row["id"]) or {}).get("spans") or [] if span["reason"][0] == "r"]
        of_step.append([any(span["start"] <= start < span["end"] for span in listed) for start, _ in places])
    by_dictionary = find_with_dictionary(texts, size)
    by_suffixes, before, anywhere = find_with_suffix_array(texts, size)
    marked = sum(map(sum, of_step))

    def share(repeated: list[list[bool]]) -> str:
        pairs = zip(chain.from_iterable(texts), chain.from_iterable(repeated), strict=True)
        return f"{sum(len(word) + 1 for word, one in pairs if one) / total:.2%}"

    return (
        f"{marked} of {sum(map(len, texts))} words are in passages of an earlier document; equal to those of the "
        f"dictionary: {of_step == by_dictionary}, of the suffix array: {of_step == by_suffixes}; {share(of_step)} of "
        f"the bytes, {share(before)} with those of the same document, {share(anywhere)} if no occurrence stays"
    )


def main() -> None:
    """Print, for each source and all together, what is removed and the cost, and compare with the other ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", nargs="*")
    for name, default in (("lines", 20), ("documents", 10), ("words", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true", help="compare with a dictionary and a suffix array")
    options = parser.parse_args()
    lines = {"line_characters": options.lines, "line_documents": options.documents}
    ways = {"none": {}, "lines": lines, "passages": {"passage_words": options.words}}
    with tempfile.TemporaryDirectory() as name:
        folder, sizes = Path(name), {}
        for path in sorted(options.folder.glob("*.jsonl.gz")):
            source = path.name.split(".")[0]
            if not options.sources or source in options.sources:
                sizes[folder / f"{source}.parquet"] = write_documents(path, folder / f"{source}.parquet")
        files, total = [*sizes], sum(sizes.values())
        removed: dict[str, Counter[str]] = {}
        run_steps(folder, files[:1], Deduplication(**lines, passage_words=options.words))  # compiles
        for way, keys in ways.items():
            rows, seconds = run_steps(folder, files, Deduplication(**keys))
            for row in rows.values():
                for span in row.get("spans") or []:
                    counts = removed.setdefault(row["id"].split("/")[0], Counter())
                    counts[way] += span["end"] - span["start"]
            print(f"{way}: { ({step: round(figure, 2) for step, figure in seconds.items()}) } for {total / 1e6:.1f} MB")
        for path, size in sizes.items():
            counts = removed.get(path.stem, Counter())
            print(f"{path.stem}: {size / 1e6:.2f} MB, { ({way: f'{counts[way] / size:.2%}' for way in ways}) }")
        if options.check:
            print(check_passages(files, rows, options.words))


if __name__ == "__main__":
    main()
