"""What the step `corpus publish` says about a corpus besides what it counts."""

from __future__ import annotations

from typing import Any

from pipeline.ground.settings import Settings
from pipeline.sources.settings import Rights


class PublishedSource(Settings):
    """A source as the data set names it."""

    name: str
    language: str
    license: str
    rights: Rights


class PublishSettings(Settings):
    """One corpus; `filters` are the settings by which it was filtered and deduplicated."""

    run: str
    corpus: str
    provider: str | None
    contact: str | None
    keep_removed: bool
    filters: dict[str, Any]
    sources: list[PublishedSource]
