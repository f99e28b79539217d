"""Datatrove block that flags documents with harmful content, and removes them if configured."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import fasttext
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.documents import HARMFUL
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.rules.settings import Harmful, HarmfulClassifier, WordList

_WORD = re.compile(r"\w+")


def _split_words(text: str) -> list[str]:
    return _WORD.findall(normalize_nfc(text).casefold())


class PhraseList:
    """A list of words and phrases; it matches whole words, without case and punctuation."""

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the word list {path} cannot be read ({error}): write one word or phrase per line"
            ) from None
        self._by_first: dict[str, set[tuple[str, ...]]] = {}
        for line in lines:
            if words := _split_words(line.partition("#")[0]):
                self._by_first.setdefault(words[0], set()).add(tuple(words))
        if not self._by_first:
            raise InputError(f"the word list {path} is empty: write one word or phrase per line, or remove the list")

    def count_hits(self, words: list[str]) -> int:
        """Return the number of positions in a text at which a phrase begins."""
        if self._by_first.keys().isdisjoint(words):
            return 0
        return sum(
            any(tuple(words[place : place + len(phrase)]) == phrase for phrase in self._by_first[word])
            for place, word in enumerate(words)
            if word in self._by_first
        )


@cache
def _load_classifier(path: Path, label: str) -> Any:
    try:
        model = fasttext.load_model(str(path))
    except ValueError as error:
        raise InputError(f"the classifier {path} does not load ({error}): give a .bin or .ftz of fastText") from None
    if label not in model.labels:
        labels = ", ".join(sorted(model.labels)[:10])
        raise InputError(f"the classifier {path} has no label {label!r}: choose one of {labels}")
    return model


class HarmfulContentFilter(BaseFilter):  # type: ignore[misc]
    """Sets `flags` in the metadata: the names of the lists and classifiers that flag a document.

    Removes a document with a flag whose list or classifier has `remove`. `counts` has the flagged and removed documents
    by flag.
    """

    name = "Harmful content"

    def __init__(self, settings: Harmful, files: list[Path], exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        entries = list(zip(settings.lists_and_classifiers(), files, strict=True))
        self.lists = [(entry, PhraseList(path)) for entry, path in entries if isinstance(entry, WordList)]
        self.classifiers = [(entry, path) for entry, path in entries if isinstance(entry, HarmfulClassifier)]
        for classifier, path in self.classifiers:
            _load_classifier(path, classifier.label)
        self.counts = {entry.name: {"flagged": 0, "removed": 0} for entry in settings.lists_and_classifiers()}

    def _find_flags(self, text: str, language: str) -> list[tuple[WordList | HarmfulClassifier, str]]:
        flags: list[tuple[WordList | HarmfulClassifier, str]] = []
        lists = [pair for pair in self.lists if not pair[0].languages or language in pair[0].languages]
        words = _split_words(text) if lists else []
        for entry, phrases in lists:
            hits = phrases.count_hits(words)
            share = hits / max(1, len(words))
            if entry.minimum_hits is not None and hits >= entry.minimum_hits:
                flags.append((entry, f"{entry.name}: {hits} hits"))
            elif entry.minimum_share is not None and share >= entry.minimum_share:
                flags.append((entry, f"{entry.name}: {share:.4f} of the words"))
        for classifier, path in self.classifiers:
            if not classifier.languages or language in classifier.languages:
                labels, shares = _load_classifier(path, classifier.label).predict(" ".join(text.split()), k=-1)
                probability = float(dict(zip(labels, shares, strict=True)).get(classifier.label, 0.0))
                if probability >= classifier.threshold:
                    flags.append((classifier, f"{classifier.name}: {probability:.4f}"))
        return flags

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        flags = self._find_flags(doc.text, doc.metadata["language"])
        doc.metadata["flags"] = [entry.name for entry, _ in flags]
        for entry, _ in flags:
            self.counts[entry.name]["flagged"] += 1
        for entry, value in flags:
            if entry.remove:
                self.counts[entry.name]["removed"] += 1
                doc.metadata["filter_value"] = value
                return False, HARMFUL
        return True
