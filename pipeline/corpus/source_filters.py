"""The datatrove filters that judge a document by what its source states about it, before its text is looked at."""

from __future__ import annotations

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.documents import LANGUAGE_DIFFERS
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.text.language_identification import normalize_language

SHOWN_CHARACTERS = 40
UNKNOWN_LANGUAGES = ("", "und", "unknown")


class StatedLanguageFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents that state another language than that of their source; the value is what they state.

    A document that states no language, or an unknown one, is kept: its text decides later.

    Args:
        language: the language of the source.
    """

    name = "Stated language"

    def __init__(self, language: str, exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.language = normalize_language(language)

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        written = document.metadata["own_language"] or ""
        if normalize_language(written) in (self.language, *UNKNOWN_LANGUAGES):
            return True
        document.metadata["filter_value"] = written[:SHOWN_CHARACTERS]
        return False, LANGUAGE_DIFFERS
