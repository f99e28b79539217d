"""The datatrove block that identifies the language of a document and keeps the languages of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.corpus.reader import RemovedDocuments
from pipeline.errors import InputError

# What is easily taken for Dutch or English, what is often mixed with it, and zxx: no language at all, such as code.
NEIGHBOURS = frozenset({"af", "da", "de", "en", "es", "fr", "fy", "it", "la", "lb", "nl", "no", "pt", "sv", "zxx"})


@cache
def _identifier(languages: frozenset[str]) -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    unknown = languages - set(identifier.labels)
    if unknown:
        raise InputError(
            f"corpus.languages: {', '.join(sorted(unknown))} cannot be identified: use two-letter codes of ISO 639-1"
        )
    identifier.set_languages(sorted(languages))
    return identifier


class IdentifyLanguage(BaseFilter):  # type: ignore[misc]
    """Keeps a document whose identified language is one of `minimum_scores` with at least that probability.

    Sets `language` and `language_score` in the metadata. The model comes with py3langid; nothing is downloaded.
    """

    name = "Language"

    def __init__(self, minimum_scores: Mapping[str, float], exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.minimum_scores = dict(minimum_scores)
        self.candidates = NEIGHBOURS.union(self.minimum_scores)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        language, score = _identifier(self.candidates).classify(doc.text)
        doc.metadata |= {"language": language, "language_score": score}
        if language in self.minimum_scores and score >= self.minimum_scores[language]:
            return True
        doc.metadata["filter_value"] = f"{language} {score:.2f}"
        return False, "language"
