"""The datatrove filters that remove documents by licence and opt-out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.core.hosts import domain_suffixes, extract_host
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.documents import (
    LICENSE_DIFFERS,
    LICENSE_NOT_ALLOWED,
    LICENSE_NOT_STATED,
    LICENSE_NOT_UNDERSTOOD,
    OPT_OUT,
)
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.settings import FilterSettings
from pipeline.sources.settings import OPT_OUT_KINDS, OptOut
from pipeline.sources.spdx_licenses import are_equivalent, is_allowed, parse_license

SHOWN_CHARACTERS = 200
CACHED_LICENSES = 10_000  # what so many different words mean is remembered


class LicenseFilter(BaseFilter):  # type: ignore[misc]
    """Gives each document its own licence where its source names the field for it, and removes what is not allowed.

    A licence that is not there, or that cannot be told, is allowed by nobody. Where the source names no field, a
    document has the licence of its source, unless it names another one itself: it is removed rather than given a
    licence that it does not have. What stood there is the value that decided.

    Args:
        license: that of the source, where documents name their own.
    """

    name = "Own licence"

    def __init__(
        self, settings: FilterSettings, license: str | None, exclusion_writer: RemovedDocuments | None = None
    ) -> None:
        super().__init__(exclusion_writer)
        self.settings = settings
        self.source_license = license
        self._read = lru_cache(CACHED_LICENSES)(partial(parse_license, names=settings.license_names))

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        written = document.metadata["own_license"]
        found = self.settings.license_names.get("") if written is None else self._read(written)
        if self.settings.license_key is None:
            if written is not None and self.source_license is None:
                raise RuntimeError(f"{document.id} states a licence, and its unit was read as one without")
            is_same = written is None or (found is not None and are_equivalent(found, str(self.source_license)))
            reason = None if is_same else LICENSE_DIFFERS
        elif found is None:
            reason = LICENSE_NOT_STATED if written is None else LICENSE_NOT_UNDERSTOOD
        else:
            reason = None if is_allowed(found, self.settings.allowed_licenses) else LICENSE_NOT_ALLOWED
            document.metadata["license"] = found
        if reason is None:
            return True
        document.metadata["filter_value"] = written and written[:SHOWN_CHARACTERS]
        return False, reason


def check_license_differences(
    settings: FilterSettings, license: str | None, removed: list[dict[str, Any]], documents_in: int
) -> None:
    """Raise InputError where more than `broken_share` of the documents of a unit name another licence than the source.

    Args:
        license: that of the source.
        removed: the removed documents, mappings of the columns of REMOVED_SCHEMA.
    """
    differing = [row for row in removed if row["reason"] == LICENSE_DIFFERS]
    if len(differing) > settings.broken_share * documents_in:
        raise InputError(
            f"source {settings.source} has the licence {license}, and {len(differing)} of {documents_in} "
            f"documents name another one, first {differing[0]['id']} ({differing[0]['value']}): set license_key of the "
            "source to the field with their licence, and license_names to what its words mean"
        )


def _listed_values(listed: set[str], *values: str | None) -> Iterator[str]:
    """Yield which of the values are on a list, as the list writes them, a value once."""
    compared = dict.fromkeys(normalize_nfc(value) for value in values if value is not None)
    yield from (value for value in compared if value in listed)


class OptOutFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents on an opt-out list under the reason `opt_out`, with the entry that decided as the value.

    A domain stands for all its subdomains. An id is that of the document, the original one behind SOURCE/FILE/, or the
    one that it has instead where that holds personal data. A holder is that which a document names itself, or that of
    its source.
    """

    name = "Opt-out"

    def __init__(
        self, opt_out: OptOut, holder: str | None = None, exclusion_writer: RemovedDocuments | None = None
    ) -> None:
        super().__init__(exclusion_writer)
        self.holder = holder
        self.domains = set(opt_out.domains)
        self.ids = set(opt_out.ids)
        self.holders = set(opt_out.holders)

    @classmethod
    def from_unit(cls, listed: dict[str, Any], exclusion_writer: RemovedDocuments | None = None) -> OptOutFilter:
        """Return the block for what of a unit is reserved, as its file of the manifest says."""
        return cls(OptOut(**{kind: listed[kind] for kind in OPT_OUT_KINDS}), listed["holder"], exclusion_writer)

    def matching_entries(self, document: Document) -> Iterator[str]:
        """Yield the entries that a document falls under, the one that decides first."""
        known = document.metadata
        ids = document.id, known.get("original_id"), known.get("withheld_id")
        yield from (f"id {candidate}" for candidate in _listed_values(self.ids, *ids))
        yield from (f"holder {name}" for name in _listed_values(self.holders, known.get("holder"), self.holder))
        if self.domains:
            suffixes = domain_suffixes(extract_host(document.metadata.get("url")))
            yield from (f"domain {suffix}" for suffix in suffixes if suffix in self.domains)

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        entry = next(self.matching_entries(document), None)
        if entry is None:
            return True
        document.metadata["filter_value"] = entry
        return False, OPT_OUT
