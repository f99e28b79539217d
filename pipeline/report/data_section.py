"""Return what the page shows of the data: sources and their rights, corpora, tokenizers and languages."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.job_records import Record
from pipeline.corpus.document_streams import format_source_licenses
from pipeline.corpus.documents import SOURCE_LICENSE
from pipeline.report.run_reader import Artifact, Json, RunReader
from pipeline.report.settings import PageSettings


def summarize_sources(reader: RunReader) -> list[Json]:
    """Return one row per source: its license and rights from the manifest, its documents from the statistics."""
    rows = []
    for manifest in reader.manifests:
        source = manifest.content["source"]
        name = source.get("name", manifest.name)
        corpora = [
            (statistics.content["corpus"], statistics.content["sources"][name])
            for statistics in reader.statistics
            if name in statistics.content["sources"]
        ]
        fingerprints = reader.records_of("sources.fingerprint", source=name)
        rows.append(
            {
                "name": name,
                "source": source,
                "rights": source.get("rights") or {},
                "license": format_source_licenses(
                    str(source.get("license") or ""), _count_licenses(corpora), source.get("license_key")
                ),
                "own_licenses": sorted(_count_licenses(corpora)) if source.get("license_key") else [],
                "manifest": manifest,
                "corpora": corpora,
                "is_used": any(part["documents_out"] for _, part in corpora),
                "fingerprinted": max((record.ended for record in fingerprints), default="")[:10],
            }
        )
    return rows


def list_language_codes(reader: RunReader, settings: PageSettings) -> list[str]:
    """Return the languages of the documents of the corpora that models are trained on, or of all where none is."""
    read = {settings.corpora[metrics.name] for metrics in reader.metrics if metrics.name in settings.corpora}
    return sorted(
        {
            language
            for statistics in reader.statistics
            if not read or statistics.content["corpus"] in read
            for language, counted in (statistics.content.get("languages") or {}).items()
            if counted["documents"]
        }
    )


def _count_licenses(corpora: list[tuple[str, Json]]) -> dict[str, int]:
    """Return the documents of a source by license; of several corpora, the one that used most of a license counts."""
    documents: dict[str, int] = {}
    for _, part in corpora:
        for license, sizes in (part.get("licenses") or {}).items():
            documents[license] = max(documents.get(license, 0), sizes["documents"])
    return documents


def source_level_licenses(reader: RunReader) -> dict[str, str]:
    """Return the license of each source whose documents state none of their own."""
    described = (manifest.content["source"] | {"name": manifest.name} for manifest in reader.manifests)
    return {one["name"]: str(one.get("license") or "") for one in described if not one.get("license_key")}


def count_tokens_by_license(index: Json, licenses: Mapping[str, str]) -> dict[str, Json]:
    """Return documents and tokens by license: the index counts those under the license of their source together.

    Args:
        licenses: as `source_level_licenses` returns them.
    """
    counted: dict[str, Json] = {name: dict(part) for name, part in (index.get("licenses") or {}).items()}
    if counted.pop(SOURCE_LICENSE, None):
        for source, part in index["sources"].items():
            if source in licenses:
                total = counted.setdefault(licenses[source], dict.fromkeys(part, 0))
                counted[licenses[source]] = {key: total[key] + number for key, number in part.items()}
    return counted


def compare_tokenizers(reader: RunReader) -> list[Json]:
    """Return a row for each tokenizer, by name.

    Its corpus in tokens is estimated from the bytes per token of each language, with two more for the ends of each
    document, and counted where a token set has both. The embedding and output are those of the models of the run, by
    their width.
    """
    rows = []
    for fertility in sorted(reader.fertility, key=lambda artifact: artifact.name):
        record = next(iter(reader.records_of("tokenizer.train", tokenizer=fertility.name)), None)
        content, settings = fertility.content, record.settings if record else {}
        ratios = [one["bytes_per_token"] for one in content["languages"].values() if one["bytes_per_token"]]
        rows.append(
            {
                "name": fertility.name,
                "link": fertility.link,
                "settings": settings,
                "sample": _tokenizer_training_data(record),
                "record": record,
                "taken_over": bool(record and record.taken_over_from),
                **{key: content.get(key) for key in ("vocabulary_size", "renyi_efficiency", "parallel")},
                "languages": sorted(content["languages"].items()),
                "spread": max(ratios) / min(ratios) if len(ratios) > 1 else None,
                **_count_corpus_tokens(reader, fertility, record),
                "embeddings": _embedding_sizes(reader, content["vocabulary_size"]),
            }
        )
    return rows


def _tokenizer_training_data(record: Record | None) -> Json | None:
    """Return what a tokenizer was trained on; None where it is not recorded."""
    counts = record.counts if record else {}
    return (
        {**counts["sample"], "documents": counts["documents"], "bytes": counts["bytes"]} if "sample" in counts else None
    )


def _count_corpus_tokens(reader: RunReader, fertility: Artifact, record: Record | None) -> Json:
    """Return the tokens of the tokenizer's corpus as estimated and as counted; None where that is not known."""
    inputs = record.inputs if record else ()
    read = {entry.path.split("/")[1] for entry in inputs if entry.name == "documents"}
    languages: Json = next(
        (one.content["languages"] for one in reader.statistics if {one.content["corpus"]} == read), {}
    )
    ratios = {name: one["bytes_per_token"] for name, one in fertility.content["languages"].items()}
    known = bool(languages) and all(ratios.get(name) for name in languages)
    token_counts = [part["bytes"] / ratios[name] + 2 * part["documents"] for name, part in languages.items() if known]
    token_sets = [
        index.content
        for index in reader.indexes
        if index.content.get("tokenizer_sha256") == fertility.content["tokenizer_sha256"]
        and sum(part["documents"] for part in languages.values())
        == sum(index.content[split]["documents"] for split in ("train", "validation"))
    ]
    counted = sum(token_sets[0][split]["tokens"] for split in ("train", "validation")) if token_sets else None
    return {"estimated_tokens": round(sum(token_counts)) if known else None, "counted_tokens": counted}


def _embedding_sizes(reader: RunReader, vocabulary_size: int) -> list[tuple[str, int]]:
    """Return the parameters of embedding and output for each shape of the run's models, with the models' names."""
    shapes: dict[tuple[int, bool], dict[str, None]] = {}
    for segment in reader.segments():
        architecture = segment.settings.get("architecture", {})
        if "width" in architecture:
            shape = (architecture["width"], architecture.get("tie_embeddings", False))
            shapes.setdefault(shape, {})[segment.instance["model"]] = None
    return [
        (", ".join(models), vocabulary_size * width * (1 if tied else 2)) for (width, tied), models in shapes.items()
    ]


def summarize_corpus(statistics: Artifact, later_suites: list[Artifact]) -> Json:
    """Return a corpus: its totals, its sources, and per source the reasons of removal of all steps.

    Items of suites that were added after decontamination follow those with removed documents.
    """
    content = statistics.content
    later = [one.content["contamination"] for one in later_suites if one.content["corpus"] == content["corpus"]]
    removed = content.get("contamination") or {}
    return {
        "name": content["corpus"],
        "link": statistics.link,
        "totals": content["totals"],
        "sources": sorted(content["sources"].items()),
        "languages": sorted((content.get("languages") or {}).items()),
        "licenses": sorted((content.get("licenses") or {}).items()),
        "refused": [
            (name, rows) for name, part in sorted(content["sources"].items()) if (rows := part.get("refused_licenses"))
        ],
        "damaged": [
            (name, part, row)
            for name, part in sorted(content["sources"].items())
            for row in part.get("quarantined", [])
        ],
        "identified": _identified_languages(content),
        "quality": _quality_classifier_rows(content),
        "scores": [
            (name, score, score_counts)
            for name, part in sorted(content["sources"].items())
            for score, score_counts in sorted(part.get("scores", {}).items(), reverse=True)
        ],
        "classifiers": sorted((content.get("classifiers") or {}).items()),
        "personal_data": sorted((content.get("personal_data") or {}).items()),
        "flags": sorted((content.get("flags") or {}).items()),
        "contamination": [
            (task, {**counts, "stay": stay})
            for stay, tasks in ((False, removed), *((True, tasks) for tasks in later))
            for task, counts in sorted(tasks.items())
        ],
    }


def _identified_languages(content: Json) -> Json | None:
    """Return what the language model said of the documents that came to it, the most bytes first, and what is left."""
    identified = content.get("identified")
    if identified is None:
        return None
    left = content.get("languages") or {}
    rows = [
        {"language": code, **sizes, "left": left.get(code, {}).get("documents", 0)}
        for code, sizes in identified["languages"].items()
    ]
    ordered = sorted(rows, key=lambda row: (-row["bytes"], row["language"]))
    return {**identified, "rows": ordered, "bytes": sum(row["bytes"] for row in rows)}


def _quality_classifier_rows(content: Json) -> list[Json]:
    """Return the scores of a classifier and of baselines, on texts of its files and of others, by language."""
    languages = content["quality"]["languages"] if "quality" in content else {}
    return [
        {"language": code, "place": place, "method": method, "texts": results[place], **figures}
        for code, results in sorted(languages.items())
        for place in ("held_out", "other_files")
        if results[place] is not None
        for method, figures in results[place]["methods"].items()
    ]


def list_removals(reader: RunReader, *reasons: str) -> list[tuple[str, str, int]]:
    """Return (corpus, step and reason, documents) of every step that removed documents for one of the reasons."""
    return [
        (statistics.content["corpus"], f"{step['stage']}: {reason}", count)
        for statistics in reader.statistics
        for step in statistics.content["totals"]["stages"]
        for reason in reasons
        if (count := step["removed"].get(reason))
    ]
