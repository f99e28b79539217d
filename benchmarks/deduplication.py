"""Speed of document signatures, and speed and memory of the search for duplicates.

    PYTHONPATH=. python benchmarks/deduplication.py --documents 1400000 [--memory-bytes 1000000000] [--jobs 4]
    PYTHONPATH=. python benchmarks/deduplication.py --texts 'FOLDER/*.jsonl.gz'

The first command writes signatures of synthetic documents, one in five a copy of another, half of these exact, and
runs the pipeline's step on them. The synthetic near duplicates have no texts to compare; `near_duplicates.py` covers
that. With several jobs it repeats the search over shares of the keys and compares the bytes. The second command signs
pieces of 2,000 bytes of real text: with the step, and with datatrove's block, with the same words and with spaCy's.
Each part runs in its own process, on one core.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

from pipeline.core.hashing import hash_file
from pipeline.corpus import equal_keys, find_duplicates, signatures
from pipeline.corpus.duplicates.minhash import MinhashSigner
from pipeline.corpus.duplicates.signature_files import CONTENT, SignatureWriter, content_hash
from pipeline.corpus.settings import (
    Deduplication,
    EqualKeysSettings,
    FindDuplicatesSettings,
    KeyComparison,
    SignatureSettings,
)
from tests.corpus.duplicates.datatrove_minhash import configuration, datatrove_block

UNIT_DOCUMENTS, BATCH_DOCUMENTS, PIECE_BYTES = 100_000, 20_000, 2000
COPY_EVERY = 5
POPULARITY = 3  # texts with more than c copies are in proportion to c^-1.5; one has 3,400 in a million documents
Array = npt.NDArray[np.uint64]


def _mixed(numbers: Array) -> Array:
    """Return the output of splitmix64 (Steele et al. 2014) at these states."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _uniform(numbers: Array) -> npt.NDArray[np.float64]:
    """Return for each number one from 0 to 1, 1 excluded."""
    return (_mixed(numbers) >> np.uint64(11)).astype(np.float64) / 2**53


def write_signatures(folder: Path, documents: int, settings: Deduplication) -> list[Path]:
    """Write the signatures of synthetic documents, a unit for each 100,000, and return the files.

    The last of every five documents is a copy of the first of some five, of few of them many times; of two copies one
    has the same text, and the other shares a certain band and each other one with the probability of texts that are
    similar to .9.
    """
    paths = []
    for unit, first in enumerate(range(0, documents, UNIT_DOCUMENTS)):
        paths.append(folder / f"web.{unit}.parquet")
        writer = SignatureWriter(paths[-1], settings, {"source": "web", "unit": unit})
        for start in range(first, min(first + UNIT_DOCUMENTS, documents), BATCH_DOCUMENTS):
            number = np.arange(start, min(start + BATCH_DOCUMENTS, documents), dtype=np.uint64)
            five = number // COPY_EVERY
            copies = number % COPY_EVERY == COPY_EVERY - 1
            fives = -(-documents // COPY_EVERY)
            chosen = (_uniform(five) ** POPULARITY * fives).astype(np.uint64)
            original = np.where(copies, chosen * COPY_EVERY, number)
            exact = copies & (five % 2 == 0)
            columns: list[Any] = [[f"web/part-{unit:05d}.jsonl.gz/{place}" for place in number.tolist()]]
            columns += [(_mixed(original) % np.uint64(3000)).astype(np.int64)] * 2
            columns += [_mixed(np.where(exact, original, number) * 64 + place) for place in range(len(CONTENT))]
            for band in range(settings.bands):
                drawn = _uniform(number * 64 + 2 + band)
                shared = exact | (number % settings.bands == band) | (drawn < 0.9**settings.rows)
                columns.append(_mixed(np.where(copies & shared, original, number) * 64 + 32 + band))
            writer.write(pa.record_batch([pa.array(column) for column in columns], schema=writer.schema))
        writer.close()
    return paths


def peak_bytes() -> int:
    """Return the largest resident memory of this process."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def share_keys(folder: Path, settings: Deduplication, share: int) -> None:
    """Compare the keys of one share, as a job of its own does."""
    keys = settings.model_dump(include=set(KeyComparison.model_fields))
    (folder / "pairs").mkdir(exist_ok=True)
    equal_keys.run(
        EqualKeysSettings(share=share, shares=settings.jobs, **keys),
        signatures=sorted(folder.glob("web.*.parquet")),
        reserved=[],
        pairs=folder / "pairs" / f"{share:03d}.parquet",
    )


def hash_of(duplicates: Path) -> str:
    """Return one sha256 of the names and bytes of the files of a folder."""
    files = [f"{path.name} {hash_file(path)}" for path in sorted(duplicates.iterdir())]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def find_copies(folder: Path, settings: Deduplication, pairs: list[Path], duplicates: str) -> None:
    """Find the copies, and print how many there are and the hash of what is written."""
    counts = find_duplicates.run(
        FindDuplicatesSettings(deduplication=settings),
        signatures=(signed := sorted(folder.glob("web.*.parquet"))),
        documents=signed,  # there are no texts, and they are not asked for
        reserved=[],
        pairs=pairs,
        duplicates=folder / duplicates,
    )
    known, result = counts["documents"] // COPY_EVERY, counts["exact_duplicate"] + counts["near_duplicate"]
    print(f"{result} of {known} copies found, sha256 of all files {hash_of(folder / duplicates)}")
    if result != known:
        sys.exit("the copies that were found are not those that were made")


def measured(what: str, work: Callable[[], None]) -> None:
    """Do something and print how long it took and the memory of this process."""
    before_bytes, start, start_cpu = peak_bytes(), time.monotonic(), time.process_time()
    work()
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - start_cpu
    memory = f"peak memory {peak_bytes() / 1e6:,.0f} MB, {before_bytes / 1e6:,.0f} MB of it before the step"
    print(f"{what}: {seconds:.1f} s, {cpu_seconds:.1f} CPU s, {memory}", flush=True)


def pieces(patterns: list[str], documents: int) -> list[Document]:
    """Return pieces of 2,000 bytes of the texts of the files, about as many from each."""
    files = sorted(file for pattern in patterns for file in glob.glob(pattern))
    results = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts: Iterator[bytes] = (json.loads(line)["text"].encode() for line in lines)
            parts = (text[at : at + PIECE_BYTES] for text in texts for at in range(0, len(text), PIECE_BYTES))
            whole = (part.decode(errors="ignore") for part in parts if len(part) == PIECE_BYTES)
            few = [text for text, _ in zip(whole, range(-(-documents // len(files))), strict=False)]
        results += [Document(text=text, id=f"{Path(file).name}/{place}") for place, text in enumerate(few)]
    return results


def sign(way: str, texts: list[Document], folder: Path) -> None:
    """Sign the texts in one way, and print documents/s."""
    settings = Deduplication()
    if way == "the step":
        unit = {"source": "texts", "unit": 0}
        pairs = ((text.id, text.text, None) for text in texts)

        def work() -> object:
            return signatures.write_document_signatures(pairs, folder / "signatures", SignatureSettings(), unit)
    else:
        block = datatrove_block(str(folder), settings)
        if way != "datatrove, same words":
            block = MinhashDedupSignature(str(folder), configuration(settings), language="nld")
        block.get_shingles(texts[0].text)
        work = lambda: block.run(iter(texts))  # noqa: E731
    # What is loaded once is not measured.
    MinhashSigner(settings).band_keys(texts[0].text)
    content_hash(texts[0].text)
    start = time.process_time()
    work()
    seconds = time.process_time() - start
    print(
        f"{way}: {len(texts) / seconds:,.0f} documents/s of a core, peak memory {peak_bytes() / 1e6:,.0f} MB",
        flush=True,
    )


WAYS = ("the step", "datatrove, same words", "datatrove, spaCy's words")


def main() -> None:
    """Run one part, or each part in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, help="how many synthetic documents; with --texts, how many pieces")
    parser.add_argument("--memory-bytes", type=int, default=Deduplication().memory_bytes)
    parser.add_argument(
        "--jobs", type=int, default=1, help="find the copies a second time, with jobs that share the keys"
    )
    parser.add_argument("--texts", nargs="*", default=[], help="gzipped JSON lines with a text")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the signatures are kept; where they are, none are made")
    given = parser.parse_args()
    settings = Deduplication(memory_bytes=given.memory_bytes, minimum_jaccard=0, jobs=given.jobs)
    if given.part == "one job":
        measured(given.part, lambda: find_copies(given.folder, settings, [], "duplicates"))
    elif given.part == "joining the shares":
        pairs = sorted((given.folder / "pairs").iterdir())
        measured(given.part, lambda: find_copies(given.folder, settings, pairs, "duplicates of shares"))
    elif given.part and given.part.startswith("share "):
        measured(given.part, lambda: share_keys(given.folder, settings, int(given.part.removeprefix("share "))))
    elif given.part:
        sign(given.part, pieces(given.texts, given.documents or 6000), given.folder)
    else:
        shares = [*(f"share {part}" for part in range(given.jobs)), "joining the shares"] if given.jobs > 1 else []
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.folder or Path(temporary)
            folder.mkdir(exist_ok=True)
            if not given.texts and not list(folder.glob("web.*.parquet")):
                write_signatures(folder, given.documents or UNIT_DOCUMENTS, settings)
            for name in ("pairs", "duplicates", "duplicates of shares"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for part in WAYS if given.texts else ["one job", *shares]:
                command = [sys.executable, *sys.argv, "--part", part, "--folder", str(folder)]
                subprocess.run(command, check=True)
            if shares and hash_of(folder / "duplicates") != hash_of(folder / "duplicates of shares"):
                sys.exit("one job and several find other copies")


if __name__ == "__main__":
    main()
