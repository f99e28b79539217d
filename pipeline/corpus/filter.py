"""Filters one unit of a source: reads, repairs, identifies the language, removes bad documents, masks personal data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.documents import DOCUMENT_SCHEMA, DocumentCollector, write_removed
from pipeline.corpus.execute import execute
from pipeline.corpus.language import IdentifyLanguage
from pipeline.corpus.normalise import Normalise
from pipeline.corpus.opt_out import OptOutFilter
from pipeline.corpus.personal_data import MaskPersonalData
from pipeline.corpus.quality import GopherQuality
from pipeline.corpus.reader import Reader, RemovedDocuments
from pipeline.corpus.repetition import GopherRepetition
from pipeline.corpus.settings import FilterSettings
from pipeline.errors import InputError
from pipeline.sources.opt_out import KINDS, OptOut


class Collect(PipelineStep):  # type: ignore[misc]
    """Holds the documents that came through, and the sum of what was masked in them."""

    type = "💽 - WRITER"
    name = "Collect"

    def __init__(self) -> None:
        super().__init__()
        self.documents = DocumentCollector()
        self.kept = 0
        self.personal_data: Counter[str] = Counter()

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield every document after adding it."""
        columns = [name for name in DOCUMENT_SCHEMA.names if name not in ("id", "text", "id_hash")]
        for document in data:
            fields = {name: document.metadata[name] for name in columns}
            self.documents.add({"id": document.id, "text": document.text, **fields})
            self.kept += 1
            self.personal_data.update(document.metadata["personal_data"])
            yield document


def blocks(
    settings: FilterSettings, files: list[Path], opt_out: OptOut | None = None, holder: str | None = None
) -> list[PipelineStep]:
    """Return the blocks of this step, the reader first, for use in any pipeline of datatrove.

    Args:
        opt_out: whose texts are left out, and `holder` the holder of the source's rights.
    """
    removed = RemovedDocuments(settings.source, "filter")
    languages = settings.languages
    return [
        Reader(
            settings.source,
            settings.license,
            settings.names,
            files,
            removed,
            settings.text_key,
            settings.id_key,
            settings.broken_share,
            settings.date_key,
            settings.document_bytes,
            settings.is_part,
        ),
        *([OptOutFilter(opt_out, holder, removed)] if opt_out else []),
        Normalise(),
        IdentifyLanguage({code: rules.minimum_score for code, rules in languages.items()}, removed),
        GopherRepetition({code: rules.repetition for code, rules in languages.items()}, removed),
        GopherQuality({code: rules.quality for code, rules in languages.items()}, removed),
        MaskPersonalData(settings.personal_data),
    ]


def _check_files(settings: FilterSettings, files: list[Path], manifest: dict[str, Any]) -> None:
    """Raise InputError where the files are not those that the manifest was made of."""
    unit = manifest["units"].get(str(settings.unit), {"files": []})
    expected = {entry["name"]: entry["bytes"] for entry in unit["files"]}
    found = {name: path.stat().st_size for name, path in zip(settings.names, files, strict=True)}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"source {settings.source}: {name} is not the file that the manifest describes "
                f"({expected.get(name, 'no')} bytes there, {found.get(name, 'no')} here): start snakemake again"
            )


def run(
    settings: FilterSettings, *, manifest: Path, files: list[Path], documents: Path, removed: Path
) -> dict[str, Any]:
    """Write the kept documents and the removed ones; return their numbers, by reason.

    Raises:
        InputError: the files are not those of the manifest, are damaged, broken beyond `broken_share`, or empty.
    """
    described = json.loads(manifest.read_text(encoding="utf-8"))
    _check_files(settings, files, described)
    listed, holder = described.get("opt_out"), described["source"]["rights"]["holder"]
    opt_out = OptOut(**{kind: listed[kind] for kind in KINDS}) if listed else None
    executed = execute([*blocks(settings, files, opt_out, holder), Collect()])
    reader, collect = executed[0], executed[-1]
    rows = reader.removed.rows
    if reader.records_in != collect.kept + len(rows):
        raise RuntimeError(
            f"{settings.source}.{settings.unit}: {reader.records_in} documents in, {collect.kept} kept, "
            f"{len(rows)} removed: the counts do not add up"
        )
    if reader.records_in == 0 and len(described["units"]) == 1:
        raise InputError(f"source {settings.source} is empty: give it files with text, or remove it from the sources")
    unit = {"source": settings.source, "unit": settings.unit}
    metadata = collect.documents.write(
        documents,
        {
            **unit,
            "stage": "filter",
            "documents_in": reader.records_in,
            "bytes_in": reader.bytes_in,
            "personal_data": dict(collect.personal_data),
        },
    )
    write_removed(removed, rows, {**unit, "stage": "filter"})
    reasons = Counter(row["reason"] for row in rows)
    print(f"{settings.source}.{settings.unit}: {collect.kept} of {reader.records_in} documents kept", flush=True)
    return {
        "documents_in": reader.records_in,
        "bytes_in": reader.bytes_in,
        "documents_out": collect.kept,
        "bytes_out": metadata["bytes"],
        "removed": dict(sorted(reasons.items())),
        "personal_data": dict(sorted(collect.personal_data.items())),
    }
