"""py3langid's model of languages, read many bytes at a time.

The model is an automaton over bytes that reports an n-gram of up to six of them at each step, and a table of what each
n-gram says for each language (Lui and Baldwin 2012). As nothing further back than six bytes decides a state, a text is
read in four lanes at once, so that they do not wait for each other's memory: each but the first begins six bytes early.
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.corpus.compiled import compiled
from pipeline.corpus.language import cut
from pipeline.errors import InputError

# What is easily taken for Dutch or English, what is often mixed with it, and zxx: no language at all, such as code.
NEIGHBOURS = frozenset({"af", "da", "de", "en", "es", "fr", "fy", "it", "la", "lb", "nl", "no", "pt", "sv", "zxx"})
_MEMORY = 6  # bytes that decide a state
Bytes = npt.NDArray[np.uint8]
NGrams = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


@cache
def _automaton() -> tuple[LanguageIdentifier, NGrams, NGrams, NGrams]:
    """Return the model, the next state of each row and byte, the first place of each state's row, and its n-gram."""
    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    following = np.asarray(model.tk_nextmove).astype(np.int32)
    rows = np.asarray(model.tk_row, dtype=np.int32) << 8
    return model, following, rows, np.asarray(model.tk_output, dtype=np.int32)


@compiled
def _read(data: Bytes, following: NGrams, rows: NGrams, found: NGrams) -> NGrams:
    """Return the n-gram that each byte of a text completes, -1 for none."""
    size = len(data)
    grams = np.empty(size, dtype=np.int32)
    lane = size // 4 if size >= 4 * _MEMORY else 0
    one = two = three = four = np.int32(0)
    for early in range(_MEMORY if lane else 0, 0, -1):
        two = following[rows[two] + data[lane - early]]
        three = following[rows[three] + data[2 * lane - early]]
        four = following[rows[four] + data[3 * lane - early]]
    for place in range(lane):
        one = following[rows[one] + data[place]]
        two = following[rows[two] + data[lane + place]]
        three = following[rows[three] + data[2 * lane + place]]
        four = following[rows[four] + data[3 * lane + place]]
        grams[place], grams[lane + place] = found[one], found[two]
        grams[2 * lane + place], grams[3 * lane + place] = found[three], found[four]
    for place in range(4 * lane, size):
        four = following[rows[four] + data[place]]
        grams[place] = found[four]
    return grams


@compiled
def _count(grams: NGrams, counts: NGrams) -> NGrams:
    """Return the different n-grams, after counting how often each is there."""
    present = np.empty(len(grams), dtype=np.int32)
    number = 0
    for gram in grams:
        if gram >= 0:
            if counts[gram] == 0:
                present[number] = gram
                number += 1
            counts[gram] += 1
    return present[:number]


class BayesIdentifier:
    """Chooses among the languages of a corpus and their neighbours."""

    def __init__(self, languages: frozenset[str]) -> None:
        model = _automaton()[0]
        unknown = languages - set(model.labels)
        if unknown:
            raise InputError(
                f"corpus.languages: {', '.join(sorted(unknown))} cannot be identified: "
                "use two-letter codes of ISO 639-1"
            )
        model.set_languages(sorted(languages | NEIGHBOURS))
        self.labels: list[str] = model.nb_classes
        self._table = np.ascontiguousarray(model.nb_ptc, dtype=np.float32)
        self._counts = np.zeros(len(self._table), dtype=np.int32)
        self._prior = np.asarray(model.nb_pc, dtype=np.float32)

    @staticmethod
    @cache
    def of(languages: frozenset[str]) -> BayesIdentifier:
        """Return the identifier of these languages."""
        return BayesIdentifier(languages)

    @staticmethod
    def _encoded(text: str) -> bytes:
        text = text.lower() if text.isupper() else text
        return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")

    def _scores(self, grams: NGrams) -> npt.NDArray[np.float32]:
        """Return the logarithm of each language's probability, but for what all languages share; 0 without n-grams."""
        present = np.sort(_count(grams, self._counts))
        if not present.size:
            return np.zeros(len(self.labels), dtype=np.float32)
        counts = self._counts[present]
        self._counts[present] = 0
        scores: npt.NDArray[np.float32] = np.log1p(counts, dtype=np.float32) @ self._table[present] + self._prior
        return scores

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language of a text and its probability, as py3langid does, and those of its stretches."""
        data = self._encoded(text)
        grams = _read(np.frombuffer(data, dtype=np.uint8), *_automaton()[1:])
        scores = self._scores(grams) / np.float32(math.sqrt(len(data) or 1))
        shares = np.exp(scores - scores.max())
        best = int(shares.argmax())
        parts = [(start, end) for start, end in cut(data)] if stretches else []
        languages = [self.labels[int(self._scores(grams[start:end]).argmax())] for start, end in parts]
        sizes = [end - start for start, end in parts]
        return self.labels[best], float(shares[best] / shares.sum()), list(zip(languages, sizes, strict=True))
