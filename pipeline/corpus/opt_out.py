"""The datatrove block that leaves out what its holders reserved, by domain, id or holder."""

from __future__ import annotations

from urllib.parse import urlsplit

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.reader import RemovedDocuments
from pipeline.sources.opt_out import OptOut


def host_of(url: str | None) -> str:
    """Return the host name of a URL as domains are compared: lower case, ASCII; empty where it has none."""
    if not url:
        return ""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""
    host = host.rstrip(".")
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


class OptOutFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents on an opt-out list under the reason `opt_out`, with the entry that decided as the value.

    A domain stands for all its subdomains. An id is that of the document, or the original one behind SOURCE/FILE/. A
    holder is that which a document names itself, or that of its source.
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

    def entry(self, document: Document) -> str | None:
        """Return the entry that a document falls under, or None."""
        for candidate in (document.id, document.metadata.get("original_id")):
            if candidate in self.ids:
                return f"id {candidate}"
        for holder in (document.metadata.get("holder"), self.holder):
            if holder in self.holders:
                return f"holder {holder}"
        if not self.domains:
            return None
        labels = host_of(document.metadata.get("url")).split(".")
        suffixes = (".".join(labels[start:]) for start in range(len(labels)))
        return next((f"domain {suffix}" for suffix in suffixes if suffix in self.domains), None)

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """Return whether the document stays, and the reason where it does not."""
        entry = self.entry(document)
        if entry is None:
            return True
        document.metadata["filter_value"] = entry
        return False, "opt_out"
