"""py3langid's model of languages, read many bytes at a time.

The model is an automaton over bytes that reports an n-gram of up to six of them at each step, and a table of what each
n-gram says for each language (Lui and Baldwin 2012). As nothing further back than six bytes decides a state, a text is
read in many short lanes at once, each begun six bytes early: the same n-grams as one byte at a time, ten times faster.
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.corpus.language import cut
from pipeline.errors import InputError

# What is easily taken for Dutch or English, what is often mixed with it, and zxx: no language at all, such as code.
NEIGHBOURS = frozenset({"af", "da", "de", "en", "es", "fr", "fy", "it", "la", "lb", "nl", "no", "pt", "sv", "zxx"})
_MEMORY = 6  # bytes that decide a state
_LANE_BYTES = 32
_BLOCK_BYTES = 2**20
NGrams = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


@cache
def _automaton() -> tuple[LanguageIdentifier, NGrams, Numbers, NGrams]:
    """Return the model, the next state of each row and byte, the first place of each state's row, and its n-gram."""
    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    following = np.asarray(model.tk_nextmove).astype(np.int32)
    rows: Numbers = np.asarray(model.tk_row, dtype=np.int64) << 8
    return model, following, rows, np.asarray(model.tk_output, dtype=np.int32)


def _read(data: bytes) -> NGrams:
    """Return the n-gram that each byte of a text completes, -1 for none."""
    _, following, rows, found = _automaton()
    parts = [np.zeros(0, dtype=np.int32)]
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[max(0, start - _MEMORY) : start + _BLOCK_BYTES]
        early = min(start, _MEMORY)
        size = len(block) - early
        lanes = -(-size // _LANE_BYTES)
        padded = np.zeros(_MEMORY + lanes * _LANE_BYTES, dtype=np.uint8)
        padded[_MEMORY - early : _MEMORY + size] = np.frombuffer(block, dtype=np.uint8)
        # Row i holds byte i of all lanes.
        bytes_TL = np.lib.stride_tricks.sliding_window_view(padded, _MEMORY + _LANE_BYTES)[::_LANE_BYTES].T
        states_TL = np.empty((_LANE_BYTES, lanes), dtype=np.int32)
        state_L = np.zeros(lanes, dtype=np.int32)
        for step, byte_L in enumerate(bytes_TL.astype(np.int64)):
            state_L = following.take(rows.take(state_L) + byte_L)
            if step >= _MEMORY:
                states_TL[step - _MEMORY] = state_L
            elif early == 0:
                state_L[0] = 0  # there is nothing before the beginning of the text
        parts.append(found.take(states_TL.T.reshape(-1)[:size]))
    return np.concatenate(parts)


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
        present = np.sort(grams[grams >= 0])
        if not present.size:
            return np.zeros(len(self.labels), dtype=np.float32)
        begins = np.flatnonzero(np.concatenate([[True], present[1:] != present[:-1]]))
        counts = np.diff(np.append(begins, present.size)).astype(np.float32)
        scores: npt.NDArray[np.float32] = np.log1p(counts) @ self._table[present[begins]] + self._prior
        return scores

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language of a text and its probability, as py3langid does, and those of its stretches."""
        data = self._encoded(text)
        grams = _read(data)
        scores = self._scores(grams) / np.float32(math.sqrt(len(data) or 1))
        shares = np.exp(scores - scores.max())
        best = int(shares.argmax())
        parts = [(start, end) for start, end in cut(data)] if stretches else []
        languages = [self.labels[int(self._scores(grams[start:end]).argmax())] for start, end in parts]
        sizes = [end - start for start, end in parts]
        return self.labels[best], float(shares[best] / shares.sum()), list(zip(languages, sizes, strict=True))
