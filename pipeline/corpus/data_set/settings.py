"""What the step `corpus publish` says about a corpus besides what it counts."""

from __future__ import annotations

from typing import Any

from pipeline.core.settings import Settings
from pipeline.sources.settings import Genre, Rights

STATED = ("data_selection", "intended_use", "limitations", "removal")
"""What Croissant's vocabulary for responsible AI asks that only the provider knows: keys of `disclosure`."""


class PublishedSource(Settings):
    """A source as the data set names it."""

    name: str
    language: str
    genre: Genre | None = None
    license: str
    license_key: str | None = None
    rights: Rights


class PublishSettings(Settings):
    """One corpus; `filters` are the settings by which it was filtered and deduplicated.

    `stated` is what the provider says of it in the section `disclosure`, by its key.
    """

    run: str
    corpus: str
    provider: str | None
    contact: str | None
    stated: dict[str, str]
    keep_removed: bool
    filters: dict[str, Any]
    sources: list[PublishedSource]
