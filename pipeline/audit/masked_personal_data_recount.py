"""Counts of masked personal data in one document, recomputed from its raw file.

No count per document is kept. The steps of the filter run once more on this document alone, and what they give is the
proof: it has to be the text that the corpus holds. The data themselves are neither shown nor kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from datatrove.data import Document

from pipeline.core.errors import InputError
from pipeline.core.job_records import FileEntry, Record
from pipeline.corpus.filter import NO_UNIT, build_filter_pipeline
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.settings import FilterSettings


def describe_masked_personal_data(
    run_directory: Path, record: Record, document_id: str, name: str, text: str, license: str, raw: Path | None = None
) -> str:
    """Describe the masked data of a document in one line, or why they are unknown.

    Args:
        record: the filter's.
        name: that of the raw file in the manifest.
        text: the document after the filter.
        license: of the source.
        raw: a folder with raw files.
    """
    kinds = record.counts.get("personal_data")
    unit = f"in all of unit {record.instance.get('unit')}: {'not recorded' if kinds is None else _format_counts(kinds)}"
    try:
        document = _refilter_document(run_directory, record, document_id, name, license, raw)
    except InputError as error:
        return f"masked: not known of this document, for {error}; {unit}"
    if document is None or document.text != text:
        return f"masked: not known of this document, for the filter gives another text here and now; {unit}"
    counts = _format_counts(document.metadata["personal_data"])
    return f"masked: {counts} (recomputed from {name}, which gives the text of the corpus)"


def _format_counts(kinds: dict[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())) or "nothing"


def _find_raw_file(run_directory: Path, entry: FileEntry, raw: Path | None) -> Path:
    name = entry.path.removeprefix("data:")
    places = [entry.resolve_path(run_directory), *([raw / name] if raw else [])]
    file = next((place for place in places if entry.matches_file(place)), None)
    if file is None:
        raise InputError(f"{name} is not here with the bytes that were read (name its folder with --raw FOLDER)")
    return file


def _refilter_document(
    run_directory: Path, record: Record, document_id: str, name: str, license: str, raw: Path | None
) -> Document | None:
    kinds = ("files", "model", "harmful", "url_lists")
    given = {kind: [entry for entry in record.inputs if entry.name == kind] for kind in kinds}
    parts = [entry for entry in given["files"] if not entry.is_outside_run]
    whole = [entry for entry in given["files"] if f"/{entry.path.removeprefix('data:')}".endswith(f"/{name}")]
    try:
        settings = FilterSettings.model_validate(record.settings)
    except ValueError:
        raise InputError("the settings in its record are of another version") from None
    find = partial(_find_raw_file, run_directory, raw=raw)
    for entry in parts or whole:
        file = find(entry)
        model, harmful, lists = ([find(one) for one in given[kind]] for kind in ("model", "harmful", "url_lists"))
        raw_files = RawFiles(
            settings.source, [(name, file)], settings.field_names(), settings.document_bytes, is_part=bool(parts)
        )
        model_file = model[0] if model else None
        reader, *rest = build_filter_pipeline(
            settings, raw_files, {**NO_UNIT, "license": license}, model_file, harmful, lists
        )
        documents: Iterator[Document] = (one for one in reader.run() if one.id == document_id)
        documents = islice(documents, 1)  # the reader judges a file at its end, which is not reached
        for block in rest:
            documents = block.run(documents)
        for document in documents:
            return document
    return None
