"""Cuts one large file into parts of about equal size on disk, in one pass and without holding the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError
from pipeline.sources.formats import read_records
from pipeline.sources.parts import count_parts, write_in_order
from pipeline.sources.reading import RawDocument, raw_documents
from pipeline.sources.records import Keys
from pipeline.sources.settings import SplitSettings


def run(settings: SplitSettings, *, file: Path, parts: Path) -> dict[str, Any]:
    """Write the parts of a file: a record goes to the part in which its last byte lies.

    Raises:
        InputError: the file is damaged, or has another number of parts than was planned.
    """
    number = count_parts(file.stat().st_size, settings.unit_bytes)
    if number != settings.parts:
        raise InputError(
            f"source {settings.source}: {settings.file_name} has {number} parts now and had {settings.parts} when "
            "the run was planned: start snakemake again"
        )
    parts.mkdir(mode=0o770)  # raw texts
    keys = Keys(settings.text_key, settings.id_key, settings.date_key)

    def placed() -> Iterator[tuple[int, RawDocument]]:
        records = read_records(file, settings.file_name, keys, settings.document_bytes)
        for document, record in raw_documents(records, f"{settings.source}/{settings.file_name}", keys):
            yield min(record.position // settings.unit_bytes, number - 1), document

    written = write_in_order(parts, number, placed())
    return {"parts": number, "documents": written.documents, "bytes": written.bytes}
