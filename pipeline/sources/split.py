"""Splits one large file into parts of about equal size on disk, in one pass and in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import RawDocument, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.settings import SplitSettings
from pipeline.sources.source_units import PartWriter, count_file_parts, write_sorted_documents_to_parts


def run(settings: SplitSettings, *, file: Path, parts: Path) -> dict[str, Any]:
    """Write the parts of a file; a record belongs to the part that contains its last byte.

    With `quarantine`, the parts of a damaged file have no rows.

    Raises:
        InputError: the file is damaged, or the number of parts differs from the plan.
    """
    size = file.stat().st_size
    number = count_file_parts(size, settings.unit_bytes)
    if number != settings.parts:
        raise InputError(
            f"source {settings.source}: {settings.file_name} has {number} parts now and had {settings.parts} when "
            "the run was planned: run snakemake again"
        )
    parts.mkdir(mode=0o770)  # raw texts
    keys = settings.field_names()

    def assign_documents_to_file_parts() -> Iterator[tuple[int, RawDocument]]:
        records = read_records(file, settings.file_name, keys, settings.document_bytes)
        for document, record in make_raw_documents(records, f"{settings.source}/{settings.file_name}", keys):
            yield min(record.position // settings.unit_bytes, number - 1), document

    begins = [part * settings.unit_bytes for part in range(number)]
    raw_bytes = [end - begin for begin, end in zip(begins, [*begins[1:], size], strict=True)]
    try:
        written = write_sorted_documents_to_parts(parts, raw_bytes, assign_documents_to_file_parts())
    except DamagedFile as damaged:
        if not settings.quarantine:
            raise
        print(f"{settings.source}: nothing of this file is used: {damaged}", flush=True)
        shutil.rmtree(parts)
        parts.mkdir(mode=0o770)
        written = PartWriter(parts, number, raw_bytes)
        written.finish_damaged(damaged.damage)
        return {"parts": number, "documents": 0, "bytes": 0, "damage": damaged.damage}
    return {"parts": number, "documents": written.documents, "bytes": written.bytes}
