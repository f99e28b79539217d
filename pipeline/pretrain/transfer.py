"""The embeddings of one vocabulary made from those of another: each token's from the tokens with the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TokenBytes = Sequence[bytes | None]
"""The text of each token by its number; None of special ones."""


class Transfer(NamedTuple):
    """From which rows of another vocabulary's matrix each row of ours is made; from none: from all of them."""

    rows: list[list[int]]

    def counts(self) -> dict[str, int]:
        """Return how many rows are one of theirs, the mean of several, or the mean of all, as theirs have no such text.

        Those that the model pads its vocabulary with are among the last.
        """
        sizes = [len(row) for row in self.rows]
        copied, unknown = sizes.count(1), sizes.count(0)
        return {"tokens_copied": copied, "tokens_composed": len(sizes) - copied - unknown, "tokens_unknown": unknown}

    def apply(self, theirs_VD: Tensor) -> Tensor:
        """Return our matrix, (V', D), from theirs, (V, D)."""
        numbers = torch.tensor([number for row in self.rows for number in row], dtype=torch.long)
        begins = torch.tensor([0, *accumulate(map(len, self.rows))][:-1], dtype=torch.long)
        ours_VD = F.embedding_bag(numbers, theirs_VD, begins, mode="mean")
        unknown = torch.tensor([not row for row in self.rows])
        ours_VD[unknown] = theirs_VD.mean(0)
        return ours_VD


def transfer(ours: TokenBytes, theirs: TokenBytes, special: Mapping[int, int], size: int) -> Transfer:
    """Return how `size` embeddings of our vocabulary are made from theirs.

    A token has the embedding of the token with the same bytes. One that they do not have has the mean of the tokens
    that its bytes are cut into, each time the longest that fits (after Gee et al. 2022, "Fast Vocabulary Transfer for
    Language Model Compression", who cut with the other tokenizer). `special` gives by their numbers in ours those of
    theirs that play the same part, such as the begin of a text.
    """
    # Of several with one text the last: SentencePiece's bytes, which stand in for unknown letters, come first.
    numbers = {text: number for number, text in enumerate(theirs) if text}
    longest = max(map(len, numbers), default=0)
    rows = [_cut(text, numbers, longest) if text else [] for text in ours]
    rows = [[special[number]] if number in special else row for number, row in enumerate(rows)]
    return Transfer((rows + [[] for _ in range(size - len(rows))])[:size])


def _cut(text: bytes, numbers: Mapping[bytes, int], longest: int) -> list[int]:
    """Return the longest tokens that a text begins with, one after the other; none where a byte is in no token."""
    found: list[int] = []
    place = 0
    while place < len(text):
        for end in range(min(len(text), place + longest), place, -1):
            if (number := numbers.get(text[place:end])) is not None:
                found.append(number)
                place = end
                break
        else:
            return []
    return found
