"""The hash of a batch: which tokens stand at which of its places, whichever processes compute them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from pipeline.tokens.permutation import Integers

_WORDS = 4


def batch_words(tokens_BT: Integers, first_place: int) -> NDArray[np.float64]:
    """Return what a part of a batch adds to its hash, (4,): whole numbers.

    `tokens_BT` are its sequences with the token after each, (B, T + 1), the first of which stands at `first_place` of
    the batch, counted from 0. A sequence adds the first four 32-bit numbers of SHA-256 of its place (8 bytes) and its
    tokens (4 bytes each), all of them little-endian. In 64 bits of floating point, in which processes add them up, sums
    over less than two million sequences are exact.
    """
    words = np.zeros(_WORDS)
    for place, tokens_T in enumerate(tokens_BT.astype("<u4"), first_place):
        digest = hashlib.sha256(place.to_bytes(8, "little") + tokens_T.tobytes()).digest()
        words += np.frombuffer(digest, dtype="<u4", count=_WORDS)
    return words


def batch_hash(words: NDArray[np.float64]) -> str:
    """Return the hash of a batch from the sum of its parts: each of the four modulo 2**32, in hexadecimal digits."""
    return "".join(f"{int(word) % 2**32:08x}" for word in words)
