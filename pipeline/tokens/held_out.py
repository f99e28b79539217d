"""Read the held-out documents of a validation as rows of tokens: the same for every step and world size.

Without a number of tokens they are all of the split. Else they are the same share of the documents of each source and
language, at least one: those with the least id_hash, which is drawn independently of what is held out and of the order
of files. So a smaller sample is part of a larger one, and a source that stands last is not left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.tokens.sampler import IGNORED, share_of
from pipeline.tokens.shard_files import Group
from pipeline.tokens.token_reader import TokenReader

Integers = npt.NDArray[np.int64]
READ_AT_ONCE = 1 << 20


class ValidationRows(NamedTuple):
    """One rank's rows of a global batch: input and target tokens, and the document of each target; each (B, T)."""

    input_BT: Integers
    target_BT: Integers
    document_BT: Integers


class HeldOut:
    """Documents of the validation split, by source, language and id_hash: all of them, or about so many tokens of them.

    `tokens_D` counts what is predicted of each, its end-of-text included, its begin-of-text not; `bytes_D` is UTF-8's.
    """

    def __init__(self, index: Path, tokens: int | None = None) -> None:
        self._reader = reader = TokenReader(index, "validation")
        if not reader.tokens:
            raise InputError(
                "the validation split holds no document: raise tokens.validation_fraction or add text, or set "
                "validation_every to 0"
            )
        self.groups: list[Group] = sorted(reader.groups)
        group_D = reader.per_document(lambda batch, group: np.full(batch.num_rows, self.groups.index(group)))
        hash_D = reader.per_document(lambda batch, _: batch.column("id_hash").to_numpy())
        bytes_D = reader.per_document(lambda batch, _: batch.column("bytes").to_numpy())
        starts_D = reader.borders
        lengths_D = np.diff(starts_D, append=reader.tokens)
        self.of_documents, self.of_tokens = len(starts_D), int((lengths_D - 1).sum())
        order_D = np.lexsort((hash_D, group_D))
        if tokens is not None and tokens < self.of_tokens:
            sizes = np.bincount(group_D, minlength=len(self.groups)).tolist()
            wanted = [-(-size * tokens // self.of_tokens) for size in sizes]
            firsts = np.cumsum([0, *sizes])[:-1].tolist()
            chosen = [order_D[first : first + number] for first, number in zip(firsts, wanted, strict=True)]
            order_D = np.concatenate(chosen)
        self.group_D: Integers = group_D[order_D]
        self.bytes_D: Integers = bytes_D[order_D]
        self.tokens_D: Integers = lengths_D[order_D] - 1
        self._starts_D: Integers = starts_D[order_D]
        self._borders: Integers = np.cumsum([0, *lengths_D[order_D]])

    @cached_property
    def parts(self) -> dict[str, Integers]:
        """The numbers of the documents of each language and each source, by `language/NAME` and `source/NAME`."""
        found = {}
        for column, place in (("language", 1), ("source", 0)):
            for name in sorted({group[place] for group in self.groups}):
                codes = [number for number, group in enumerate(self.groups) if group[place] == name]
                found[f"{column}/{name}"] = np.flatnonzero(np.isin(self.group_D, codes))
        return found

    def described(self) -> dict[str, Any]:
        """Return what a validation sees, of how much."""
        return {
            "documents": len(self.tokens_D),
            "tokens": int(self.tokens_D.sum()),
            "bytes": int(self.bytes_D.sum()),
            "of_documents": self.of_documents,
            "of_tokens": self.of_tokens,
        }

    def pairs(self) -> Iterator[tuple[Integers, Integers]]:
        """Yield stretches of what is predicted: before each token the one it follows, and the tokens; each (N,)."""
        end = int(self._borders[-1])
        for start in range(0, end - 1, READ_AT_ONCE):
            token_N = self._read(start, min(READ_AT_ONCE + 1, end - start))
            firsts = self._borders[(self._borders > start) & (self._borders < start + len(token_N))]
            is_predicted_N = np.ones(len(token_N) - 1, dtype=bool)
            is_predicted_N[firsts - start - 1] = False  # begin-of-text
            yield token_N[:-1][is_predicted_N], token_N[1:][is_predicted_N]

    def batches(
        self, sequence_length: int, global_batch_size: int, rank: int = 0, size: int = 1
    ) -> Iterator[ValidationRows]:
        """Yield one rank's rows of all documents, one after another in rows of T tokens, as training reads its text.

        Each token but begin-of-text is a target once. All batches have the same shape, so that every rank takes equally
        many steps: the end is filled with begin-of-text as input and IGNORED.
        """
        rows = -(-(int(self._borders[-1]) - 1) // sequence_length)
        for first in range(0, rows, global_batch_size):
            numbers = share_of(np.arange(first, first + global_batch_size), rank, size)
            shape = (len(numbers), sequence_length)
            input_BT = np.full(shape, self._reader.begin_of_text_id, dtype=np.int64)
            target_BT, document_BT = np.full(shape, IGNORED, dtype=np.int64), np.zeros(shape, dtype=np.int64)
            for row, start in enumerate((numbers * sequence_length).tolist()):
                length = min(sequence_length, int(self._borders[-1]) - 1 - start)
                if length > 0:
                    place_T = np.arange(start, start + length + 1)
                    document_T = np.searchsorted(self._borders, place_T, side="right") - 1
                    token_T = self._read(start, length + 1)
                    is_first_T = place_T == self._borders[document_T]
                    input_BT[row, :length] = token_T[:-1]
                    target_BT[row, :length] = np.where(is_first_T, IGNORED, token_T)[1:]
                    document_BT[row, :length] = document_T[1:]
            yield ValidationRows(input_BT, target_BT, document_BT)

    def _read(self, start: int, length: int) -> Integers:
        """The tokens from `start` on of the documents one after another, (length,)."""
        parts, end = [], start + length
        document = int(np.searchsorted(self._borders, start, side="right")) - 1
        while start < end:
            upto = min(end, int(self._borders[document + 1]))
            offset = start - int(self._borders[document])
            parts.append(self._reader.read(int(self._starts_D[document]) + offset, upto - start))
            start, document = upto, document + 1
        return self._reader.known(np.concatenate(parts))


# Two models that know no language: how often each token stands in the training text, and how often after which. They
# are counted in a part of it that has every source and language in its share.


COUNTED_TOKENS = 20_000_000  # of the training text: the counts of common tokens no longer change by more
PAIR_WEIGHT = 0.7  # of the frequency of the pair, beside that of the token alone (Jelinek-Mercer)

Scored = tuple[Sequence[int], Sequence[int]]
"""The tokens before, and the tokens whose probability is asked."""


class Losses(NamedTuple):
    """The mean losses in nats per token of both models on one text."""

    unigram: float
    bigram: float


class WordModels:
    """A unigram and a bigram model of the training split, of the pairs that will be asked, or of all (0.6 GB)."""

    def __init__(self, index: Path, asked: Iterable[Scored] | None = None) -> None:
        reader = TokenReader(index, "train")
        size = self._size = reader.vocabulary_size
        pairs = {pair for before, tokens in asked or () for pair in _pairs(before, tokens)}
        highest = max((max(pair) for pair in pairs), default=0)
        if highest >= size:
            raise InputError(f"{index} has a vocabulary of {size}, the model's tokens reach {highest}: it is another's")
        self._counts = np.zeros(size, dtype=np.int64)
        self._followed = np.zeros(size, dtype=np.int64)  # how often another token comes after each
        self._pairs = np.array(sorted(before * size + token for before, token in pairs), dtype=np.int64)
        self._pair_counts = np.zeros(len(self._pairs), dtype=np.int64)
        share = min(1.0, COUNTED_TOKENS / max(reader.tokens, 1))
        found = [self._pairs]
        for _, view in reader.views:
            tokens = reader.known(view[: math.ceil(share * len(view))]).astype(np.int64)
            self._counts += np.bincount(tokens, minlength=size)
            self._followed += np.bincount(tokens[:-1], minlength=size)
            codes = tokens[:-1] * size + tokens[1:]
            if asked is None:
                found.append(codes)
            else:
                place, is_known = self._find(codes)
                self._pair_counts += np.bincount(place[is_known], minlength=len(self._pairs))
        if asked is None:
            self._pairs, self._pair_counts = np.unique(np.concatenate(found), return_counts=True)
        self.tokens, self.of_tokens = int(self._counts.sum()), reader.tokens

    def losses(self, text: Iterable[tuple[Integers, Integers]]) -> Losses:
        """Return the mean losses of a text that comes as stretches: its tokens, and before each the one it follows."""
        unigram, bigram, total = 0.0, 0.0, 0
        for before, tokens in text:
            codes, times = np.unique(before * self._size + tokens, return_counts=True)
            unigram -= float((times * np.log(self._probabilities(codes % self._size))).sum())
            bigram -= float((times * np.log(self._pair_probabilities(codes))).sum())
            total += len(tokens)
        return Losses(unigram / total, bigram / total)

    def unigram(self, scored: Scored) -> float:
        """Return the log-probability in nats of the tokens, each for itself; one more is counted of each token."""
        return float(np.log(self._probabilities(scored[1])).sum())

    def bigram(self, scored: Scored) -> float:
        """Return the log-probability in nats of the tokens, each after the one before it."""
        codes = np.array([before * self._size + token for before, token in _pairs(*scored)], dtype=np.int64)
        return float(np.log(self._pair_probabilities(codes)).sum())

    def _probabilities(self, tokens: Sequence[int] | Integers) -> npt.NDArray[np.float64]:
        return (self._counts[np.asarray(tokens, dtype=np.int64)] + 1) / (self.tokens + self._size)

    def _pair_probabilities(self, codes: Integers) -> npt.NDArray[np.float64]:
        """Return the probability of each coded pair's second token after its first, or alone where nothing follows."""
        before, token = np.divmod(codes, self._size)
        followed = self._followed[before]
        probability = np.where(followed > 0, 1 - PAIR_WEIGHT, 1.0) * self._probabilities(token)
        place, is_known = self._find(codes)
        times = self._pair_counts[place[is_known]]
        probability[is_known] += PAIR_WEIGHT * times / np.maximum(followed[is_known], 1)
        return probability

    def _find(self, codes: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return where each pair stands among the known ones, and whether it does."""
        place = np.searchsorted(self._pairs, codes)
        is_known = place < len(self._pairs)
        is_known[is_known] = self._pairs[place[is_known]] == codes[is_known]
        return place, is_known


def _pairs(before: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Return each token with the one before it; the first one of all stands after itself."""
    row = [*(before[-1:] or tokens[:1]), *tokens]
    return list(pairwise(row))
