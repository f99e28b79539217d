"""The datatrove filters that remove documents by license and opt-out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.core.url_hosts import domain_suffixes, extract_host
from pipeline.corpus.documents import (
    LICENSE_DIFFERS,
    LICENSE_NOT_ALLOWED,
    LICENSE_NOT_STATED,
    LICENSE_NOT_UNDERSTOOD,
    OPT_OUT,
    RESERVED_BY_PAGE,
)
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.settings import FilterSettings
from pipeline.sources.settings import OPT_OUT_KINDS, OptOut
from pipeline.sources.spdx_license_parser import are_equivalent, is_allowed, normalize_license
from pipeline.sources.web_reservation_rules import STATES_TDM, HostRules, WebReservations, is_reserved

SHOWN_CHARACTERS = 200
CACHED_LICENSES = 10_000  # different license texts


class LicenseFilter(BaseFilter):  # type: ignore[misc]
    """Assigns documents their own licenses if the source names a field for them, and removes documents not allowed.

    A missing or unknown license is not allowed. If the source names no field, a document has the license of its source.
    It is removed if it states another license. The value of a removed document is the license as written.

    Args:
        license: the license of the source, if documents state their own.
    """

    name = "Own license"

    def __init__(
        self, settings: FilterSettings, license: str | None, exclusion_writer: RemovedDocuments | None = None
    ) -> None:
        super().__init__(exclusion_writer)
        self.settings = settings
        self.source_license = license
        self._read = lru_cache(CACHED_LICENSES)(partial(normalize_license, names=settings.license_names))

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        written = document.metadata["own_license"]
        spdx_license = self.settings.license_names.get("") if written is None else self._read(written)
        if self.settings.license_key is None:
            if written is not None and self.source_license is None:
                raise RuntimeError(f"{document.id} states a license, and its unit was read as one without")
            is_same = written is None or (
                spdx_license is not None and are_equivalent(spdx_license, str(self.source_license))
            )
            reason = None if is_same else LICENSE_DIFFERS
        elif spdx_license is None:
            reason = LICENSE_NOT_STATED if written is None else LICENSE_NOT_UNDERSTOOD
        else:
            reason = None if is_allowed(spdx_license, self.settings.allowed_licenses) else LICENSE_NOT_ALLOWED
            document.metadata["license"] = spdx_license
        if reason is None:
            return True
        document.metadata["filter_value"] = written and written[:SHOWN_CHARACTERS]
        return False, reason


def check_license_differences(
    settings: FilterSettings, license: str | None, removed: list[dict[str, Any]], documents_in: int
) -> None:
    """Raise InputError if more than `broken_share` of the documents of a unit state another license than the source.

    Args:
        license: the license of the source.
        removed: the removed documents, with the columns of REMOVED_SCHEMA.
    """
    differing = [row for row in removed if row["reason"] == LICENSE_DIFFERS]
    if len(differing) > settings.broken_share * documents_in:
        raise InputError(
            f"source {settings.source} has the license {license}, and {len(differing)} of {documents_in} "
            f"documents name another one, first {differing[0]['id']} ({differing[0]['value']}): set license_key of the "
            "source to the field with their license, and license_names to what its words mean"
        )


def _listed_values(listed: set[str], *values: str | None) -> Iterator[str]:
    """Yield the values that are on a list, in the spelling of the list, each once."""
    compared = dict.fromkeys(normalize_nfc(value) for value in values if value is not None)
    yield from (value for value in compared if value in listed)


class OptOutFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents on an opt-out list with the reason `opt_out`; the value is the matching entry.

    A domain matches all its subdomains. An id matches the id of a document, its original id after SOURCE/FILE/, or the
    replacement of an id with personal data. A holder matches the holder of the document or of its source. A file of its
    host, such as robots.txt, matches a document by its URL.
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
        self.reservations = WebReservations(opt_out.reservations)

    @classmethod
    def from_unit(cls, listed: dict[str, Any], exclusion_writer: RemovedDocuments | None = None) -> OptOutFilter:
        """Return the filter for the opt-outs in a unit's entry of the manifest."""
        made = cls(OptOut(**{kind: listed[kind] for kind in OPT_OUT_KINDS}), listed["holder"], exclusion_writer)
        rules = ({key: one[key] for key in HostRules.model_fields} for one in listed.get("reservations", ()))
        made.reservations = WebReservations(map(HostRules.model_validate, rules))
        return made

    def matching_entries(self, document: Document) -> Iterator[str]:
        """Yield the entries of the list that match a document, the deciding one first."""
        metadata = document.metadata
        ids = document.id, metadata.get("original_id"), metadata.get("withheld_id")
        yield from (f"id {candidate}" for candidate in _listed_values(self.ids, *ids))
        yield from (f"holder {name}" for name in _listed_values(self.holders, metadata.get("holder"), self.holder))
        if self.domains:
            suffixes = domain_suffixes(extract_host(document.metadata.get("url")))
            yield from (f"domain {suffix}" for suffix in suffixes if suffix in self.domains)
        if self.reservations:
            is_tdm_stated = STATES_TDM in (metadata.get("reservation") or "")
            yield from self.reservations.matching_entries(metadata.get("url"), is_tdm_stated=is_tdm_stated)

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        entry = next(self.matching_entries(document), None)
        if entry is None:
            return True
        document.metadata["filter_value"] = entry
        return False, OPT_OUT


class PageReservationFilter(BaseFilter):  # type: ignore[misc]
    """Removes pages whose HTTP header or meta tag reserves rights; the value is what it says.

    Copies on other pages stay: the page speaks for itself. The copies of what an opt-out list names are removed.
    """

    name = "Reserved by the page"

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        stated = document.metadata.get("reservation")
        if not is_reserved(stated):
            return True
        document.metadata["filter_value"] = stated
        return False, RESERVED_BY_PAGE
