"""Texts in capitals, which models of languages have hardly seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.compiled import compiled


@compiled
def _has_more_capitals(data: npt.NDArray[np.uint8]) -> bool:
    """Return whether a text has more letters from A to Z than from a to z."""
    more = 0
    for byte in data:
        if 0x61 <= byte | 0x20 <= 0x7A:
            more += -1 if byte & 0x20 else 1
    return more > 0


def without_capitals(text: str) -> str:
    """Return a text of which most letters are capitals in lower case, any other as it is.

    A few small letters, such as those of a unit or an address, do not change what a text in capitals is.
    """
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return text.lower() if text.isupper() or _has_more_capitals(data) else text
