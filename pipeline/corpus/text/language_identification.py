"""Identifies the language of documents with py3langid's model or a fastText model from a file.

py3langid's model is an automaton over bytes that reports n-grams of up to six bytes, and a table of log-probabilities
of n-grams by language (Lui and Baldwin 2012). A state depends on the last six bytes only. So a text is read in several
interleaved lanes, each starting six bytes early, which hides memory latency. Supported fastText models include
lid.176.bin, lid.176.ftz and GlotLID's model.bin.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.corpus.documents import LANGUAGE, MIXED_LANGUAGE
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.language_codes import language_from_label


@cached_njit
def _has_more_capitals(data: npt.NDArray[np.uint8]) -> bool:
    more = 0
    for byte in data:
        if 0x61 <= byte | 0x20 <= 0x7A:
            more += -1 if byte & 0x20 else 1
    return more > 0


def lowercase_all_caps(text: str) -> str:
    """Return a text in lower case if most of its letters are capitals, else unchanged.

    A few small letters, such as in a unit or a URL, do not matter.
    """
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return text.lower() if text.isupper() or _has_more_capitals(data) else text


SEGMENT_BYTES = 1000


def split_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of segments of complete lines, each long enough to identify; none for a single segment."""
    start = 0
    while len(data) - start >= SEGMENT_BYTES and (start or len(data) >= 2 * SEGMENT_BYTES):
        end = data.find(b"\n", start + SEGMENT_BYTES - 1)
        end = len(data) if end < 0 else end
        yield start, end
        start = end + 1


# Languages that are similar to Dutch or English or often mixed with them, and zxx: no language, such as code.
NEIGHBORS = frozenset({"af", "da", "de", "en", "es", "fr", "fy", "it", "la", "lb", "nl", "no", "pt", "sv", "zxx"})
_MEMORY, _LANES = 6, 16  # bytes that determine a state, and lanes in which a text is read
_LOGARITHMS = np.log1p(np.arange(1024))
Bytes = npt.NDArray[np.uint8]
NGrams = npt.NDArray[np.int32]
Table = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


@cached_njit
def _match_ngrams(data: Bytes, following: NGrams, rows: NGrams, ngram_by_state: NGrams) -> NGrams:
    """Return the number of the n-gram that each byte of a text completes, or -1."""
    size = len(data)
    grams = np.empty(size, dtype=np.int32)
    width = size // _LANES if size >= _LANES * _MEMORY else 0
    states = np.zeros(_LANES, dtype=np.int32)
    for early in range(_MEMORY if width else 0, 0, -1):
        for lane in range(1, _LANES):
            states[lane] = following[rows[states[lane]] + data[lane * width - early]]
    for place in range(width):
        for lane in range(_LANES):
            states[lane] = following[rows[states[lane]] + data[lane * width + place]]
            grams[lane * width + place] = ngram_by_state[states[lane]]
    state = states[_LANES - 1]
    for place in range(_LANES * width, size):
        state = following[rows[state] + data[place]]
        grams[place] = ngram_by_state[state]
    return grams


@cached_njit
def _sum_ngram_scores(grams: NGrams, counts: NGrams, table: Table, logarithms: Scores) -> tuple[int, Scores]:
    """Return the number of different n-grams and the weighted sum of their scores for each language.

    The weight of an n-gram is log(1 + count), with a lookup table in `logarithms`. `counts` is scratch memory of zeros.
    """
    present = np.empty(len(grams), dtype=np.int32)
    number = 0
    for gram in grams:
        if gram >= 0:
            if counts[gram] == 0:
                present[number] = gram
                number += 1
            counts[gram] += 1
    sums = np.zeros(table.shape[1])
    for gram in present[:number]:
        count = counts[gram]
        weight = logarithms[count] if count < len(logarithms) else np.log1p(count)
        for language in range(table.shape[1]):
            sums[language] += weight * table[gram, language]
        counts[gram] = 0
    return number, sums


class BayesIdentifier:
    """Identifies the languages of a corpus and their neighbors with py3langid's naive Bayes model."""

    def __init__(self, languages: frozenset[str]) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # not imported if fastText is used

        model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        unknown = languages - set(model.labels)
        if unknown:
            raise InputError(
                f"corpus.languages: {', '.join(sorted(unknown))} cannot be identified: "
                "use two-letter codes of ISO 639-1"
            )
        model.set_languages(sorted(languages | NEIGHBORS))
        self.labels: list[str] = model.nb_classes
        self._table = np.array(model.nb_ptc, dtype=np.float32, order="C")
        self._counts = np.zeros(len(self._table), dtype=np.int32)
        self._prior = np.array(model.nb_pc, dtype=np.float64)
        # The next state by row and byte, the start of each state's row, and its n-gram.
        self._following = np.array(model.tk_nextmove, dtype=np.int32)
        self._rows = np.asarray(model.tk_row, dtype=np.int32) << 8
        self._ngram_by_state = np.array(model.tk_output, dtype=np.int32)

    @staticmethod
    @cache
    def cached_identifier(languages: frozenset[str]) -> BayesIdentifier:
        return BayesIdentifier(languages)

    def match_ngrams(self, data: bytes) -> NGrams:
        """Return the number of the n-gram that each byte completes, or -1."""
        return _match_ngrams(np.frombuffer(data, dtype=np.uint8), self._following, self._rows, self._ngram_by_state)

    def _scores(self, grams: NGrams) -> Scores:
        """Return the log-probability of each language up to a constant; 0 without n-grams."""
        number, sums = _sum_ngram_scores(grams, self._counts, self._table, _LOGARITHMS)
        return sums + self._prior if number else sums

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language and its probability, as py3langid does, and the language and bytes of each segment.

        Unlike in py3langid, a text in capitals may contain some small letters.
        """
        data = unicodedata.normalize("NFC", lowercase_all_caps(text)).encode("utf-8", "surrogatepass")
        grams = self.match_ngrams(data)
        scores = self._scores(grams) / math.sqrt(len(data) or 1)
        shares = np.exp(scores - scores.max())
        best = int(shares.argmax())
        parts = [(start, end) for start, end in split_segments(data)] if stretches else []
        languages = [self.labels[int(self._scores(grams[start:end]).argmax())] for start, end in parts]
        sizes = [end - start for start, end in parts]
        return self.labels[best], float(shares[best] / shares.sum()), list(zip(languages, sizes, strict=True))


class FastTextIdentifier:
    """Identifies all languages of a fastText model."""

    def __init__(self, path: Path, languages: Collection[str]) -> None:
        import fasttext

        try:
            self._model = fasttext.load_model(str(path))
        except ValueError as error:
            raise InputError(f"language_model: {path.name} is no model of fastText: {error}") from None
        known = {language_from_label(label) for label in self._model.get_labels()}
        unknown = sorted(set(languages) - known)
        if unknown:
            raise InputError(
                f"corpus.languages: {', '.join(unknown)} cannot be identified by {path.name}: "
                "use another model, or leave the language out"
            )

    def _predict(self, text: str) -> tuple[str, float]:
        labels, shares = self._model.predict(text.replace("\n", " "))
        # The model's probabilities may exceed 1 by rounding.
        return (language_from_label(labels[0]), min(1.0, float(shares[0]))) if labels else ("und", 0.0)

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language of a text and its probability, and the language and bytes of each segment."""
        text = lowercase_all_caps(text)
        data = text.encode()
        parts = list(split_segments(data)) if stretches else []
        judged = [(self._predict(data[start:end].decode("utf-8", "ignore"))[0], end - start) for start, end in parts]
        return *self._predict(text), judged


# Documents per batch: the model's table then stays in the CPU cache instead of competing with the other blocks.
_BATCH_SIZE = 32


# Languages are ISO 639-1 codes, or ISO 639-3 codes for languages without one.
Identifier = BayesIdentifier | FastTextIdentifier


def load_identifier(languages: Collection[str], model: Path | None = None) -> Identifier:
    """Return the fastText model of a file, or py3langid's model.

    Raises:
        InputError: the model does not know one of the languages, or the file is no fastText model.
    """
    if model is None:
        return BayesIdentifier.cached_identifier(frozenset(languages))
    return FastTextIdentifier(model, languages)


class LanguageFilter(BaseFilter):  # type: ignore[misc]
    """Keeps documents in a language of `minimum_scores` with at least that probability.

    If `mixed_language` has a share for the language, documents with a larger share of segments in other languages are
    removed. Sets `language` and `language_score` in the metadata. Nothing is downloaded: the model is part of py3langid
    or a local fastText file.
    """

    name = "Language"

    def __init__(
        self,
        minimum_scores: Mapping[str, float],
        exclusion_writer: RemovedDocuments | None = None,
        mixed_language: Mapping[str, float | None] | None = None,
        model: Path | None = None,
    ) -> None:
        super().__init__(exclusion_writer, _BATCH_SIZE)
        self.minimum_scores = dict(minimum_scores)
        self.mixed_language = dict(mixed_language or {})
        self.model = model
        self._identifier: Identifier | None = None

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        if self._identifier is None:
            self._identifier = load_identifier(self.minimum_scores, self.model)
        mixed = any(share is not None for share in self.mixed_language.values())
        language, score, segments = self._identifier.identify(doc.text, stretches=mixed)
        doc.metadata |= {"language": language, "language_score": score}
        if language not in self.minimum_scores or score < self.minimum_scores[language]:
            doc.metadata["filter_value"] = f"{language} {score:.2f}"
            return False, LANGUAGE
        largest = self.mixed_language.get(language)
        others: Counter[str] = Counter()
        for segment_language, size in segments:
            others[segment_language] += size
        share = 1 - others.pop(language, 0) / max(1, sum(size for _, size in segments))
        if largest is not None and others and share > largest:
            doc.metadata["filter_value"] = f"{others.most_common(1)[0][0]} {share:.2f}"
            return False, MIXED_LANGUAGE
        return True

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        return list(map(self.filter, batch))

    def __getstate__(self) -> dict[str, object]:
        """Exclude the model from copies for workers, which load it themselves."""
        return {**self.__dict__, "_identifier": None}
