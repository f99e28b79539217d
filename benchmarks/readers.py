"""Megabytes of text per CPU second and peak memory for each input format, on the same documents.

    python benchmarks/readers.py MEGABYTES [MEGABYTES …]

Two sizes show that memory does not depend on the size of a file.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments

TEXT = "de molenaar loopt elke ochtend over dijk en kijkt of het water hoger staat dan gisteren in zijn schrift"
WORDS = TEXT.split()
OPENERS: dict[str, Callable[..., Any]] = {
    "x.jsonl": open,
    "x.jsonl.gz": gzip.open,
    "x.jsonl.zst": zstandard.open,
    "x.jsonl.bz2": bz2.open,
    "x.jsonl.xz": lzma.open,
    "x.parquet": open,
}


def documents(megabytes: int) -> Iterator[dict[str, str]]:
    """Yield different documents of about 2 kB, as many as fill that many megabytes."""
    random = Random(1)
    for number in range(megabytes * 500):
        words = random.choices(WORDS, k=370)
        yield {"id": f"document-{number}", "text": f"{number} {' '.join(words)}", "url": f"https://a.example/{number}"}


def write(path: Path, megabytes: int) -> None:
    """Write the documents in the format of the file name's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(documents(megabytes))), path, row_group_size=10_000)
        return
    with OPENERS[path.name](path, "wb") as stream:
        for document in documents(megabytes):
            stream.write(json.dumps(document).encode() + b"\n")


def measure(path: Path) -> None:
    """Read a file and print what it took."""
    reader = RawTextReader(
        RawFiles("s", [(path.name, path)]), RemovedDocuments("s", "filter", MetadataMasker(PersonalData()))
    )
    start = time.process_time()
    for _ in reader.run():
        pass
    rate = reader.bytes_in / 1e6 / (time.process_time() - start)
    status = Path("/proc/self/status").read_text().split()  # getrusage would include the parent's peak
    peak = int(status[status.index("VmHWM:") + 1]) / 1024
    print(f"{path.name:12} {reader.bytes_in / 1e6:6.0f} MB of text {rate:7.1f} MB/s {peak:6.0f} MiB", flush=True)


if __name__ == "__main__":
    if Path(sys.argv[1]).is_file():
        measure(Path(sys.argv[1]))
        sys.exit()
    for size in map(int, sys.argv[1:]):
        for name in OPENERS:
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder) / name, size)
                subprocess.run([sys.executable, __file__, str(Path(folder) / name)], check=True)
