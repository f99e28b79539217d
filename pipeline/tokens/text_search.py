"""Finds the parts of a text that occur in the training documents of a token set, and the documents.

Texts are compared by bytes, not by tokens, so a text is found at any token boundaries, but not across documents.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.tokenizer.encoder import SPECIAL_TOKEN_BYTE, build_vocabulary_byte_table, load_encoder
from pipeline.tokens import suffix_search
from pipeline.tokens.suffixes import open_suffix_array
from pipeline.tokens.token_reader import TokenReader, TokenRow

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextMatch:
    """A maximal part of a text that occurs in training documents."""

    start: int  # its first character in the text, from 0
    end: int  # one past its last character
    positions: list[Integers]  # for each shard, the token position of each occurrence, sorted

    @property
    def occurrence_count(self) -> int:
        """The number of occurrences in training documents, including several in one document."""
        return sum(map(len, self.positions))


def count_covered_characters(parts: list[TextMatch]) -> int:
    return len({place for part in parts for place in range(part.start, part.end)})


class TextSearch:
    """Searches the training documents of a token set with its suffix arrays.

    Raises:
        InputError: index, shards, suffix arrays or tokenizer are missing, damaged, or do not belong together.
    """

    def __init__(self, index: Path, tokenizer: Path, suffixes: list[Path] | None = None) -> None:
        self.reader = TokenReader(index, "train")
        encoder = load_encoder(tokenizer)
        if encoder.sha256 != self.reader.tokenizer_sha256:
            raise InputError(f"{tokenizer} is not the tokenizer that the tokens of {index} were made with")
        letters, spelled = build_vocabulary_byte_table(encoder)
        self._words = [letters[start:end].tobytes() for start, end in pairwise(spelled.tolist())]
        backwards = sorted(range(len(self._words)), key=lambda token: self._words[token][::-1])
        self._vocabulary = suffix_search.TokenBytes(letters, spelled, np.array(backwards, dtype=np.int64))
        self.rows: list[TokenRow] = []
        self._shards: list[suffix_search.SuffixArray] = []
        by_number = {path.stem: path for path in suffixes or ()}
        for number, entry in enumerate(json.loads(index.read_text(encoding="utf-8"))["train"]["shards"]):
            row = self.reader.select_shard_tokens(number)
            path = by_number.get(str(number), index.parent / "suffixes" / f"{number}.arrow")
            order = open_suffix_array(path, entry["sha256"], row.tokens)
            self.rows.append(row)
            self._shards.append(self._make_suffix_array(row, order))

    def _make_suffix_array(self, row: TokenRow, order: npt.NDArray[np.signedinteger[Any]]) -> suffix_search.SuffixArray:
        """Return the suffix array of a shard with one view of its tokens over all record batches of the mapped file."""
        views = [view for _, view in row.batch_views] or [np.empty(0, dtype=self.reader.dtype)]
        size, first = views[0].itemsize, views[0].ctypes.data
        places = [(view.ctypes.data - first) // size for view in views]
        starts = [start for start, _ in row.batch_views] or [0]
        tokens = np.lib.stride_tricks.as_strided(
            views[0], shape=(places[-1] + len(views[-1]),), strides=(size,), writeable=False
        )
        return suffix_search.SuffixArray(
            order,
            tokens,
            np.array([*starts, row.tokens], dtype=np.int64),
            np.array([place - start for place, start in zip(places, starts, strict=True)], dtype=np.int64),
            self._vocabulary,
        )

    @cached_property
    def _tokens_by_length(self) -> list[tuple[int, bytes]]:
        return sorted(enumerate(self._words), key=lambda numbered: -len(numbered[1]))

    def find_parts(self, text: str, minimum: int) -> list[TextMatch]:
        """Return the maximal parts of a text of at least `minimum` characters, in order; they may overlap.

        Every part of the text of that length in a training document is inside one of them. The text is searched in
        Unicode NFC, like the documents; positions refer to the text as given.

        Raises:
            InputError: the text cannot be encoded in UTF-8, or a suffix array does not match its shard.
        """
        searched = normalize_nfc(text)
        if searched != text:
            lengths = [len(normalize_nfc(text[:end])) for end in range(len(text) + 1)]
            place = [bisect(lengths, at) - 1 for at in range(len(searched) + 1)]
            parts = self.find_parts(searched, minimum)
            return [replace(part, start=place[part.start], end=place[part.end]) for part in parts]
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise InputError("the text holds half a character: give it in UTF-8") from None
        letters = np.frombuffer(content, dtype=np.uint8)
        reach, ends = (
            suffix_search.longest_vocabulary_suffix_lengths(self._vocabulary, letters),
            np.zeros(len(content), dtype=np.int64),
        )
        with _altered_array_as_error():
            for shard in self._shards:
                suffix_search.find_longest_matches(shard, letters, reach, minimum, ends)
            self._match_within_tokens(content, minimum, ends)
        borders = [at for at, letter in enumerate(content) if letter & 0xC0 != 0x80] + [len(content)]
        matches: list[TextMatch] = []
        before = 0
        for first, begin in enumerate(borders[:-1]):
            last = bisect(borders, int(ends[begin])) - 1
            if last > before and last - first >= minimum:
                before = last
                positions = [
                    self._find_positions(shard, content, begin, borders[last], reach) for shard in self._shards
                ]
                matches.append(TextMatch(first, last, positions))
        return matches

    def _match_within_tokens(self, text: bytes, minimum: int, ends: Integers) -> None:
        for number, word in self._long_tokens(minimum):
            wanted = [at for at in range(len(text) - minimum + 1) if text[at : at + minimum] in word]
            if wanted and any(len(self._token_positions(shard, number)) for shard in self._shards):
                for at in wanted:
                    end = at + minimum
                    while end < len(text) and text[at : end + 1] in word:
                        end += 1
                    ends[at] = max(ends[at], end)

    def _long_tokens(self, minimum: int) -> Iterator[tuple[int, bytes]]:
        return takewhile(lambda numbered: len(numbered[1]) > minimum, self._tokens_by_length)

    def _token_positions(self, shard: suffix_search.SuffixArray, number: int) -> Integers:
        word = np.frombuffer(self._words[number], dtype=np.uint8)
        positions = np.empty(
            suffix_search.find_single_token_occurrences(shard, word, number, np.empty(0, dtype=np.int64)),
            dtype=np.int64,
        )
        suffix_search.find_single_token_occurrences(shard, word, number, positions)
        return positions

    def _find_positions(
        self, shard: suffix_search.SuffixArray, text: bytes, start: int, end: int, reach: Integers
    ) -> Integers:
        letters = np.frombuffer(text, dtype=np.uint8)
        count = suffix_search.find_text_occurrences(shard, letters, start, end, reach, np.empty(0, dtype=np.int64))
        positions = [np.empty(count, dtype=np.int64)]
        suffix_search.find_text_occurrences(shard, letters, start, end, reach, positions[0])
        part = text[start:end]
        for number, word in self._long_tokens(len(part)):
            # At the first byte of a token, the suffix of that token already found the part.
            times = sum(word.startswith(part, at) for at in range(1, len(word)))
            positions += [self._token_positions(shard, number)] * times
        return np.sort(np.concatenate(positions))

    def count_documents(self, part: TextMatch) -> int:
        return sum(
            len(np.unique(np.searchsorted(row.document_starts, positions, side="right")))
            for row, positions in zip(self.rows, part.positions, strict=True)
        )

    def documents(self, part: TextMatch) -> Iterator[dict[str, Any]]:
        """Yield the documents with a part: id, source, language, own license, and the `occurrences` of the part."""
        for row, positions in zip(self.rows, part.positions, strict=True):
            at = 0
            while at < len(positions):
                document = row.documents_in(int(positions[at]), 1)[0]
                past = int(np.searchsorted(positions, document["end"], side="left"))
                yield {key: document[key] for key in ("id", "source", "language", "license")} | {
                    "occurrences": past - at
                }
                at = past

    def decode_row(self, row: TokenRow, start: int, end: int) -> str:
        """Return the text of the tokens start … end-1 of a row, without its special tokens."""
        spelled = self._spell(row.read(start, end - start).tolist())
        return spelled.replace(bytes([SPECIAL_TOKEN_BYTE]), b"").decode(errors="replace")

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens; undecodable bytes become U+FFFD and are stripped at both ends."""
        return self._spell(tokens).decode(errors="replace").strip("\ufffd")

    def contains(self, text: str) -> bool:
        """Return whether a complete text occurs in a training document; False for an empty text."""
        text = normalize_nfc(text)
        return bool(text) and bool(self.find_parts(text, len(text)))

    def _spell(self, tokens: list[int]) -> bytes:
        return b"".join(self._words[token] for token in tokens)


@contextmanager
def _altered_array_as_error() -> Iterator[None]:
    """Convert the ValueError of an altered suffix array to InputError."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"a suffix array was altered ({error}): build it again with tokens.suffixes") from None
