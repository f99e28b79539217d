"""The datatrove filters that judge a document by what its source states about it, before its text is looked at."""

from __future__ import annotations

from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.documents import LANGUAGE_DIFFERS, URL_BLOCKED, URL_NOT_ALLOWED
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.settings import FilterSettings, UrlListFile
from pipeline.corpus.text.language_codes import states_other_language
from pipeline.corpus.url_lists import address_candidates, read_url_list

SHOWN_CHARACTERS = 40


class StatedLanguageFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents that state another language than that of their source; the value is what they state.

    A document that states no language, or an unknown one, is kept: its text decides later.

    Args:
        language: the language of the source.
    """

    name = "Stated language"

    def __init__(self, language: str, exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.language = language

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        written = document.metadata["own_language"] or ""
        if not states_other_language(written, self.language):
            return True
        document.metadata["filter_value"] = written[:SHOWN_CHARACTERS]
        return False, LANGUAGE_DIFFERS


class UrlListFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents whose address is on a block list, or, if there are allow lists, on none of them.

    The value is the list and its entry, or the host that is on no allow list. A document without an address is on no
    list.

    Args:
        paths: the files of the block lists, then those of the allow lists.

    Raises:
        InputError: a file has another sha256 than the settings, or is no list of domains and addresses.
    """

    name = "URL lists"

    def __init__(
        self, settings: FilterSettings, paths: list[Path], exclusion_writer: RemovedDocuments | None = None
    ) -> None:
        super().__init__(exclusion_writer)
        files = [*zip([*settings.blocked_urls, *settings.allowed_urls], paths, strict=True)]
        self._blocked, self._allowed = files[: len(settings.blocked_urls)], files[len(settings.blocked_urls) :]

    def _find_entry(self, files: list[tuple[UrlListFile, Path]], candidates: list[str]) -> str | None:
        for file, path in files:
            if entry := read_url_list(path, file.sha256).find_entry(candidates):
                return f"{file.name}: {entry}"
        return None

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        candidates = list(address_candidates(document.metadata["url"] or ""))
        if entry := self._find_entry(self._blocked, candidates):
            document.metadata["filter_value"] = entry
            return False, URL_BLOCKED
        if not self._allowed or self._find_entry(self._allowed, candidates):
            return True
        document.metadata["filter_value"] = candidates[0] if candidates else "it has none"
        return False, URL_NOT_ALLOWED
