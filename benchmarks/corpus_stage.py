"""Speed and memory of the whole corpus stage, against datatrove composed of the same filters.

    python benchmarks/corpus_stage.py DATA [--preset fineweb2] [--every 1]

DATA is a folder of *.jsonl.gz with `text`; every N-th document is read. Both sides read the same file on one core,
each in its own process, with the same language model and thresholds, and write documents without near duplicates.
Polder's steps: filter, signatures, find_duplicates, deduplicate. Datatrove's: its reader, ftfy, py3langid in its
documented way, its C4, Gopher and FineWeb filters, PII and writer, then its four MinHash steps and a writer, with
spaCy's words, its default. Polder's time includes what only Polder does: ten kinds of personal data instead of two,
exact duplicates, reasons of removal, sorted Parquet. Neither side decontaminates, because datatrove's block needs
lighteval.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from datatrove.pipeline.dedup.minhash import (  # noqa: E402
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader  # noqa: E402
from datatrove.pipeline.writers import JsonlWriter  # noqa: E402

from benchmarks.comparison import measured, peak_bytes, texts  # noqa: E402
from benchmarks.filters import our_filter, stock_filter  # noqa: E402
from pipeline.corpus import deduplicate, find_duplicates, signatures  # noqa: E402
from pipeline.corpus.document_streams import kept_documents_schema, read_deduplicated_documents  # noqa: E402
from pipeline.corpus.documents import DocumentWriter  # noqa: E402
from pipeline.corpus.filter import run_blocks  # noqa: E402
from pipeline.corpus.rules.presets import PRESETS  # noqa: E402
from pipeline.corpus.settings import DeduplicateSettings, Deduplication, FindDuplicatesSettings, SignatureSettings  # noqa: E402
from tests.corpus.duplicates.datatrove_minhash import configuration  # noqa: E402


class Clock:
    """CPU seconds of each step of this process, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.process_time()

    def lap(self, step: str) -> None:
        """Give the time since the last step to this one."""
        now = time.process_time()
        self.seconds[step], self._start = now - self._start, now


def ours(preset: str, file: Path, folder: Path, clock: Clock) -> int:
    """Run the steps of the stage and return how many documents are left."""
    filtered, signed, duplicates = (folder / name for name in ("filtered", "signatures", "duplicates"))
    our_filter(preset, file, filtered)
    clock.lap("filter")
    signatures.run(SignatureSettings(), documents=filtered, signatures=signed)
    clock.lap("signatures")
    settings = FindDuplicatesSettings(deduplication=Deduplication())
    find_duplicates.run(
        settings, signatures=[signed], documents=[filtered], reserved=[], pairs=[], duplicates=duplicates
    )
    clock.lap("find_duplicates")
    counts = deduplicate.run(
        DeduplicateSettings(),
        documents=filtered,
        duplicates=duplicates / "s.0.parquet",
        deduplicated=folder / "deduplicated",
        removed=folder / "removed",
    )
    with DocumentWriter(folder / "final", kept_documents_schema(filtered)) as writer:  # as the last step does
        for table in read_deduplicated_documents(filtered, folder / "deduplicated"):
            writer.write(table)
    clock.lap("deduplicate")
    return int(counts["documents_out"])


def stock(preset: str, file: Path, folder: Path, clock: Clock) -> int:
    """Run datatrove's blocks and return how many documents are left."""
    filtered, signed, pairs, copies, out = (
        str(folder / name) for name in ("filtered", "signed", "pairs", "copies", "out")
    )
    config = configuration(Deduplication())
    stock_filter(preset, file, Path(filtered))
    clock.lap("filter")
    run_blocks([JsonlReader(filtered), MinhashDedupSignature(signed, config, language="nld")])
    clock.lap("signatures")
    run_blocks([MinhashDedupBuckets(signed, pairs, config=config)], tasks=config.num_buckets)
    run_blocks([MinhashDedupCluster(pairs, copies, config=config)])
    clock.lap("find_duplicates")
    ran: Any = run_blocks([JsonlReader(filtered), MinhashDedupFilter(copies), JsonlWriter(out)])
    clock.lap("deduplicate")
    return int(ran[-1].stats["total"].total)


def compare(values: list[str], preset: str) -> None:
    """Print for each step megabytes of the raw text per CPU second of both sides, and what they come to."""
    megabytes = sum(len(text.encode()) for text in values) / 1e6
    results = dict(measured(__file__, preset, values))
    totals = {side: sum(result["seconds"].values()) for side, result in results.items()}
    print(f"{preset}: {len(values)} documents, {megabytes:.1f} MB; MB of raw text per second and core")
    print(f"{'':16} {'ours':>8} {'stock':>8} {'ratio':>7}")
    for step, mine in [*results["ours"]["seconds"].items(), ("whole stage", totals["ours"])]:
        other = results["stock"]["seconds"].get(step, totals["stock"])
        print(f"{step:16} {megabytes / mine:8.2f} {megabytes / other:8.2f} {other / mine:7.1f}")
    for key, name, unit in (("kept", "documents left", 1), ("peak_bytes", "peak memory, MB", 1e6)):
        print(f"{name:16}", *(f"{results[side][key] / unit:8.0f}" for side in ("ours", "stock")))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="fineweb2", choices=PRESETS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--side", choices=["ours", "stock"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None:
        compare(texts(options.data, options.every), options.preset)
        return
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        kept = (ours if options.side == "ours" else stock)(options.preset, options.data, Path(folder), clock)
        print(json.dumps({"seconds": clock.seconds, "kept": kept, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
