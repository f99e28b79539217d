"""A model that somebody has trained, as the configuration names it, and every chapter that has to say so."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.settings import Settings


class Pretrained(Settings):
    """A model that somebody has trained, from whose weights another training goes on."""

    folder: str = Field(description="in the layout of Hugging Face, such as {data}/models/NAME")
    name: str | None = Field(default=None, description="what it is called; default: the folder without {data}")
    license: str = Field(min_length=1, description="an SPDX expression; LicenseRef-NAME for what SPDX does not list")
    url: str | None = Field(default=None, description="where it is published")

    @property
    def title(self) -> str:
        """Return what readers are told that it is."""
        return self.name or self.folder.removeprefix("{data}/")
