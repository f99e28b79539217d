"""Settings of the stage `sources`: the raw text of a run, its languages, licenses, rights and opt-outs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.settings import Settings, optional_later_field
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.core.url_hosts import normalize_valid_host
from pipeline.sources.field_layouts import LAYOUTS, LayoutName
from pipeline.sources.raw_documents import FieldNames, iso_date
from pipeline.sources.spdx_license_parser import canonicalize_spdx_expression
from pipeline.sources.web_reservation_rules import WebReservation

OPT_OUT_KINDS = ("domains", "ids", "holders")


class OptOut(Settings):
    """An opt-out list: `domains` with all their subdomains, `ids` of documents, `holders`, and `reservations`."""

    date: str | None = Field(default=None, description="when the list was made, ISO 8601")
    domains: list[str] = []
    ids: list[str] = []
    holders: list[str] = []
    reservations: list[WebReservation] = Field(default=[], description="files of hosts, by `polder reservations`")

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
            raise ValueError("an entry is empty: fill it in, or remove the line")
        return sorted({normalize_nfc(value.strip()) for value in values})


def normalize_domain(domain: str) -> str:
    """Return a domain in normal form: as parsed by browsers, without a leading `*.` and a final dot.

    Raises:
        ValueError: it is a URL, or contains a space or another invalid character.
    """
    bare = domain.strip().removeprefix("*.").strip(".")
    try:
        if not bare or any(sign in bare for sign in "/ *,%") or (":" in bare and bare[0] != "["):
            raise ValueError("an invalid character")
        host = normalize_valid_host(bare)
        if not re.fullmatch(r"[a-z0-9._-]+|\[.+\]", host):  # browsers accept a;b.nl, but no page has such a host
            raise ValueError("an invalid character")
        return host
    except ValueError:
        raise ValueError(f"{domain!r} is no domain: write it like voorbeeld.nl") from None


Genre = Literal["prose", "laws", "drama", "documentation", "web", "speech", "historical"]


class Rights(Settings):
    """The legal basis for using a source, and whom to contact about it."""

    basis: Literal["public-domain", "license", "opt-in-agreement", "statute"] = Field(description="legal basis")
    holder: str = Field(min_length=1, description="who holds the rights")
    contact: str | None = Field(default=None, description="an e-mail address or a page, for questions about the rights")
    url: str | None = Field(default=None, description="URL of the text, the license, the agreement or the law")
    date: datetime.date | None = Field(default=None, description="when the rights were checked, YYYY-MM-DD")
    version: str | None = optional_later_field(None, description="of the texts, as their publisher names it")


class Dataset(Settings):
    """A Hugging Face data set: a folder in hub layout, or a name on the hub at a commit."""

    name: str = Field(min_length=1, description="ORGANIZATION/NAME on the hub, or a folder")
    revision: str | None = Field(default=None, description="the commit, 40 hexadecimal digits; not for a folder")
    split: str = Field(default="train", pattern=r"^[\w.-]+$", description="the split that is read")
    configuration: str | None = Field(default=None, description="the configuration of the data set, if it has several")

    def is_folder(self) -> bool:
        """Return whether the data set is a local folder."""
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
    """The names of the fields of a record with its text and metadata; `metadata.url` is a nested field."""

    text_key: str = Field(default="text", min_length=1, description="field of the text")
    id_key: str = Field(default="id", min_length=1, description="field of the id")
    date_key: str = Field(default="date", min_length=1, description="field of the date")
    url_key: str = Field(default="url", min_length=1, description="field of the URL")
    title_key: str = Field(default="title", min_length=1, description="field of the title")
    holder_key: str = Field(default="holder", min_length=1, description="field of the rights holder, for opt-out lists")
    license_key: str | None = Field(
        default=None, min_length=1, description="the field with a document's own license, which then decides"
    )
    language_key: str | None = optional_later_field(
        None, min_length=1, description="the field with a document's own language; another than the source's is removed"
    )

    def field_names(self) -> FieldNames:
        """Return the field names as a named tuple."""
        return FieldNames(*(getattr(self, f"{name}_key") for name in FieldNames._fields))


class UrlLists(Settings):
    """Lists of domains and addresses, one per line; a path is a file, or a folder with `domains` and `urls` (UT1)."""

    block: list[str] = Field(default=[], description="documents of these are removed")
    allow: list[str] = Field(default=[], description="only documents of these are kept")


class Source(FieldKeys):
    """A named collection of raw files with one license, divided into units."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="the name of the source in results and reports")
    path: str | None = Field(default=None, min_length=1, description="a glob, such as data/laws/*.jsonl.gz")
    dataset: Dataset | None = None
    layout: LayoutName | None = Field(default=None, description="the public data set whose fields the rows have")
    language: str = Field(min_length=2, description="the declared language of the source, ISO 639-1")
    genre: Genre | None = Field(default=None, description="decides the rules where the preset of a corpus is `genre`")
    license: str = Field(min_length=1, description="an SPDX expression; LicenseRef-NAME for a license not in SPDX")
    rights: Rights
    opt_out: str | None = Field(default=None, description="a file with domains, ids and holders to exclude")
    url_lists: UrlLists = Field(default=UrlLists(), description="added to those of the corpus")
    page_reservations: bool = Field(
        default=True, description="remove pages whose header or meta tag reserves rights (tdm-reservation, noai)"
    )
    allowed_unmatched_ids: int = Field(
        default=0, ge=0, description="ids of the opt-out list that may match no document; more stop the run"
    )
    units: int = Field(default=1, ge=1, le=100_000, description="units that the files are divided into")
    units_per_job: int | None = Field(
        default=None, ge=1, description="units per job, processed on all its cores; none: 240, or at most 100 jobs"
    )
    unit_bytes: int = Field(default=1 << 26, ge=1 << 10, description="a file larger than this on disk is split")
    document_bytes: int = Field(default=20_000_000, ge=1, description="a larger record is removed as too_large")
    damaged_share: float = Field(
        default=0.01, ge=0, le=1, description="largest share of its bytes in damaged files, which are skipped"
    )
    license_names: dict[str, str] = Field(
        default={}, description="SPDX licenses by value of that field; the empty name is for a missing license"
    )
    filters: dict[str, dict[str, Any]] = Field(
        default={}, description="by language, changes to the rules of a corpus for this source"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_layout(cls, written: Any) -> Any:
        layout = written.get("layout") if isinstance(written, Mapping) else None
        return {**LAYOUTS[layout], **written} if isinstance(layout, str) and layout in LAYOUTS else written

    @field_validator("license")
    @classmethod
    def _spdx(cls, license: str) -> str:
        return canonicalize_spdx_expression(license)

    @field_validator("license_names")
    @classmethod
    def _spdx_names(cls, names: dict[str, str]) -> dict[str, str]:
        return {
            normalize_nfc(name.strip()).casefold(): canonicalize_spdx_expression(license)
            for name, license in sorted(names.items())
        }

    @model_validator(mode="after")
    def _fits(self) -> Source:
        if self.license_names and self.license_key is None:
            raise ValueError(f"source {self.name}: license_names needs license_key, the field that it explains")
        if self.allowed_unmatched_ids and self.opt_out is None:
            raise ValueError(f"source {self.name}: allowed_unmatched_ids needs opt_out, the list that has the ids")
        if (self.path is None) == (self.dataset is None):
            raise ValueError(f"source {self.name}: write either path or dataset")
        return self


class ReadSettings(FieldKeys):
    """How a source is read."""

    source: str
    document_bytes: int = 20_000_000


class SplitSettings(ReadSettings):
    """Settings of sources.split: one large file of a source, and how it is read."""

    file_name: str
    parts: int
    unit_bytes: int
    quarantine: bool = Field(default=False, description="skip a damaged file instead of stopping")


class DatasetSettings(ReadSettings):
    """Settings of sources.dataset: one Hugging Face data set, and how it is read."""

    dataset: Dataset
    units: int


class ListingSettings(Settings):
    """Settings of sources.listing: the files of a source, and how they are divided into units."""

    source: str
    pattern: str | None = None
    split: str | None = Field(default=None, description="split of a data set, which has no raw files")
    units: int
    unit_bytes: int
    listing_sha256: str = Field(description="hash of the file names of each unit, so that a new file is a new setting")


class FingerprintSettings(Settings):
    """Settings of sources.fingerprint."""

    source: str
    document_bytes: int = 20_000_000


class EntriesSettings(Settings):
    """Settings of opt_out.entries: the fields that opt-out lists refer to."""

    source: str
    document_bytes: int
    id_key: str
    url_key: str = "url"
    holder_key: str = "holder"


class ManifestSettings(Settings):
    """Settings of sources.manifest: the labels of a source."""

    source: str
    language: str
    license: str
    rights: Rights
    units: int
    dataset: Dataset | None = None
    license_key: str | None = None
    license_names: dict[str, str] = {}
    allowed_unmatched_ids: int = 0
