"""Which bytes of text each token of a tokenizer stands for, of byte-level tokenizers and of SentencePiece's."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError

_SPACE = "\u2581"  # which SentencePiece writes for a space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@cache
def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019, GPT-2's encoder).

    A byte that Latin-1 prints is its letter; the others follow each other from U+0100 on.
    """
    printed = [byte for byte in range(256) if chr(byte).isprintable() and byte != 0x20]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(others)}


def token_bytes(path: Path) -> list[bytes | None]:
    """Return the bytes of each token of a tokenizer.json by its number; None of special ones and of unused numbers.

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
    kinds = _types(content.get("decoder")) | _types(content.get("pre_tokenizer"))
    if "ByteLevel" not in kinds and not any(_SPACE in token for token in vocabulary):
        raise InputError(f"{path} has tokens that are neither byte-level nor SentencePiece's: their text is not known")
    read = _byte_level if "ByteLevel" in kinds else _sentence_piece
    found: list[bytes | None] = [None] * (1 + max([*vocabulary.values(), *added]))
    for token, number in vocabulary.items():
        found[number] = read(token)
    for number, token in added.items():
        found[number] = None if token.get("special") else token["content"].encode()
    return found


def _types(part: Any) -> set[str]:
    """Return the types of a part of a tokenizer and of the parts in it."""
    if not isinstance(part, dict):
        return set()
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return {str(part.get("type"))}.union(*map(_types, inner))


def _byte_level(token: str) -> bytes | None:
    letters = _byte_of_letter()
    return bytes(letters[letter] for letter in token) if all(letter in letters for letter in token) else None


def _sentence_piece(token: str) -> bytes:
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode()
