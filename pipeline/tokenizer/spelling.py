"""The bytes that each token of a byte-level tokenizer stands for; those of its tokens in a row are a text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.tokenizer.encoder import Encoder

SPECIAL = 0xFF
"""What a special token is spelled as: a byte that is in no UTF-8 text, so that no text goes on behind it."""


def spelling(encoder: Encoder) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of all tokens in the order of their identifiers, and where each begins, (vocabulary + 1,)."""
    added = encoder.tokenizer.get_added_tokens_decoder()
    spelled = [b""] * encoder.vocabulary_size
    for token, number in encoder.tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added:
            spelled[number] = bytes([SPECIAL]) if added[number].special else token.encode()
        else:
            spelled[number] = in_bytes(token)
    starts = np.cumsum([0, *map(len, spelled)], dtype=np.int64)
    return np.frombuffer(b"".join(spelled), dtype=np.uint8), starts


def in_bytes(token: str) -> bytes:
    """What a token stands for that is written in the characters of a vocabulary."""
    return bytes(map(_BYTES.__getitem__, token))


def in_characters(spelled: bytes) -> str:
    """How a vocabulary writes these bytes."""
    return "".join(map(_CHARACTERS.__getitem__, spelled))


def _byte_names() -> dict[str, int]:
    """The byte that each character of a vocabulary stands for.

    Printable bytes of Latin-1 stand for themselves, the others in their order for the characters from 256 on: Radford
    et al. 2019 (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_names()
_CHARACTERS = {byte: character for character, byte in _BYTES.items()}
