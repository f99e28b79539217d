"""Settings of the crate: what a reader of the archive is told about the run as a whole."""

from __future__ import annotations

from pydantic import Field

from pipeline.ground.settings import Settings


class CrateSettings(Settings):
    """Name, description and licence of a run's RO-Crate."""

    run: str = Field(min_length=1)
    name: str | None = Field(None, description="title of the crate; the run's name if none is given")
    description: str = "A language model and the records of how it was made, from raw text to evaluation."
    license: str = Field(
        "each text as its source says, records and report CC-BY-4.0, weights as the provider states",
        description="SPDX identifier, URL or words: under what the run as a whole may be used",
    )
