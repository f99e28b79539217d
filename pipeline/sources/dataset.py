"""Reads a Hugging Face data set at a pinned revision into one part per unit of the source."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.sources.raw_documents import (
    FieldNames,
    RawRecord,
    format_column_names,
    make_raw_documents,
    oversized_record,
)
from pipeline.sources.settings import DatasetSettings
from pipeline.sources.source_units import PartWriter

ROWS_PER_BLOCK = 1000


def run(settings: DatasetSettings, *, files: list[Path], parts: Path) -> dict[str, Any]:
    """Stream the rows and distribute blocks of ROWS_PER_BLOCK round-robin over the parts, in the order of the data set.

    Uses the network only for a data set of the hub, not for a folder.

    Args:
        files: the files of a folder in hub layout, so that changes are detected; empty for the hub.

    Raises:
        InputError: the data set, its configuration or its split does not exist or cannot be read.
    """
    keys = settings.field_names()
    parts.mkdir(mode=0o770)  # raw texts
    writer = PartWriter(parts, settings.units)
    place = f"{settings.source}/{settings.dataset.split}"
    with tempfile.TemporaryDirectory() as cache:
        for document, record in make_raw_documents(_read_dataset(settings, keys, Path(cache)), place, keys):
            writer.write((record.number - 1) // ROWS_PER_BLOCK % settings.units, document)
    for part in range(settings.units):
        writer.finish(part)
    return {"parts": settings.units, "documents": writer.documents, "bytes": writer.bytes}


def _read_dataset(settings: DatasetSettings, keys: FieldNames, cache: Path) -> Any:
    dataset = settings.dataset
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets  # seconds to import; telemetry is decided at import

    datasets.disable_progress_bars()
    try:
        written = datasets.config.DATASETDICT_JSON_FILENAME, datasets.config.DATASET_STATE_JSON_FILENAME
        if any(Path(dataset.name, name).is_file() for name in written):  # by `save_to_disk`
            saved = datasets.load_from_disk(dataset.name)
            rows = (saved[dataset.split] if isinstance(saved, dict) else saved).to_iterable_dataset()
        else:
            rows = datasets.load_dataset(
                dataset.name,
                dataset.configuration,
                split=dataset.split,
                revision=None if dataset.is_folder() else dataset.revision,
                cache_dir=str(cache),
                streaming=True,
            )
        columns = rows.column_names
        if columns is not None and keys.text not in columns:
            raise InputError(
                f"source {settings.source}: {dataset.name} has no column {keys.text!r}: "
                f"set text_key of the source to one of {format_column_names(columns)}"
            )
        top_level = dict.fromkeys(key if key in (columns or []) else key.partition(".")[0] for key in keys.all_fields)
        wanted = [column for column in top_level if column in (columns or [])]
        for number, fields in enumerate(rows.select_columns(wanted) if wanted else rows, 1):
            text = fields.get(keys.text)
            if isinstance(text, str) and (size := len(text.encode("utf-8", "replace"))) > settings.document_bytes:
                yield oversized_record(number, size)
            else:
                yield RawRecord(number, 0, fields)
    except InputError:
        raise
    except Exception as error:  # the loader's readers raise many types
        kind = type(error).__name__  # some messages quote the data
        raise InputError(
            f"source {settings.source}: {dataset.name} cannot be read as a data set ({kind}): check its split, its "
            "configuration and its files"
        ) from None
