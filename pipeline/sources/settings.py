"""What a run says about its raw text: where it lies, in which language, and by which right it is used."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipeline.settings import Settings


class Rights(Settings):
    """Why a source may be used, and who can be asked about it."""

    basis: Literal["public-domain", "licence", "opt-in", "statute"]
    holder: str = Field(min_length=1)
    url: str | None = None
    contact: str | None = None
    date: str | None = None


class Source(Settings):
    """A named collection of raw files with one licence, cut into a fixed number of units."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    path: str = Field(min_length=1, description="a glob, such as data/laws/*.jsonl.gz")
    language: str = Field(min_length=2, description="the language that the source is said to be in, ISO 639-1")
    license: str = Field(min_length=1, description="an SPDX identifier, or LicenseRef-NAME")
    rights: Rights
    units: int = Field(default=1, ge=1, description="jobs that the files are divided over")
    text_key: str = Field(default="text", min_length=1)
    id_key: str = Field(default="id", min_length=1)
    filters: dict[str, dict[str, Any]] = Field(
        default={}, description="by language, what this source changes in the rules of a corpus"
    )


class FingerprintSettings(Settings):
    """One unit of one source; `names` are the names of its files, in the order in which they are given."""

    source: str
    unit: int = Field(ge=0)
    names: list[str]


class ManifestSettings(Settings):
    """What the manifest of a source says about it besides its files."""

    source: str
    language: str
    license: str
    rights: Rights
    units: int
