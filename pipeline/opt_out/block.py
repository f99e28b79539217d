"""The datatrove block that leaves out what its holders reserved, by domain, id or holder."""

from __future__ import annotations

from collections.abc import Iterator

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.hosts import host_of, suffixes_of
from pipeline.core.normalization import composed
from pipeline.corpus.reader import RemovedDocuments
from pipeline.corpus.removal import OPT_OUT
from pipeline.opt_out.lists import OptOut


def _on(listed: set[str], *values: str | None) -> Iterator[str]:
    """Yield which of the values are on a list, as the list writes them, a value once."""
    compared = dict.fromkeys(composed(value) for value in values if value is not None)
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

    def entries(self, document: Document) -> Iterator[str]:
        """Yield the entries that a document falls under, the one that decides first."""
        known = document.metadata
        ids = document.id, known.get("original_id"), known.get("withheld_id")
        yield from (f"id {candidate}" for candidate in _on(self.ids, *ids))
        yield from (f"holder {name}" for name in _on(self.holders, known.get("holder"), self.holder))
        if self.domains:
            suffixes = suffixes_of(host_of(document.metadata.get("url")))
            yield from (f"domain {suffix}" for suffix in suffixes if suffix in self.domains)

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """Return whether the document stays, and the reason where it does not."""
        entry = next(self.entries(document), None)
        if entry is None:
            return True
        document.metadata["filter_value"] = entry
        return False, OPT_OUT
