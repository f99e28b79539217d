"""What the steps of the corpus stage cost per byte of text, as measured: by the records of runs, or by a benchmark.

A job costs a start, and so many CPU seconds for each megabyte of text that the corpus reads. A step that nothing was
measured of has no rate. Text is counted as UTF-8, uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline import layout
from pipeline.core.records import Record, load_records

LEAST_JOBS, LEAST_BYTES = 3, 10_000_000  # of a step, and of text, in records that a rate is taken from
MILLION = 1e6
JOINING = "corpus.find_duplicates of shares"  # what is left of that step where jobs of corpus.equal_keys share the keys


class Rate(NamedTuple):
    """CPU seconds of a job: for its start, and for each million bytes of text, or documents, at least and at most."""

    start_seconds: float
    low_seconds: float
    high_seconds: float
    of_documents: bool = False

    def cpu_seconds(self, amount: float) -> tuple[float, float]:
        """Return what a job on so many bytes, or documents, takes, at least and at most."""
        low, high = (self.start_seconds + each * amount / MILLION for each in self[1:3])
        return low, high


BENCHMARK = (
    "79 MB of Dutch and English text in 26 jobs of each step, and 1.4 million synthetic documents, on two busy cores "
    "of an AMD EPYC (benchmarks/corpus_plan.py)"
)
RATES = {
    "corpus.filter": Rate(3.07, 0.189, 0.489),
    "corpus.signatures": Rate(1.95, 0.058, 0.136),
    # `benchmarks/deduplication.py --documents 1400000 --jobs 4`, 280,000 of them copies: four shares of the keys took
    # 0.8 to 1.1 CPU seconds, joining them 1.4, one job for all 2.5 (and 222 for 100 million documents). It compares no
    # texts of near copies: that comes on top.
    "corpus.equal_keys": Rate(2.2, 2.3, 3.1, of_documents=True),
    JOINING: Rate(2.2, 1.0, 1.0, of_documents=True),
    "corpus.find_duplicates": Rate(2.2, 1.8, 2.2, of_documents=True),
    "corpus.deduplicate": Rate(1.19, 0.0, 0.015),
    "corpus.matches": Rate(1.13, 0.001, 0.053),
    "corpus.decontaminate": Rate(0.69, 0.004, 0.035),
}


def measured(records: Iterable[Record]) -> dict[str, Rate]:
    """Return the rates of the steps that records have enough jobs of, of different sizes.

    The start is that of the line through all jobs (least squares); the least and the most for a megabyte are those of
    the jobs of at least the mean size, less that start.
    """
    listed = [record for record in records if "unit" in record.instance]
    text = {
        (record.instance["source"], record.instance["unit"]): record.counts["bytes_in"]
        for record in listed
        if record.step == "corpus.filter"
    }
    jobs: dict[str, list[tuple[float, float]]] = {}
    for record in listed:
        unit = record.instance["source"], record.instance["unit"]
        if "corpus" in record.instance and unit in text and not record.taken_over_from:
            jobs.setdefault(record.step, []).append((text[unit], record.cpu_seconds))
    rates = {}
    for step, pairs in sorted(jobs.items()):
        megabytes, seconds = np.array(pairs).T / [[MILLION], [1]]
        if len(pairs) < LEAST_JOBS or megabytes.sum() * MILLION < LEAST_BYTES or np.ptp(megabytes) == 0:
            continue
        start = max(float(np.polyfit(megabytes, seconds, 1)[1]), 0.0)
        large = megabytes >= megabytes.mean()
        each = np.maximum(seconds[large] - start, 0) / megabytes[large]
        rates[step] = Rate(start, float(each.min()), float(each.max()))
    return rates


def rates_of(runs: Iterable[Path]) -> tuple[dict[str, Rate], str]:
    """Return the rates of the first of some runs that has enough jobs, of other steps the benchmark's, and whence."""
    for run in runs:
        records = load_records(run) if layout.RECORDS.path(run).is_dir() else []
        if own := measured(records):
            hosts = ", ".join(sorted({str(record.host) for record in records}))
            return RATES | own, f"{', '.join(own)} by the records of {run} (on {hosts}), other steps by {BENCHMARK}"
    return dict(RATES), BENCHMARK
