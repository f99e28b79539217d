"""Encodes texts with a trained tokenizer, and returns the bytes of its tokens."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.core.errors import InputError


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, the sha256 of its file, and the ids of its begin, end and padding tokens."""

    tokenizer: Tokenizer
    sha256: str
    begin_of_text_id: int
    end_of_text_id: int
    pad_id: int

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, including special ones."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, without begin and end; names of special tokens are encoded as text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def load_encoder(path: Path) -> Encoder:
    """Load a tokenizer.json of `tokenizer.train`; its first three special tokens are begin, end and padding.

    Raises:
        InputError: the file is no tokenizer.json with three special tokens.
    """
    content = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_str(content.decode())
        specials = sorted(token["id"] for token in json.loads(content)["added_tokens"] if token["special"])
        begin, end, pad = specials[:3]
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise InputError(
            f"{path} is not a tokenizer.json with begin, end and padding tokens: train it again ({error})"
        ) from error
    tokenizer.encode_special_tokens = True
    return Encoder(tokenizer, hashlib.sha256(content).hexdigest(), begin, end, pad)


SPECIAL_TOKEN_BYTE = 0xFF
"""The spelling of a special token: a byte that is invalid in UTF-8, so that no text matches across it."""


def build_vocabulary_byte_table(encoder: Encoder) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the concatenated bytes of all tokens by id, and the start of each and the end, (vocabulary + 1,)."""
    added = encoder.tokenizer.get_added_tokens_decoder()
    spelled = [b""] * encoder.vocabulary_size
    for token, number in encoder.tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added:
            spelled[number] = bytes([SPECIAL_TOKEN_BYTE]) if added[number].special else token.encode()
        else:
            spelled[number] = decode_byte_level(token)
    starts = np.cumsum([0, *map(len, spelled)], dtype=np.int64)
    return np.frombuffer(b"".join(spelled), dtype=np.uint8), starts


def decode_byte_level(token: str) -> bytes:
    return bytes(map(_BYTES.__getitem__, token))


def encode_byte_level(spelled: bytes) -> str:
    """Return bytes in the byte-level alphabet of a vocabulary."""
    return "".join(map(_CHARACTERS.__getitem__, spelled))


def _byte_decoder() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet (Radford et al. 2019, GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_decoder()
_CHARACTERS = {byte: character for character, byte in _BYTES.items()}


_SPACE = "\u2581"  # SentencePiece's space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def read_token_bytes(path: Path) -> list[bytes | None]:
    """Return the bytes of each token of a tokenizer.json by id; None for special tokens and unused ids.

    Raises:
        InputError: the file is no tokenizer.json, or its tokens are neither byte-level nor SentencePiece's.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written = content["model"]["vocab"]
        vocabulary = written if isinstance(written, dict) else {row[0]: number for number, row in enumerate(written)}
        added = {token["id"]: token for token in content["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path} is no tokenizer.json that can be read ({error!r}): give a whole folder") from None
    kinds = _collect_component_types(content.get("decoder")) | _collect_component_types(content.get("pre_tokenizer"))
    if "ByteLevel" not in kinds and not any(_SPACE in token for token in vocabulary):
        raise InputError(f"{path} has tokens that are neither byte-level nor SentencePiece's: their text is not known")
    decode = _byte_level_bytes if "ByteLevel" in kinds else _sentencepiece_bytes
    tokens: list[bytes | None] = [None] * (1 + max([*vocabulary.values(), *added]))
    for token, number in vocabulary.items():
        tokens[number] = decode(token)
    for number, token in added.items():
        tokens[number] = None if token.get("special") else token["content"].encode()
    return tokens


def _collect_component_types(part: Any) -> set[str]:
    if not isinstance(part, dict):
        return set()
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return {str(part.get("type"))}.union(*map(_collect_component_types, inner))


def _byte_level_bytes(token: str) -> bytes | None:
    return decode_byte_level(token) if all(letter in _BYTES for letter in token) else None


def _sentencepiece_bytes(token: str) -> bytes:
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode()
