"""Estimate the documents, bytes and CPU seconds of the corpus stage before it runs.

The size comes from a sample of the sources, which is stored as the steps store documents, in the order of `id_hash`.
It is an upper bound: filters and deduplication remove nothing from it. CPU seconds come from the records of runs, or
else from a benchmark: a job has a start, and CPU seconds for each megabyte of UTF-8 text, uncompressed. A step without
measurements has no rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.job_records import Record, load_records
from pipeline.corpus.document_streams import KEPT_SCHEMA
from pipeline.corpus.documents import FINAL_SCHEMA, ROWS_PER_GROUP, id_hash
from pipeline.corpus.duplicates.signature_files import DOCUMENT_BYTES, KEY_BYTES, band_columns, signature_schema
from pipeline.corpus.settings import SignatureSettings
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import FieldNames, RawDocument, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import SourceUnits

SAMPLED_FILES = 20  # files of a source, evenly chosen by name
SAMPLED_BYTES = 1 << 18  # of each file, as stored on disk
HASH_BYTES = 8  # of a band key
# Of 19 MB of manuals, and of 79 MB of text in lines of 20 characters or more: `benchmarks/repeated_text.py`.
BYTES_PER_WORD, BYTES_PER_LINE = 7, 124
BYTES_PER_DOCUMENT = DOCUMENT_BYTES + KEY_BYTES  # memory of deduplication for a document without a copy


@dataclass(frozen=True)
class CorpusSize:
    """The estimated size of one or several sources; `files`, `raw_bytes` and `units` are exact.

    Attributes:
        sampled: documents in the sample.
        id_bytes: all ids, uncompressed.
        stored_text_bytes: all documents in files of final documents, without the overhead of a file.
        stored_id_bytes: all ids in Parquet.
    """

    files: int = 0
    raw_bytes: int = 0
    units: int = 0
    sampled: int = 0
    documents: float = 0.0
    text_bytes: float = 0.0
    id_bytes: float = 0.0
    stored_text_bytes: float = 0.0
    stored_id_bytes: float = 0.0

    def __add__(self, other: CorpusSize) -> CorpusSize:
        return CorpusSize(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def disk_bytes(self, settings: SignatureSettings) -> dict[str, float]:
        """Return the bytes of each folder of a corpus with a row per document."""
        keys = HASH_BYTES * (2 + len(band_columns(settings))) * self.documents
        if settings.passage_words is not None:
            anchors_per_word = 2 / (settings.passage_words // 2 + 2)  # of winnowing, with its window of short passages
            keys += HASH_BYTES * anchors_per_word * self.text_bytes / BYTES_PER_WORD
        if settings.line_characters is not None:
            keys += HASH_BYTES * self.text_bytes / BYTES_PER_LINE
        return {
            "filtered": self.stored_text_bytes - self.stored_id_bytes + self.units * _empty_parquet_bytes(FINAL_SCHEMA),
            "signatures": self.stored_id_bytes + keys + self.units * _empty_parquet_bytes(signature_schema(settings)),
            "deduplicated": self.stored_id_bytes + self.units * _empty_parquet_bytes(KEPT_SCHEMA),
            "final": self.stored_text_bytes + self.units * _empty_parquet_bytes(FINAL_SCHEMA),
        }


def maximum_documents(memory_bytes: int) -> int:
    """Return how many documents fit into `deduplication.memory_bytes` if none has a copy."""
    return memory_bytes // BYTES_PER_DOCUMENT


def recommended_memory_bytes(documents: int) -> int:
    """Return the `deduplication.memory_bytes` that corpus.find_duplicates recommends for so many documents."""
    return 2 * BYTES_PER_DOCUMENT * documents


def _parquet_bytes(table: pa.Table) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
    return int(sink.getvalue().size)


def _empty_parquet_bytes(schema: pa.Schema) -> int:
    return _parquet_bytes(schema.empty_table())


def _read_sample(path: Path, name: str, place: str, keys: FieldNames, limit: int) -> tuple[list[RawDocument], int]:
    """Return the first documents of a file, and their bytes on disk."""
    documents: list[RawDocument] = []
    for document, record in make_raw_documents(read_records(path, name, keys, limit), place, keys):
        if record.position >= SAMPLED_BYTES:
            return documents, record.position
        if document.text is not None:
            documents.append(document)
    return documents, path.stat().st_size


def _to_final_schema(source: str, documents: Iterable[RawDocument]) -> pa.Table:
    """Return documents with the columns of FINAL_SCHEMA, in their order; filter results are different in each row."""
    rows = [
        {
            **{"id": one.id, "text": one.text, "language": "nl", "language_score": id_hash(one.id) / 2**64},
            **{"source": source, "license": None, "url": one.url, "title": one.title, "date": one.date, "flags": []},
            **{"cluster": one.id, "cluster_size": 1, "id_hash": id_hash(one.id)},
        }
        for one in documents
    ]
    return pa.Table.from_pylist(rows, schema=FINAL_SCHEMA).sort_by([("id_hash", "ascending"), ("id", "ascending")])


def estimate_source_size(listed: SourceUnits) -> CorpusSize | None:
    """Estimate the size of a source; None for a data set that is not fetched yet, or without any text.

    Raises:
        InputError: a file has no column for the text, or cannot be opened.
    """
    source, sizes = listed.source, listed.sizes
    if source.dataset is not None:
        return None
    names, keys = [*listed.files], source.field_names()
    documents: list[RawDocument] = []
    read_bytes = 0
    for name in names[:: -(-len(names) // SAMPLED_FILES)]:
        try:
            sample, sample_bytes = _read_sample(
                listed.files[name], name, f"{source.name}/{name}", keys, source.document_bytes
            )
        except DamagedFile:
            continue
        documents, read_bytes = documents + sample, read_bytes + sample_bytes
    if not documents:
        return None
    raw_bytes = sum(sizes.values())
    scale = raw_bytes / read_bytes
    table = _to_final_schema(source.name, documents)
    ids = table.select(["id"])
    return CorpusSize(
        files=len(names),
        raw_bytes=raw_bytes,
        units=len(listed.units),
        sampled=len(documents),
        documents=len(documents) * scale,
        text_bytes=sum(one.size for one in documents) * scale,
        id_bytes=sum(len(one.id.encode()) for one in documents) * scale,
        stored_text_bytes=(_parquet_bytes(table) - _empty_parquet_bytes(FINAL_SCHEMA)) * scale,
        stored_id_bytes=(_parquet_bytes(ids) - _empty_parquet_bytes(ids.schema)) * scale,
    )


MINIMUM_JOBS, MINIMUM_TEXT_BYTES = 3, 10_000_000  # of a step, to take a rate from its records
MILLION = 1e6
JOIN_SHARES = "corpus.find_duplicates of shares"  # with jobs of corpus.equal_keys


class CpuRate(NamedTuple):
    """CPU seconds of a job: for its start, and low and high for each million bytes of text, or documents."""

    start_seconds: float
    low_seconds: float
    high_seconds: float
    of_documents: bool = False

    def cpu_seconds(self, amount: float) -> tuple[float, float]:
        """Return low and high CPU seconds of a job on so many bytes, or documents."""
        low, high = (self.start_seconds + each * amount / MILLION for each in self[1:3])
        return low, high


BENCHMARK_SOURCE = (
    "79 MB of Dutch and English text in 26 jobs of each step, and 1.4 million synthetic documents, on two busy cores "
    "of an AMD EPYC (benchmarks/corpus_plan.py)"
)
BENCHMARK_RATES = {
    "corpus.filter": CpuRate(3.07, 0.189, 0.489),
    "corpus.signatures": CpuRate(1.95, 0.058, 0.136),
    # `benchmarks/deduplication.py --documents 1400000 --jobs 4`, 280,000 of them copies: four shares of the keys took
    # 0.8 to 1.1 CPU seconds, joining them 1.4, one job for all 2.5 (and 222 for 100 million documents). The comparison
    # of near-duplicate texts is not included.
    "corpus.equal_keys": CpuRate(2.2, 2.3, 3.1, of_documents=True),
    JOIN_SHARES: CpuRate(2.2, 1.0, 1.0, of_documents=True),
    "corpus.find_duplicates": CpuRate(2.2, 1.8, 2.2, of_documents=True),
    "corpus.deduplicate": CpuRate(1.19, 0.0, 0.015),
    "corpus.matches": CpuRate(1.13, 0.001, 0.053),
    "corpus.decontaminate": CpuRate(0.69, 0.004, 0.035),
}


def fit_cpu_rates(records: Iterable[Record]) -> dict[str, CpuRate]:
    """Fit the rates of steps with enough jobs of different sizes.

    The start is the intercept of a least-squares line through all jobs. Low and high rates are the extremes of the jobs
    of at least mean size, without the start.
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
        if len(pairs) < MINIMUM_JOBS or megabytes.sum() * MILLION < MINIMUM_TEXT_BYTES or np.ptp(megabytes) == 0:
            continue
        start = max(float(np.polyfit(megabytes, seconds, 1)[1]), 0.0)
        large = megabytes >= megabytes.mean()
        each = np.maximum(seconds[large] - start, 0) / megabytes[large]
        rates[step] = CpuRate(start, float(each.min()), float(each.max()))
    return rates


def find_cpu_rates(runs: Iterable[Path]) -> tuple[dict[str, CpuRate], str]:
    """Return the rates of the first run with enough jobs, completed from the benchmark, and their source."""
    for run in runs:
        records = load_records(run) if layout.RECORDS.path(run).is_dir() else []
        if own := fit_cpu_rates(records):
            hosts = ", ".join(sorted({str(record.host) for record in records}))
            return (
                BENCHMARK_RATES | own,
                f"{', '.join(own)} by the records of {run} (on {hosts}), other steps by {BENCHMARK_SOURCE}",
            )
    return dict(BENCHMARK_RATES), BENCHMARK_SOURCE
