"""The sources of a run with their rights and what is used of them, and the languages of what models read."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.corpus.document_streams import format_licenses
from pipeline.corpus.documents import OF_SOURCE
from pipeline.report.read import Json, Material
from pipeline.report.settings import PageSettings


def sources(material: Material) -> list[Json]:
    """Return one row per source: its licence and rights from the manifest, its documents from the statistics."""
    rows = []
    for manifest in material.manifests:
        source = manifest.content["source"]
        name = source.get("name", manifest.name)
        corpora = [
            (statistics.content["corpus"], statistics.content["sources"][name])
            for statistics in material.statistics
            if name in statistics.content["sources"]
        ]
        fingerprints = material.records_of("sources.fingerprint", source=name)
        rows.append(
            {
                "name": name,
                "source": source,
                "rights": source.get("rights") or {},
                "license": format_licenses(
                    str(source.get("license") or ""), _licenses(corpora), source.get("license_key")
                ),
                "own_licenses": sorted(_licenses(corpora)) if source.get("license_key") else [],
                "manifest": manifest,
                "corpora": corpora,
                "is_used": any(part["documents_out"] for _, part in corpora),
                "fingerprinted": max((record.content["ended"] for record in fingerprints), default="")[:10],
            }
        )
    return rows


def licenses_of_sources(material: Material) -> dict[str, str]:
    """Return the licence of each source whose documents state none of their own."""
    described = (manifest.content["source"] | {"name": manifest.name} for manifest in material.manifests)
    return {one["name"]: str(one.get("license") or "") for one in described if not one.get("license_key")}


def tokens_by_license(index: Json, licenses: Mapping[str, str]) -> dict[str, Json]:
    """Return documents and tokens by licence: the index counts those under the licence of their source together.

    Args:
        licenses: as `licenses_of_sources` returns them.
    """
    counted: dict[str, Json] = {name: dict(part) for name, part in (index.get("licenses") or {}).items()}
    if counted.pop(OF_SOURCE, None):
        for source, part in index["sources"].items():
            if source in licenses:
                total = counted.setdefault(licenses[source], dict.fromkeys(part, 0))
                counted[licenses[source]] = {key: total[key] + number for key, number in part.items()}
    return counted


def languages(material: Material, settings: PageSettings) -> list[str]:
    """Return the languages of the documents of the corpora that models are trained on, or of all where none is."""
    read = {settings.corpora[metrics.name] for metrics in material.metrics if metrics.name in settings.corpora}
    return sorted(
        {
            language
            for statistics in material.statistics
            if not read or statistics.content["corpus"] in read
            for language, counted in (statistics.content.get("languages") or {}).items()
            if counted["documents"]
        }
    )


def _licenses(corpora: list[tuple[str, Json]]) -> dict[str, int]:
    """Return the documents of a source by licence; of several corpora, the one that used most of a licence counts."""
    documents: dict[str, int] = {}
    for _, part in corpora:
        for license, sizes in (part.get("licenses") or {}).items():
            documents[license] = max(documents.get(license, 0), sizes["documents"])
    return documents
