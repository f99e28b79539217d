"""The datatrove block that identifies the language of a document and keeps the languages of the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.reader import RemovedDocuments
from pipeline.corpus.removal_reasons import LANGUAGE, MIXED_LANGUAGE
from pipeline.corpus.text.language_models import BayesIdentifier, FastTextIdentifier

# Documents that are judged one after another before the next block sees the first of them: what the model looks up then
# stays near the processor, where it has no room beside what the other blocks look up.
_AT_ONCE = 32


class Identifier(Protocol):
    """A model that knows languages by their codes: of ISO 639-1 where there is one, else of ISO 639-3."""

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language of a text and its probability, and the language and bytes of stretches if asked."""


def identifier(languages: Collection[str], model: Path | None = None) -> Identifier:
    """Return the fastText model of that file, or the one of py3langid.

    Raises:
        InputError: the model does not know one of the languages, or the file is no model.
    """
    if model is None:
        return BayesIdentifier.of(frozenset(languages))
    return FastTextIdentifier(model, languages)


class IdentifyLanguage(BaseFilter):  # type: ignore[misc]
    """Keeps a document whose identified language is one of `minimum_scores` with at least that probability.

    Where `mixed_language` has a share for the language, a document goes if a larger share of its stretches than that
    is in another language. Sets `language` and `language_score` in the metadata. Nothing is downloaded: the
    model comes with py3langid, or is a local file of fastText.
    """

    name = "Language"

    def __init__(
        self,
        minimum_scores: Mapping[str, float],
        exclusion_writer: RemovedDocuments | None = None,
        mixed_language: Mapping[str, float | None] | None = None,
        model: Path | None = None,
    ) -> None:
        super().__init__(exclusion_writer, _AT_ONCE)
        self.minimum_scores = dict(minimum_scores)
        self.mixed_language = dict(mixed_language or {})
        self.model = model
        self._identifier: Identifier | None = None

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        if self._identifier is None:
            self._identifier = identifier(self.minimum_scores, self.model)
        mixed = any(share is not None for share in self.mixed_language.values())
        language, score, stretches = self._identifier.identify(doc.text, stretches=mixed)
        doc.metadata |= {"language": language, "language_score": score}
        if language not in self.minimum_scores or score < self.minimum_scores[language]:
            doc.metadata["filter_value"] = f"{language} {score:.2f}"
            return False, LANGUAGE
        largest = self.mixed_language.get(language)
        others: Counter[str] = Counter()
        for found, size in stretches:
            others[found] += size
        share = 1 - others.pop(language, 0) / max(1, sum(size for _, size in stretches))
        if largest is not None and others and share > largest:
            doc.metadata["filter_value"] = f"{others.most_common(1)[0][0]} {share:.2f}"
            return False, MIXED_LANGUAGE
        return True

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        """Return for each document what `filter` does."""
        return list(map(self.filter, batch))

    def __getstate__(self) -> dict[str, object]:
        """Leave the model out of what is copied to workers: it is loaded where it is used."""
        return {**self.__dict__, "_identifier": None}
