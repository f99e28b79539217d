"""A trained tokenizer as the later chapters use it: by its file, with the identifiers of its special tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.core.errors import InputError


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, the sha256 of its file and the identifiers of its begin, end and padding tokens."""

    tokenizer: Tokenizer
    sha256: str
    begin_of_text_id: int
    end_of_text_id: int
    pad_id: int

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, special ones included."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without begin and end tokens.

        The name of a special token that stands in a text is spelled out as ordinary text: data cannot end a document.
        """
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def load_encoder(path: Path) -> Encoder:
    """Reads a tokenizer.json of `tokenizer.train`, whose first three special tokens are begin, end and padding.

    Raises InputError when the file is no such tokenizer.
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
