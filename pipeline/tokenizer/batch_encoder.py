"""Encodes many texts with tiktoken where it gives the same ids as tokenizers, which is several times slower.

Both split a text into pieces by a pattern, and merge adjacent tokens of a piece, the lowest rank first and the leftmost
of equal ones. tokenizers merges a pair that its list of merges has. tiktoken merges any two tokens whose bytes together
are a token, by the rank of that token; a piece that is a token is not merged at all. These give the same ids if

1. no two merges make the same token, and the ids of made tokens ascend in the order of the merges, so that the rank of
   a token is its merge's, and
2. the merges turn the bytes of each made token into that token alone.

Proof: let both have the same tokens of a piece until tiktoken merges x and y, which are together the token t. No merge
crossed the borders of t, so the merges within t are the first ones that the bytes of t alone undergo. These end with t
by 2, and their last merge joins two tokens; here two are left, x and y, so (x, y) is a merge, of the same rank by 1. A
piece that is a token becomes it by 2. Byte-pair encoding as it is trained has both properties: a merge is learned from
such a state. `explain_tiktoken_mismatch` checks them for each token of a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations, product
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import Tokenizer

from pipeline.core.errors import InputError
from pipeline.tokenizer.encoder import Encoder, decode_byte_level, encode_byte_level
from pipeline.tokenizer.settings import DigitGrouping, Pretokenizer
from pipeline.tokenizer.train import pretoken_pattern

CHARACTERS_PER_CHECKED_CHARACTER = 1024
NO_TOKEN = "\0"
"""tiktoken needs a special token to search for; this one is not allowed, so that it is text where it occurs."""
# Most pieces of a text, as a regular expression without lookaround, which is matched faster. It is tried before the
# whole pattern and gives the same pieces: where it matches, no earlier alternative does, as each clitic has an
# apostrophe.
QUICK_PIECES = {
    "dutch": r"[^\r\n\p{L}\p{M}\p{N}'’‘]?[\p{L}\p{M}]+|\s*[\r\n]+",
    "llama3": r"[^\r\n\p{L}\p{N}']?\p{L}+|\s*[\r\n]+",
}
BYTES = [encode_byte_level(bytes([byte])) for byte in range(256)]
Ids = npt.NDArray[np.uint32]


class BatchEncoder:
    """Encodes batches of texts, without begin and end; names of special tokens are encoded as text.

    A share of the characters of each batch is encoded with both libraries. A difference is an error: the ids of
    earlier batches and shards may be wrong too.

    Attributes:
        reason: why tokenizers encodes; None if tiktoken does.
        exceptions: sizes in characters of texts that were too long for tiktoken, which tokenizers encoded.
        threads: number of threads that may call `encode` at a time; tokenizers has its own.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        content = json.loads(encoder.tokenizer.to_str())
        self.reason = explain_tiktoken_mismatch(content, encoder.tokenizer)
        self.exceptions: list[int] = []
        self.threads = 1
        if self.reason is None:
            markers = {token["content"]: token["id"] for token in content["added_tokens"] if not token["special"]}
            self._tiktoken = tiktoken.Encoding(
                encoder.sha256,
                pat_str=str(_quick_pattern(content)),
                mergeable_ranks=_token_ranks(content["model"]),
                special_tokens=markers or {NO_TOKEN: encoder.vocabulary_size},
            )
            self._markers = {*markers}
            self.threads = _count_threads()

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text.

        Raises:
            InputError: the two libraries encode a part of a text differently.
        """
        if self.reason is not None:
            return self._encode_with_tokenizers(texts)
        self._check_share(texts)
        return [self._encode_text(text) for text in texts]

    def describe(self) -> dict[str, Any]:
        """Return the encoding library, and why tokenizers encoded all or some of the texts."""
        if self.reason is not None:
            return {"library": "tokenizers", "reason": self.reason}
        return {"library": "tiktoken", "documents_with_tokenizers": len(self.exceptions)}

    def _encode_with_tokenizers(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(ids, dtype=np.uint32) for ids in self._encoder.encode([*texts])]

    def _encode_text(self, text: str) -> Ids:
        try:
            return self._tiktoken.encode_to_numpy(text, allowed_special=self._markers, disallowed_special=())
        except ValueError:  # matching a run of some 10^5 spaces or signs takes more steps than tiktoken allows
            self.exceptions.append(len(text))
            return self._encode_with_tokenizers([text])[0]

    def _check_share(self, texts: Sequence[str]) -> None:
        characters = sum(map(len, texts))
        if not characters:
            return
        text = texts[characters % len(texts)]
        size = max(characters // CHARACTERS_PER_CHECKED_CHARACTER, 1)
        start = characters % max(len(text) - size + 1, 1)
        part = text[start : start + size]
        if not np.array_equal(self._encode_text(part), self._encode_with_tokenizers([part])[0]):
            raise InputError(
                f"tiktoken {tiktoken.__version__} and tokenizers {tokenizers.__version__} encode a part of a document "
                "differently: install the versions of the lock, and make token shards of other versions again"
            )


def _count_threads() -> int:
    """Return the number of threads that tokenizers uses in the same place."""
    text = os.environ.get("RAYON_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) else len(os.sched_getaffinity(0))


def explain_tiktoken_mismatch(content: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """Return why tiktoken may give other ids than a tokenizer; None if it gives the same.

    Args:
        content: the tokenizer.json of the tokenizer.
    """
    model = content["model"]
    if model["type"] != "BPE":
        return f"the model is {model['type']}, not byte-pair encoding"
    for name in ("normalizer", "truncation", "padding"):
        if content[name] is not None:
            return f"it has a {name}"
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model[name]:
            return f"its model has {name}"
    if _quick_pattern(content) is None:
        return "its pattern is none of this version's tokenizer.train"
    return _explain_added_tokens(content["added_tokens"]) or _explain_merges(content, tokenizer)


def _quick_pattern(content: Mapping[str, Any]) -> str | None:
    """Return a fast pattern for the pieces of a tokenizer of this version's tokenizer.train; None for other ones."""
    match content["pre_tokenizer"]:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            for digits, name in product(get_args(DigitGrouping), get_args(Pretokenizer)):
                if pattern == pretoken_pattern(digits, name):
                    return f"(?:{QUICK_PIECES[name]})|{pattern}"
    return None


def _explain_added_tokens(added: Sequence[Mapping[str, Any]]) -> str | None:
    for token in added:
        if any(token[name] for name in ("single_word", "lstrip", "rstrip")):
            return f"the added token {token['content']!r} does more than stand for its text"
    for one, other in permutations((token["content"] for token in added), 2):
        if one in other or any(one.endswith(other[:size]) for size in range(1, len(other))):
            return f"the added tokens {one!r} and {other!r} may overlap in a text"
    return None


def _token_ranks(model: Mapping[str, Any]) -> dict[bytes, int]:
    """Return the ids of the bytes and of the tokens that merges make; no text is encoded with another one."""
    tokens = [*BYTES, *map("".join, model["merges"])]
    return {decode_byte_level(token): model["vocab"][token] for token in tokens}


def _explain_merges(content: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    vocabulary = content["model"]["vocab"]
    made = ["".join(merge) for merge in content["model"]["merges"]]
    if missing := [byte for byte in BYTES if byte not in vocabulary]:
        return f"the byte {decode_byte_level(missing[0])!r} is no token"
    for before, after in pairwise(made):
        if vocabulary[before] >= vocabulary[after]:
            return f"the ids of {before!r} and {after!r} are not in the order of their merges"
    for token in made:
        if [part.id for part in tokenizer.model.tokenize(token)] != [vocabulary[token]]:
            return f"the merges do not turn the bytes of {token!r} into it"
    return None
