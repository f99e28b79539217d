"""Reads the validation documents as rows of tokens, the same for every step and world size.

Without a number of tokens, all documents of the split are used. Otherwise a fixed share of the documents of each source
and language is used, at least one: those with the smallest id_hash, which is independent of the split and of the order
of files. So a smaller sample is part of a larger one, and every source is included.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.tokens.memory_mapped_shards import Group
from pipeline.tokens.sampler import IGNORE_INDEX, rank_share
from pipeline.tokens.token_reader import TokenReader

Integers = npt.NDArray[np.int64]
TOKENS_PER_READ = 1 << 20


class ValidationRows(NamedTuple):
    """The rows of one rank in a global batch: input and target tokens, and the document of each target; each (B, T)."""

    input_BT: Integers
    target_BT: Integers
    document_BT: Integers


class ValidationSet:
    """Documents of the validation split by source, language and id_hash: all, or a sample of about `tokens` tokens.

    `tokens_D` counts the predicted tokens of each document, with end-of-text and without begin-of-text. `bytes_D` is
    the size in UTF-8.

    Raises:
        InputError: the split has no documents.
    """

    def __init__(self, index: Path, tokens: int | None = None) -> None:
        self._reader = reader = TokenReader(index, "validation")
        if not reader.tokens:
            raise InputError(
                "the validation split holds no document: raise tokens.validation_fraction or add text, or set "
                "validation_every to 0"
            )
        self.groups: list[Group] = sorted(reader.groups)
        group_D = reader.compute_per_document(lambda batch, group: np.full(batch.num_rows, self.groups.index(group)))
        hash_D = reader.compute_per_document(lambda batch, _: batch.column("id_hash").to_numpy())
        bytes_D = reader.compute_per_document(lambda batch, _: batch.column("bytes").to_numpy())
        starts_D = reader.document_starts
        lengths_D = np.diff(starts_D, append=reader.tokens)
        self.split_documents, self.split_tokens = len(starts_D), int((lengths_D - 1).sum())
        order_D = np.lexsort((hash_D, group_D))
        if tokens is not None and tokens < self.split_tokens:
            sizes = np.bincount(group_D, minlength=len(self.groups)).tolist()
            wanted = [-(-size * tokens // self.split_tokens) for size in sizes]
            firsts = np.cumsum([0, *sizes])[:-1].tolist()
            chosen = [order_D[first : first + number] for first, number in zip(firsts, wanted, strict=True)]
            order_D = np.concatenate(chosen)
        self.group_D: Integers = group_D[order_D]
        self.id_hash_D: npt.NDArray[np.uint64] = hash_D[order_D]
        self.bytes_D: Integers = bytes_D[order_D]
        self.tokens_D: Integers = lengths_D[order_D] - 1
        self._starts_D: Integers = starts_D[order_D]
        self._borders: Integers = np.cumsum([0, *lengths_D[order_D]])

    @cached_property
    def document_subsets(self) -> dict[str, Integers]:
        """The document numbers of each language and source, by `language/NAME` and `source/NAME`."""
        documents_by_part = {}
        for column, place in (("language", 1), ("source", 0)):
            for name in sorted({group[place] for group in self.groups}):
                codes = [number for number, group in enumerate(self.groups) if group[place] == name]
                documents_by_part[f"{column}/{name}"] = np.flatnonzero(np.isin(self.group_D, codes))
        return documents_by_part

    def summarize_counts(self) -> dict[str, Any]:
        """Return the counts of the used documents and of the complete split."""
        return {
            "documents": len(self.tokens_D),
            "tokens": int(self.tokens_D.sum()),
            "bytes": int(self.bytes_D.sum()),
            "of_documents": self.split_documents,
            "of_tokens": self.split_tokens,
        }

    def iterate_predicted_pairs(self) -> Iterator[tuple[Integers, Integers]]:
        """Yield chunks of predicted tokens: the previous token of each, and the tokens; each (N,)."""
        end = int(self._borders[-1])
        for start in range(0, end - 1, TOKENS_PER_READ):
            token_N = self._read(start, min(TOKENS_PER_READ + 1, end - start))
            firsts = self._borders[(self._borders > start) & (self._borders < start + len(token_N))]
            is_predicted_N = np.ones(len(token_N) - 1, dtype=bool)
            is_predicted_N[firsts - start - 1] = False  # begin-of-text
            yield token_N[:-1][is_predicted_N], token_N[1:][is_predicted_N]

    def count_rows(self, sequence_length: int) -> int:
        """Return the number of rows of T tokens that all documents fill."""
        return -(-(int(self._borders[-1]) - 1) // sequence_length)

    def batches(
        self, sequence_length: int, global_batch_size: int, rank: int = 0, size: int = 1
    ) -> Iterator[ValidationRows]:
        """Yield the rows of one rank: all documents concatenated in rows of T tokens, as in training.

        Each token except begin-of-text is a target once. All batches have the same shape, so that all ranks take the
        same number of steps; padding has begin-of-text as input and IGNORE_INDEX as target.
        """
        for first in range(0, self.count_rows(sequence_length), global_batch_size):
            numbers = rank_share(np.arange(first, first + global_batch_size), rank, size)
            shape = (len(numbers), sequence_length)
            input_BT = np.full(shape, self._reader.begin_of_text_id, dtype=np.int64)
            target_BT, document_BT = np.full(shape, IGNORE_INDEX, dtype=np.int64), np.zeros(shape, dtype=np.int64)
            for row, start in enumerate((numbers * sequence_length).tolist()):
                length = min(sequence_length, int(self._borders[-1]) - 1 - start)
                if length > 0:
                    place_T = np.arange(start, start + length + 1)
                    document_T = np.searchsorted(self._borders, place_T, side="right") - 1
                    token_T = self._read(start, length + 1)
                    is_first_T = place_T == self._borders[document_T]
                    input_BT[row, :length] = token_T[:-1]
                    target_BT[row, :length] = np.where(is_first_T, IGNORE_INDEX, token_T)[1:]
                    document_BT[row, :length] = document_T[1:]
            yield ValidationRows(input_BT, target_BT, document_BT)

    def _read(self, start: int, length: int) -> Integers:
        """Return `length` tokens of the concatenated documents from `start`, (length,)."""
        parts, end = [], start + length
        document = int(np.searchsorted(self._borders, start, side="right")) - 1
        while start < end:
            upto = min(end, int(self._borders[document + 1]))
            offset = start - int(self._borders[document])
            parts.append(self._reader.read(int(self._starts_D[document]) + offset, upto - start))
            start, document = upto, document + 1
        return self._reader.check_vocabulary(np.concatenate(parts))
