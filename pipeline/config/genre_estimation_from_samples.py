"""What a run takes where its configuration states no genre of a source, or no preset of a corpus.

A run is what it was when it was started, so both are in its snapshots: the genre by a sample, and the preset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.corpus.text.language_codes import states_other_language
from pipeline.corpus.text.source_genre_estimate import GenreEstimate, estimate_genre
from pipeline.job.invocation_snapshots import read_newest_snapshot
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import SourceUnits
from pipeline.sources.web_reservation_rules import is_reserved

SAMPLED_FILES, SAMPLED_DOCUMENTS = 50, 100
"""Files of a source, evenly chosen by name, and documents, evenly chosen of those read."""
SAMPLED_BYTES = 1 << 22
"""Bytes read of all files of a source, as stored on disk."""
SNAPSHOT_KEY = "genres"
"""Key of the genres by samples in a snapshot."""
OLDER_PRESET = "standard"
"""The preset of a corpus that states none, in versions before the default was `genre`."""


def _read_texts(listed: SourceUnits, name: str, limit: int) -> Iterator[str]:
    """Yield the texts of the first `limit` bytes of a file; those before a damaged place, of a damaged one.

    Documents that the filter removes by what they state, another language or a reservation, have no say.
    """
    source, keys = listed.source, listed.source.field_names()
    records = read_records(listed.files[name], name, keys, source.document_bytes)
    try:
        for document, record in make_raw_documents(records, f"{source.name}/{name}", keys):
            if record.position >= limit:
                return
            other = source.language_key is not None and states_other_language(document.language, source.language)
            reserved = source.page_reservations and is_reserved(document.reservation)
            if document.text and not other and not reserved:
                yield document.text
    except DamagedFile:  # the filter reports it
        return


def sample_texts(listed: SourceUnits) -> list[str]:
    """Return texts of a source; none of a data set that is not a folder, or whose files cannot be read."""
    try:
        names = [*listed.files] if listed.source.dataset is None else []
        names = names[:: -(-len(names) // SAMPLED_FILES) or 1]
        texts = [text for name in names for text in _read_texts(listed, name, SAMPLED_BYTES // len(names))]
    except InputError:  # preflight reports it
        return []
    return texts[:: -(-len(texts) // SAMPLED_DOCUMENTS) or 1]


def estimate_source_genre(listed: SourceUnits, run_directory: Path) -> GenreEstimate:
    """Return the genre of a source in the newest snapshot of the run, or else by a sample of its text.

    A source without text at an earlier start is sampled again.
    """
    known = known_genres(read_newest_snapshot(run_directory) or {})
    return known.get(listed.source.name) or estimate_genre(sample_texts(listed))


def known_genres(snapshot: Mapping[str, Any]) -> dict[str, GenreEstimate]:
    """Return by source the estimates of a snapshot that are valid and have documents."""
    written = snapshot.get(SNAPSHOT_KEY)
    known = {}
    for name, estimate in written.items() if isinstance(written, Mapping) else ():
        with suppress(ValidationError):
            known[name] = GenreEstimate.model_validate(estimate)
    return {name: estimate for name, estimate in known.items() if estimate.documents}


def add_estimated_genres(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a snapshot, and by source the genres that samples gave it."""
    genres = {name: estimate["genre"] for name, estimate in snapshot.get(SNAPSHOT_KEY, {}).items()}
    return {**snapshot["configuration"], SNAPSHOT_KEY: genres}


def find_corpora_without_preset(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the corpora that state no preset in a run that began when the default was `standard`, by name.

    Snapshots of such a run state no preset of them; this version states the preset of each corpus.

    Args:
        content: the configuration as written.

    Returns:
        The sections, each with the preset.
    """
    run = content.get("run")
    if not isinstance(run, Mapping):
        return {}
    snapshot = read_newest_snapshot(Path(str(run.get("results", "results")), str(run.get("name"))))
    before = (snapshot or {}).get("configuration")
    if not isinstance(before, Mapping):
        return {}
    written, started = (one.get("corpus", {"main": {}}) for one in (content, before))
    if not isinstance(written, Mapping) or not isinstance(started, Mapping):
        return {}
    return {
        name: {"preset": OLDER_PRESET, **(section or {})}
        for name, section in written.items()
        if isinstance(section, Mapping | None)
        and "preset" not in (section or {})
        and name in started
        and "preset" not in started[name]
    }
