"""Counts kept and removed documents of a corpus, and checks that no step lost or added a document."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.document_streams import SCORES
from pipeline.corpus.documents import LICENSE_REASONS, MIXED_LANGUAGE, SOURCE_LICENSE, read_file_metadata
from pipeline.corpus.raw_file_quarantine import check_damaged_share, sum_unit_reports
from pipeline.corpus.settings import StatisticsSettings

REFUSED_SHOWN = 20
STEPS = ("filter", "deduplicate", "decontaminate")  # that remove documents, in order
NO_FILES: list[Path] = []
Unit = tuple[str, int]


def _read_unit_metadata(paths: list[Path]) -> dict[tuple[Unit, str], dict[str, Any]]:
    described: dict[tuple[Unit, str], dict[str, Any]] = {}
    for path in paths:
        metadata = read_file_metadata(path)
        key = (metadata["source"], metadata["unit"]), metadata["stage"]
        if key in described:
            raise InputError(f"{path} and {described[key]['path']} are the same unit: remove one of them")
        described[key] = {**metadata, "path": path}
    return described


def _check_step_counts(
    kept: dict[str, Any], removed: dict[str, Any], step: str, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the counts of one step of one unit after checking that no document was lost or added.

    Args:
        before: the metadata of the kept documents of the previous step.
    """
    table = pq.read_table(removed["path"], columns=["reason", "bytes"])
    name = f"{kept['source']}.{kept['unit']}"
    pairs = [
        ("documents in its file", kept["documents"], kept["rows"]),
        ("documents", kept["documents_in"], kept["rows"] + table.num_rows),
    ]
    if "raw_bytes" in removed:
        damaged = sum(one["bytes"] for one in removed["quarantined"])
        pairs.append(("bytes on disk", removed["raw_bytes"], removed["read_bytes"] + damaged))
    if before is not None:
        size = kept["bytes"] + kept.get("bytes_cut", 0) + (pc.sum(table["bytes"]).as_py() or 0)
        pairs.append(("documents from the step before", before["rows"], kept["documents_in"]))
        pairs.append(("bytes", before["bytes"], size))
    cut = {"cut": kept["cut"]} if "cut" in kept else {}
    if cut:
        pairs.append(("bytes cut", kept["bytes_cut"], sum(sizes["bytes"] for sizes in kept["cut"].values())))
    for what, expected, actual in pairs:
        if expected != actual:
            raise InputError(
                f"unit {name}, step {step}: {expected} {what} are expected and {actual} are there: "
                f"delete its files and run corpus.{step} again"
            )
    reasons = Counter(table["reason"].to_pylist())
    return {"stage": step, "in": kept["documents_in"], "kept": kept["rows"], "removed": dict(reasons), **cut}


def _add_counts(total: dict[str, Any], part: dict[str, Any]) -> None:
    for key in ("documents_in", "bytes_in", "documents_out", "bytes_out"):
        total[key] += part[key]
    for step, added in zip(total["stages"], part["stages"], strict=True):
        step["in"] += added["in"]
        step["kept"] += added["kept"]
        step["removed"] = dict(sorted((Counter(step["removed"]) + Counter(added["removed"])).items()))
        if cut := _sum_by_name([step.get("cut", {}), added.get("cut", {})]):
            step["cut"] = cut


def _most_frequent(counted: Counter[str]) -> list[list[Any]]:
    """Return [value, documents] of the most frequent values, and the sum of all others with the value null."""
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    others = sum(number for _, number in ranked[REFUSED_SHOWN:])
    return [[value, number] for value, number in ranked[:REFUSED_SHOWN]] + ([[None, others]] if others else [])


def _sum_by_name(parts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for part in parts:
        for name, sizes in part.items():
            sums.setdefault(name, Counter()).update(sizes)
    return {name: dict(sizes) for name, sizes in sorted(sums.items())}


def _empty_counts() -> dict[str, Any]:
    steps = [{"stage": step, "in": 0, "kept": 0, "removed": {}} for step in STEPS]
    return {"documents_in": 0, "bytes_in": 0, "stages": steps, "documents_out": 0, "bytes_out": 0}


def _identified_languages(kept: dict[str, Any], removed: Path) -> Iterator[tuple[str, Counter[str]]]:
    """Yield documents and bytes of a unit by identified language, and the documents of mixed language.

    Documents that were removed before language identification are not counted.
    """
    for language, sizes in kept["languages"].items():
        yield language, Counter(sizes, mixed_documents=0)
    for row in pq.read_table(removed, columns=["reason", "bytes", "language"]).to_pylist():
        if row["language"] is not None:
            mixed = int(row["reason"] == MIXED_LANGUAGE)
            yield row["language"], Counter(documents=1, bytes=row["bytes"], mixed_documents=mixed)


def _score_quartiles(final: list[Path], names: Iterable[str]) -> dict[str, Any]:
    quartiles = {}
    for name in names:
        columns = [pq.read_table(path, columns=[name])[name] for path in final]
        values = np.concatenate([column.drop_null().to_numpy() for column in columns])
        if len(values):
            quartiles[name] = {"documents": len(values), "quartiles": np.quantile(values, [0.25, 0.5, 0.75]).tolist()}
    return quartiles


def run(
    settings: StatisticsSettings,
    *,
    filtered: list[Path],
    deduplicated: list[Path],
    removed: list[Path],
    contamination: Path,
    final: list[Path],
    statistics: Path,
    quality: list[Path] = NO_FILES,
) -> dict[str, Any]:
    """Write the statistics of a corpus.

    They count documents by source, identified and final language, and license; masked personal data, flags, damaged
    raw files, quality scores, and evaluation items by task.

    Args:
        quality: the evaluation of the corpus's classifiers, if it has any.

    Raises:
        InputError: a step lost or added documents of a unit, a file is missing, a source is empty, or a source has
            more than `damaged_share` in damaged files.
    """
    kept = _read_unit_metadata(filtered) | _read_unit_metadata(deduplicated) | _read_unit_metadata(final)
    removed_files = _read_unit_metadata(removed)
    units = sorted({unit for unit, _ in kept.keys() | removed_files.keys()})
    described = {source.name: source for source in settings.sources}
    sources = {
        name: {"license": source.license, "language": source.language, **_empty_counts()}
        for name, source in sorted(described.items())
    }
    languages, flags, identified = (defaultdict[str, Counter[str]](Counter) for _ in range(3))
    licenses: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    refused = defaultdict[str, Counter[str]](Counter)  # by source and license as written
    read_from = defaultdict[str, list[dict[str, Any]]](list)
    personal_data: Counter[str] = Counter()
    for unit in units:
        source, number = unit
        if source not in sources:
            raise InputError(
                f"unit {source}.{number} belongs to no source of corpus {settings.corpus}: remove its files"
            )
        for step in STEPS:
            if (unit, step) not in kept or (unit, step) not in removed_files:
                raise InputError(f"unit {source}.{number} lacks a file of step {step}: run that step again")
        described_steps = [kept[unit, step] for step in STEPS]
        first, last = described_steps[0], described_steps[-1]
        counts = {
            "documents_in": first["documents_in"],
            "bytes_in": first["bytes_in"],
            "stages": [
                _check_step_counts(entry, removed_files[unit, step], step, before)
                for step, entry, before in zip(STEPS, described_steps, [None, *described_steps], strict=False)
            ],
            "documents_out": last["rows"],
            "bytes_out": last["bytes"],
        }
        _add_counts(sources[source], counts)
        personal_data.update(first["personal_data"])
        for flag, counted in first.get("flagged", {}).items():
            flags[flag].update(counted | {"kept": last["flags"].get(flag, 0)})
        for language, sizes in _identified_languages(first, removed_files[unit, "filter"]["path"]):
            identified[language].update(sizes)
        for language, sizes in last["languages"].items():
            languages[language].update(sizes)
        for license, sizes in last["licenses"].items():
            named = described[source].license if license == SOURCE_LICENSE else license
            licenses[source][named].update(sizes)
        read_from[source].append(removed_files[unit, "filter"])
        refusals = [("reason", "in", LICENSE_REASONS)]
        stated = pq.read_table(removed_files[unit, "filter"]["path"], columns=["value"], filters=refusals)["value"]
        refused[source].update(pc.fill_null(stated, "").to_pylist())
    totals = _empty_counts()
    for name, source_counts in sources.items():
        source_counts |= sum_unit_reports(read_from[name])
        check_damaged_share(name, source_counts, described[name].damaged_share)
        if source_counts["documents_in"] == 0:
            raise InputError(f"source {name} is empty: give it files with text, or remove it from the sources")
        _add_counts(totals, source_counts)
        source_counts["licenses"] = {license: dict(sizes) for license, sizes in sorted(licenses[name].items())}
        source_counts["refused_licenses"] = _most_frequent(refused[name])
        final_files = [kept[unit, STEPS[-1]]["path"] for unit in units if unit[0] == name]
        if scores := _score_quartiles(final_files, [*SCORES, *settings.classifiers]):
            source_counts["scores"] = scores
    for key in ("raw_bytes", "read_bytes", "quarantined_bytes"):
        totals[key] = sum(source[key] for source in sources.values())
    content = {
        "corpus": settings.corpus,
        "sources": sources,
        "totals": totals,
        "languages": {language: dict(sizes) for language, sizes in sorted(languages.items())},
        "licenses": _sum_by_name(source["licenses"] for source in sources.values()),
        "identified": {
            "model": settings.language_model or "py3langid",
            "minimum_scores": settings.minimum_scores,
            "languages": {language: dict(sorted(sizes.items())) for language, sizes in sorted(identified.items())},
        },
        "personal_data": dict(sorted(personal_data.items())),
        "flags": {flag: dict(sorted(counted.items())) for flag, counted in sorted(flags.items())},
        "contamination": json.loads(contamination.read_text(encoding="utf-8")),
    }
    if settings.classifiers:
        content["classifiers"] = {name: one.model_dump(mode="json") for name, one in settings.classifiers.items()}
    for path in quality:
        content["quality"] = json.loads(path.read_text(encoding="utf-8"))
    statistics.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{settings.corpus}: {totals['documents_out']} of {totals['documents_in']} documents", flush=True)
    return {key: totals[key] for key in ("documents_in", "bytes_in", "documents_out", "bytes_out", "quarantined_bytes")}
