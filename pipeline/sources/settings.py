"""What a run says about its raw text: where it lies, in which language, by which right it is used, and by whom not."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.hosts import parse_host
from pipeline.core.settings import Settings
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.sources.raw_documents import FieldNames, iso_date
from pipeline.sources.spdx_licenses import canonical_license

OPT_OUT_KINDS = ("domains", "ids", "holders")


class OptOut(Settings):
    """Who reserved their rights: `domains` with all their subdomains, `ids` of documents, `holders` of rights."""

    date: str | None = Field(default=None, description="when the list was made, ISO 8601")
    domains: list[str] = []
    ids: list[str] = []
    holders: list[str] = []

    @field_validator("date", mode="before")
    @classmethod
    def _iso(cls, value: Any) -> str | None:
        if value is not None and iso_date(value) is None:
            raise ValueError("write the date as YYYY-MM-DD")
        return iso_date(value)

    @field_validator("domains")
    @classmethod
    def _bare(cls, domains: list[str]) -> list[str]:
        return sorted({normalize_domain(domain) for domain in domains})

    @field_validator("ids", "holders")
    @classmethod
    def _ordered(cls, values: list[str]) -> list[str]:
        if not all(value.strip() for value in values):
            raise ValueError("an entry is empty: write what is meant, or take the line out")
        return sorted({normalize_nfc(value.strip()) for value in values})


def normalize_domain(domain: str) -> str:
    """Return a domain as it is compared: as browsers read it, without a leading `*.` and a final dot.

    Raises:
        ValueError: it is no domain but a URL, or holds a space.
    """
    bare = domain.strip().removeprefix("*.").strip(".")
    try:
        if not bare or any(sign in bare for sign in "/ *,%") or (":" in bare and bare[0] != "["):
            raise ValueError("a sign of no domain")
        host = parse_host(bare)
        if not re.fullmatch(r"[a-z0-9._-]+|\[.+\]", host):  # a browser takes a;b.nl, and no page has such a host
            raise ValueError("a sign of no domain")
        return host
    except ValueError:
        raise ValueError(f"{domain!r} is no domain: write it like voorbeeld.nl") from None


Genre = Literal["prose", "laws", "drama", "documentation", "web", "speech"]


class Rights(Settings):
    """Why a source may be used, and who can be asked about it."""

    basis: Literal["public-domain", "license", "opt-in-agreement", "statute"] = Field(
        description="why the text may be used"
    )
    holder: str = Field(min_length=1, description="who holds the rights")
    contact: str | None = Field(default=None, description="an e-mail address or a page, for questions about the rights")
    url: str | None = Field(default=None, description="where the text, the licence, the agreement or the law is found")
    date: datetime.date | None = Field(default=None, description="when the rights were looked at, YYYY-MM-DD")


class Dataset(Settings):
    """A Hugging Face data set: a folder in hub layout, or a name on the hub at a commit."""

    name: str = Field(min_length=1, description="ORGANISATION/NAME on the hub, or a folder")
    revision: str | None = Field(default=None, description="the commit, 40 hexadecimal digits; not for a folder")
    split: str = Field(default="train", pattern=r"^[\w.-]+$", description="the split that is read")
    configuration: str | None = Field(default=None, description="the configuration of the data set, if it has several")

    def is_folder(self) -> bool:
        """Return whether the data set lies on this machine."""
        return Path(self.name).is_dir()

    @model_validator(mode="after")
    def _pinned(self) -> Dataset:
        if not self.is_folder() and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                f"{self.name} is no folder here, so it is a data set of the hub: set revision to one of its commits, "
                "40 hexadecimal digits, because a branch or a tag can change"
            )
        return self


class FieldKeys(Settings):
    """In which fields of a record its text, and what is known of it, stands; `metadata.url` is a field of a field."""

    text_key: str = Field(default="text", min_length=1, description="field of the text")
    id_key: str = Field(default="id", min_length=1, description="field of the id")
    date_key: str = Field(default="date", min_length=1, description="field of the date")
    url_key: str = Field(default="url", min_length=1, description="field of the address")
    title_key: str = Field(default="title", min_length=1, description="field of the title")
    holder_key: str = Field(default="holder", min_length=1, description="who holds the rights, for opt-out lists")
    license_key: str | None = Field(
        default=None, min_length=1, description="the field with a document's own licence, which then decides"
    )

    def field_names(self) -> FieldNames:
        """Return the names of the fields."""
        return FieldNames(*(getattr(self, f"{name}_key") for name in FieldNames._fields))


class Source(FieldKeys):
    """A named collection of raw files with one licence, cut into a fixed number of units."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="the name of the source in results and reports")
    path: str | None = Field(default=None, min_length=1, description="a glob, such as data/laws/*.jsonl.gz")
    dataset: Dataset | None = None
    language: str = Field(min_length=2, description="the language that the source is said to be in, ISO 639-1")
    genre: Genre | None = Field(default=None, description="decides the rules where the preset of a corpus is `genre`")
    license: str = Field(min_length=1, description="an SPDX expression; LicenseRef-NAME for what SPDX does not list")
    rights: Rights
    opt_out: str | None = Field(default=None, description="a list of domains, ids and holders that are left out")
    allowed_unmatched_ids: int = Field(
        default=0, ge=0, description="how many ids of the opt-out list may name no document; more stop the run"
    )
    units: int = Field(default=1, ge=1, le=100_000, description="parts that the files are divided over")
    units_per_job: int | None = Field(
        default=None, ge=1, description="units that one job works on, on all its cores; none: 240, or at most 100 jobs"
    )
    unit_bytes: int = Field(default=1 << 26, ge=1 << 10, description="a larger file, on disk, is cut into parts")
    document_bytes: int = Field(default=20_000_000, ge=1, description="a larger record is removed as too_large")
    damaged_share: float = Field(
        default=0.01, ge=0, le=1, description="largest share of its bytes in damaged files, which are left out"
    )
    license_names: dict[str, str] = Field(
        default={}, description="what words in that field mean, SPDX; of an empty name: what no licence means"
    )
    filters: dict[str, dict[str, Any]] = Field(
        default={}, description="by language, what this source changes in the rules of a corpus"
    )

    @field_validator("license")
    @classmethod
    def _spdx(cls, license: str) -> str:
        return canonical_license(license)

    @field_validator("license_names")
    @classmethod
    def _spdx_names(cls, names: dict[str, str]) -> dict[str, str]:
        return {
            normalize_nfc(name.strip()).casefold(): canonical_license(license)
            for name, license in sorted(names.items())
        }

    @model_validator(mode="after")
    def _fits(self) -> Source:
        if self.license_names and self.license_key is None:
            raise ValueError(f"source {self.name}: license_names needs license_key, the field that it explains")
        if self.allowed_unmatched_ids and self.opt_out is None:
            raise ValueError(f"source {self.name}: allowed_unmatched_ids needs opt_out, the list that has the ids")
        if (self.path is None) == (self.dataset is None):
            raise ValueError(f"source {self.name}: write where it lies, either path or dataset")
        return self


class ReadSettings(FieldKeys):
    """Which source is read, and how."""

    source: str
    document_bytes: int = 20_000_000


class SplitSettings(ReadSettings):
    """One large file of a source, and how it is read."""

    file_name: str
    parts: int
    unit_bytes: int
    quarantine: bool = Field(default=False, description="leave a damaged file out instead of stopping")


class DatasetSettings(ReadSettings):
    """One Hugging Face data set, and how it is read."""

    dataset: Dataset
    units: int


class ListingSettings(Settings):
    """Where the files of a source lie, below the folder that its path begins with, and how they are divided."""

    source: str
    pattern: str | None = None
    split: str | None = Field(default=None, description="of a data set, which has no files of its own here")
    units: int
    unit_bytes: int
    listing_sha256: str = Field(description="of the names of each unit's files, so that a new file is a new setting")


class FingerprintSettings(Settings):
    """The source whose units are hashed."""

    source: str
    document_bytes: int = 20_000_000


class EntriesSettings(Settings):
    """How the ids in the units of a source are read."""

    source: str
    document_bytes: int
    id_key: str
    url_key: str = "url"
    holder_key: str = "holder"


class ManifestSettings(Settings):
    """What the manifest of a source says about it besides its files."""

    source: str
    language: str
    license: str
    rights: Rights
    units: int
    dataset: Dataset | None = None
    license_key: str | None = None
    license_names: dict[str, str] = {}
    allowed_unmatched_ids: int = 0
