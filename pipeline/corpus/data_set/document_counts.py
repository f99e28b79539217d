"""Describes the documents of a corpus: counts by source, language, license and year, lengths, scores and duplicates.

All counts come from one pass over the files, a batch of rows at a time, and do not depend on their order.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.url_hosts import split_url
from pipeline.corpus.document_streams import format_source_licenses, resolve_licenses
from pipeline.corpus.documents import (
    EXACT_DUPLICATE,
    LENGTHS_PER_DOUBLING,
    NEAR_DUPLICATE,
    NO_YEAR,
    ROWS_PER_GROUP,
    id_hash,
    read_file_metadata,
)
from pipeline.corpus.removed_documents import SAMPLES_PER_REASON
from pipeline.corpus.settings import PublishSettings

GROUPS = {"languages": "language", "licenses": "license", "years": "year", "sources": "source"}
SCORE_BINS = 50  # bins of language scores, from 0 to 1
LARGEST_DOMAINS = 0.10
"""The share of the domains of a source, the largest by bytes, that the EU summary of training content lists."""


def _document_years(batch: pa.RecordBatch) -> pa.Array:
    if "date" not in batch.schema.names:
        return pa.repeat(NO_YEAR, batch.num_rows)
    starts = pc.utf8_slice_codeunits(pc.cast(batch.column("date"), pa.string()), 0, 4)
    has_year = pc.fill_null(pc.match_substring_regex(starts, r"^\d{4}$"), False)
    return pc.if_else(has_year, starts, NO_YEAR)


class DocumentCounts:
    """Documents and bytes by source, language, license, year and domain; lengths and scores by language.

    Args:
        licenses: licenses of the sources, for documents without their own.
    """

    def __init__(self, licenses: Mapping[str, str]) -> None:
        self._licenses = licenses
        self.groups: dict[tuple[str, ...], Counter[str]] = {}
        self.domains: dict[tuple[str, str], Counter[str]] = {}
        self.lengths: dict[str, Counter[int]] = {}
        self.scores: dict[str, Counter[int]] = {}

    def count_batch(self, batch: pa.RecordBatch) -> None:
        """Count a batch of documents; the columns `date` and `url` are optional."""
        columns = {
            "language": batch.column("language"),
            "year": _document_years(batch),
            "source": batch.column("source"),
        }
        columns |= {"license": resolve_licenses(batch, self._licenses), "bytes": pc.binary_length(batch.column("text"))}
        _add_group_counts(self.groups, pa.table(columns), [*GROUPS.values()])
        self._add_domains(columns["bytes"], batch)
        characters = np.maximum(pc.utf8_length(batch.column("text")).to_numpy(zero_copy_only=False), 1)
        lengths = np.floor(np.log2(characters) * LENGTHS_PER_DOUBLING).astype(int)
        scores = np.minimum(batch.column("language_score").to_numpy() * SCORE_BINS, SCORE_BINS - 1).astype(int)
        for language in pc.unique(batch.column("language")).to_pylist():
            chosen = pc.equal(batch.column("language"), language).to_numpy(zero_copy_only=False)
            self.lengths.setdefault(language, Counter()).update(lengths[chosen].tolist())
            self.scores.setdefault(language, Counter()).update(scores[chosen].tolist())

    def _add_domains(self, sizes: pa.Array, batch: pa.RecordBatch) -> None:
        if "url" not in batch.schema.names:
            return
        addresses = [split_url(url or "") for url in batch.column("url").to_pylist()]
        hosts = [address.host.removeprefix("www.") if address.prefix else "" for address in addresses]
        domains = pa.array([host or None for host in hosts], pa.string())
        table = pa.table({"source": batch.column("source"), "domain": domains, "bytes": sizes})
        _add_group_counts(self.domains, table.filter(pc.is_valid(domains)), ["source", "domain"])

    def largest_domains(self) -> dict[str, dict[str, Any]]:
        """Return by source the number of domains, and the largest ones: name, documents, bytes."""
        domains_by_source: dict[str, list[tuple[str, int, int]]] = {}
        for (source, domain), part in self.domains.items():
            domains_by_source.setdefault(source, []).append((domain, part["documents"], part["bytes"]))
        return {
            source: {
                "domains": len(rows),
                "largest": sorted(rows, key=lambda row: (-row[2], row[0]))[: math.ceil(len(rows) * LARGEST_DOMAINS)],
            }
            for source, rows in sorted(domains_by_source.items())
        }

    def counts_by(self, name: str) -> dict[str, dict[str, int]]:
        """Return documents and bytes by one of the GROUPS, sorted."""
        place = list(GROUPS).index(name)
        return _sum_by_name((group[place], part) for group, part in self.groups.items())


def _add_group_counts(counts: dict[Any, Counter[str]], table: pa.Table, names: list[str]) -> None:
    for row in table.group_by(names).aggregate([([], "count_all"), ("bytes", "sum")]).to_pylist():
        part = counts.setdefault(tuple(row[name] for name in names), Counter())
        part.update(documents=row["count_all"], bytes=row["bytes_sum"])


def _sum_by_name(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for name, part in parts:
        sums.setdefault(name, Counter()).update(documents=part["documents"], bytes=part["bytes"])
    return {name: dict(part) for name, part in sorted(sums.items())}


def _histogram(counts: Counter[int]) -> list[list[int]]:
    """Return [bin, documents] from the first nonempty bin to the last one."""
    return [[number, counts[number]] for number in range(min(counts), max(counts) + 1)]


def _describe_file(path: Path) -> dict[str, Any]:
    rows = pq.read_metadata(path).num_rows
    return {"path": f"final/{path.name}", "sha256": hash_file(path), "bytes": path.stat().st_size, "documents": rows}


def _read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        names = [*("text", "language", "language_score", "source", "license", "date", "url")]
        yield from file.iter_batches(ROWS_PER_GROUP, columns=[n for n in names if n in file.schema_arrow.names])


def _count_duplicates(removed: list[Path], sources: set[str]) -> list[dict[str, Any]]:
    """Return the number of removed duplicates by the sources of the removed and of the kept document.

    The value of a duplicate is the id of the kept document, which begins with the name of its source.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for path in removed:
        table = pq.read_table(path, columns=["source", "reason", "value"])
        copies = table.filter(pc.is_in(table["reason"], pa.array([EXACT_DUPLICATE, NEAR_DUPLICATE])))
        for source, value in zip(copies["source"].to_pylist(), copies["value"].to_pylist(), strict=True):
            kept = str(value).split("/", 1)[0]
            if kept in sources:
                pairs[source, kept] += 1
    return [{"removed": one, "kept": other, "documents": number} for (one, other), number in sorted(pairs.items())]


def _collect_removed_samples(
    removed: list[Path], steps: list[str], licenses: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return samples of removed documents: by step and reason, those with the smallest hashes of their ids.

    Args:
        licenses: licenses of the sources, for documents without their own.
    """
    best: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for path in removed:
        for sample in read_file_metadata(path).get("samples", []):
            reason_samples = best.setdefault((steps.index(sample["stage"]), sample["reason"]), [])
            reason_samples.append(sample)
            reason_samples.sort(key=lambda sample: (id_hash(sample["id"]), sample["id"]))
            del reason_samples[SAMPLES_PER_REASON:]
    return [
        sample | {"license": sample["license"] or licenses.get(sample["source"], "")}
        for _, reason_samples in sorted(best.items())
        for sample in reason_samples
    ]


def describe_data_set(
    settings: PublishSettings, statistics: Path, removed: list[Path], final: list[Path]
) -> dict[str, Any]:
    """Return the content of dataset.json.

    Raises:
        InputError: the statistics belong to other files.
    """
    counted = json.loads(statistics.read_text(encoding="utf-8"))
    licenses = {source.name: source.license for source in settings.sources}
    counts = DocumentCounts(licenses)
    for path in final:
        for batch in _read_batches(path):
            counts.count_batch(batch)
    documents = sum(part["documents"] for part in counts.groups.values())
    if documents != counted["totals"]["documents_out"]:
        raise InputError(
            f"{statistics} counts {counted['totals']['documents_out']} documents and the files have {documents}: "
            "run corpus.statistics again"
        )
    groups = {name: counts.counts_by(name) for name in GROUPS}
    nothing = {"documents": 0, "bytes": 0}
    steps = [step["stage"] for step in counted["totals"]["stages"]]
    sources = {
        source.name: {
            "language": source.language,
            "genre": source.genre,
            "genre_by_sample": source.sampled_genre,
            "license": source.license,
            "license_summary": format_source_licenses(
                source.license,
                {name: part["documents"] for name, part in counted["sources"][source.name]["licenses"].items()},
                source.license_key,
            ),
            "quarantined": counted["sources"][source.name]["quarantined"],
            "rights": source.rights.model_dump(mode="json"),
            "documents_in": counted["sources"][source.name]["documents_in"],
            **groups["sources"].get(source.name, nothing),
        }
        for source in sorted(settings.sources, key=lambda source: source.name)
    }
    return {
        "run": settings.run,
        "corpus": settings.corpus,
        "totals": counted["totals"],
        **groups,
        "sources": sources,
        "genres": _sum_by_name((source["genre"], source) for source in sources.values() if source["genre"]),
        "domains": counts.largest_domains(),
        "personal_data": counted["personal_data"],
        "lengths": {language: _histogram(bins) for language, bins in sorted(counts.lengths.items())},
        "scores": {language: _histogram(bins) for language, bins in sorted(counts.scores.items())},
        "duplicates": _count_duplicates(removed, {source.name for source in settings.sources}),
        "samples": _collect_removed_samples(removed, steps, licenses) if settings.keep_removed else None,
        "files": [_describe_file(path) for path in sorted(final, key=lambda path: path.name)],
    }
