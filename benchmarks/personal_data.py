"""Recall, precision and speed of the search for personal data in seeded texts, and in labeled passages.

    python benchmarks/personal_data.py [--texts 10000] [--seed 1] [--corpus FOLDER] [--errors]

FOLDER holds real text (*.jsonl.gz with the key "text"), for which only speed and counts by kind are printed. The exit
code is 1 if a kind misses its threshold in the seeded texts. The labeled passages are of tests/corpus/personal_data/
contexts.txt; their intervals, of 95 %, take each value as a unit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.core.confidence_intervals import proportion_interval  # noqa: E402
from pipeline.corpus.personal_data.text_masking import find_personal_data  # noqa: E402
from tests.corpus.personal_data.contexts import read_contexts  # noqa: E402
from tests.corpus.personal_data.letters import Letters  # noqa: E402
from tests.corpus.personal_data.recall import PRECISION, RECALL, SETTINGS, measure, shares  # noqa: E402
from tests.corpus.personal_data.texts import Writer  # noqa: E402


def speed(texts: list[str]) -> tuple[float, Counter[str]]:
    """Return the megabytes that one core reads in a second, and how much was found of each kind."""
    result: Counter[str] = Counter()
    began = time.process_time()
    for text in texts:
        result.update(span.kind for span in find_personal_data(text, SETTINGS))
    seconds = time.process_time() - began
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds, result


def corpus(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of every file in a folder."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield path.name, [json.loads(line)["text"] for line in lines]


def share_with_interval(right: int, of: int) -> str:
    """Return a share of values with its interval."""
    if not of:
        return "-"
    share = proportion_interval(np.arange(of) < right, np.ones(of))
    low_high = "" if share.low is None or share.high is None else f" ({share.low:.3f} to {share.high:.3f})"
    return f"{right}/{of} {share.value:.3f}{low_high}"


def main() -> int:
    """Print the tables, one for each of the two writers of texts; return 1 where a kind misses its threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--errors", action="store_true", help="print what was missed or wrong: invented values only")
    arguments = parser.parse_args()
    missed = False
    for writer in (Writer(arguments.seed), Letters(arguments.seed)):
        texts = [writer.write() for _ in range(arguments.texts)]
        print(f"{type(writer).__name__:14}{'there':>8}{'recall':>9}{'precision':>11}")
        for kind, counts in measure(texts, arguments.errors).items():
            recall, precision = shares(counts)
            missed |= recall < RECALL or precision < PRECISION
            print(f"{kind:14}{counts[0]:8}{recall:9.4f}{precision:11.4f}")
        print(f"seeded texts: {speed([text.text for text in texts])[0]:.1f} MB/s/core")
    for part, passages in read_contexts().items():
        print(f"part {part.upper()}, {len(passages)} passages")
        for kind, (there, right, result) in measure(passages, arguments.errors).items():
            print(f"{kind:14}{share_with_interval(right, there):>32}{share_with_interval(right, result):>32}")
    if arguments.corpus:
        total_bytes, total_seconds, total = 0, 0.0, Counter[str]()
        for name, read in corpus(arguments.corpus):
            rate, result = speed(read)
            size = sum(len(text.encode()) for text in read)
            total_bytes, total_seconds, total = total_bytes + size, total_seconds + size / 1e6 / rate, total + result
            print(f"{name}: {size / 1e6:.1f} MB, {rate:.1f} MB/s/core, {dict(sorted(result.items()))}")
        print(
            f"all: {total_bytes / 1e6:.1f} MB, {total_bytes / 1e6 / total_seconds:.1f} MB/s/core, "
            f"{dict(sorted(total.items()))}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
