"""Searches the suffix array of a shard for a text with compiled code: the longest match at each byte, and occurrences.

An occurrence of a text is identified by its first byte that begins a token in the document. From that byte it is found
by binary search; the k bytes before it must be the end of the previous token. `reach` is, for each byte of the text,
the maximum k for any token. If there are too many candidates to check the previous token of each, the search is
repeated with each possible previous token as prefix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.cached_numba_compilation import cached_njit

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


SEARCH_COST = 16  # a binary search takes as long as checking this many consecutive suffixes


class TokenBytes(NamedTuple):
    letters: Bytes  # of all tokens, concatenated
    spelled: Integers  # the start of each token, and the end of the last one
    backwards: Integers  # token ids, sorted by their reversed bytes


class SuffixArray(NamedTuple):
    """The suffix array of a shard, and its tokens."""

    order: npt.NDArray[np.signedinteger[Any]]  # token positions, sorted by the text from there on
    tokens: npt.NDArray[np.unsignedinteger[Any]]  # the file, including bytes between the record batches
    starts: Integers  # the position of the first token of each record batch, and the end of the last one
    shifts: Integers  # per record batch, the difference between index in `tokens` and token position
    vocabulary: TokenBytes


@cached_njit
def _token_place(shard: SuffixArray, suffix: int) -> int:
    """Return the index in `tokens` of the first token of a suffix."""
    position = shard.order[suffix]
    if position < 1 or position >= shard.starts[-1]:
        raise ValueError("a position is outside the shard")
    return int(position + shard.shifts[np.searchsorted(shard.starts, position, side="right") - 1])


@cached_njit
def _common_prefix(shard: SuffixArray, suffix: int, text: Bytes, start: int, end: int) -> tuple[int, bool]:
    """Return the length of the common prefix of `text[start:end]` and a suffix, and whether the text is smaller.

    A prefix of the suffix is smaller than it. A special token ends the comparison.
    """
    letters, spelled, _ = shard.vocabulary
    place, at = _token_place(shard, suffix), start
    while place < len(shard.tokens) and shard.tokens[place] < len(spelled) - 1:
        token = shard.tokens[place]
        for letter in range(spelled[token], spelled[token + 1]):
            if at == end:
                return at - start, True
            if text[at] != letters[letter]:
                return at - start, text[at] < letters[letter]
            at += 1
        place += 1
    return at - start, True


@cached_njit
def _first_suffix(shard: SuffixArray, text: Bytes, start: int, end: int, behind: bool) -> int:
    """Return the first suffix that is not smaller than a text; with `behind`, also not beginning with it."""
    low, high = 0, len(shard.order)
    while low < high:
        middle = (low + high) // 2
        common, smaller = _common_prefix(shard, middle, text, start, end)
        if smaller and not (behind and common == end - start):
            high = middle
        else:
            low = middle + 1
    return low


@cached_njit
def _common_suffix(vocabulary: TokenBytes, token: int, text: Bytes, end: int) -> tuple[int, int]:
    """Return the length of the common suffix of a token and `text[:end]`, and the length of the token."""
    if token >= len(vocabulary.spelled) - 1:
        return 0, 0
    first, last = vocabulary.spelled[token], vocabulary.spelled[token + 1]
    size = 0
    while size < min(end, last - first) and text[end - 1 - size] == vocabulary.letters[last - 1 - size]:
        size += 1
    return size, last - first


@cached_njit
def _preceding_bytes(shard: SuffixArray, suffix: int, text: Bytes, start: int) -> tuple[int, int]:
    """Return the common suffix length of `text[:start]` and the token before a suffix, and the token's length."""
    return _common_suffix(shard.vocabulary, shard.tokens[_token_place(shard, suffix) - 1], text, start)


@cached_njit
def _tokens_ending_with(vocabulary: TokenBytes, text: Bytes, start: int, end: int) -> tuple[int, int]:
    bounds = (0, 0)
    for behind in (False, True):
        low, high = 0, len(vocabulary.backwards)
        while low < high:
            middle = (low + high) // 2
            token = vocabulary.backwards[middle]
            same, size = _common_suffix(vocabulary, token, text, end)
            if same >= end - start:
                smaller = behind
            elif same == size:
                smaller = True
            else:
                smaller = vocabulary.letters[vocabulary.spelled[token + 1] - 1 - same] < text[end - 1 - same]
            if smaller:
                low = middle + 1
            else:
                high = middle
        bounds = (bounds[1], low)
    return bounds


@cached_njit
def longest_vocabulary_suffix_lengths(vocabulary: TokenBytes, text: Bytes) -> Integers:
    """Return, for each byte of a text and its end, how many bytes before it can be the end of a token."""
    reach = np.zeros(len(text) + 1, dtype=np.int64)
    for end in range(1, len(text) + 1):
        while reach[end] < end:
            first, last = _tokens_ending_with(vocabulary, text, end - reach[end] - 1, end)
            if first == last:
                break
            reach[end] += 1
    return reach


@cached_njit
def _token_then_text(vocabulary: TokenBytes, token: int, text: Bytes, start: int, end: int) -> Bytes:
    return np.concatenate(
        (vocabulary.letters[vocabulary.spelled[token] : vocabulary.spelled[token + 1]], text[start:end])
    )


@cached_njit
def _longest_prefix(shard: SuffixArray, text: Bytes, start: int) -> tuple[int, int, int]:
    """Return the first suffix not smaller than `text[start:]`, and the common prefixes of the one before and of it."""
    below, size = _first_suffix(shard, text, start, len(text), False), len(text)
    common_above = _common_prefix(shard, below - 1, text, start, size)[0] if below > 0 else 0
    common_below = _common_prefix(shard, below, text, start, size)[0] if below < len(shard.order) else 0
    return below, common_above, common_below


@cached_njit
def _extend_over_tokens(shard: SuffixArray, text: Bytes, start: int, least: int, minimum: int, ends: Integers) -> None:
    """Raise `ends` by occurrences whose first token begins at `start`, after a token that ends with `least` bytes."""
    first, last = _tokens_ending_with(shard.vocabulary, text, start - least, start)
    for token in shard.vocabulary.backwards[first:last]:
        key = _token_then_text(shard.vocabulary, token, text, start, len(text))
        _, common_above, common_below = _longest_prefix(shard, key, 0)
        before, size = _common_suffix(shard.vocabulary, token, text, start)
        common = max(common_above, common_below) - size
        for back in range(max(least, minimum - common), before + 1 if common > 0 else 0):
            ends[start - back] = max(ends[start - back], start + common)


@cached_njit
def find_longest_matches(shard: SuffixArray, text: Bytes, reach: Integers, minimum: int, ends: Integers) -> None:
    """Raise `ends` to the end of the longest part of a text from each byte that is in the shard.

    Parts of fewer than `minimum` bytes and parts inside a single token are ignored.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    size = len(text)
    for start in range(size):
        below, common_above, common_below = _longest_prefix(shard, text, start)
        above, looks = below - 1, 0
        common = max(common_above, common_below)
        if common >= minimum:
            ends[start] = max(ends[start], start + common)
        # From the nearest suffixes outwards, while one with more preceding bytes would give a longer part.
        while common > 0:
            least = 0
            for before in range(reach[start], max(1, minimum - common) - 1, -1):
                least = before if ends[start - before] < start + common else least
            if least == 0:
                break
            looks += 1
            if looks % (SEARCH_COST * SEARCH_COST) == 0:
                first, last = _tokens_ending_with(shard.vocabulary, text, start - least, start)
                if looks > SEARCH_COST * (last - first):
                    _extend_over_tokens(shard, text, start, least, minimum, ends)
                    break
            suffix = above if common_above >= common_below else below
            for before in range(max(1, minimum - common), _preceding_bytes(shard, suffix, text, start)[0] + 1):
                ends[start - before] = max(ends[start - before], start + common)
            if suffix == above:
                above -= 1
                common_above = _common_prefix(shard, above, text, start, size)[0] if above >= 0 else 0
            else:
                below += 1
                common_below = _common_prefix(shard, below, text, start, size)[0] if below < len(shard.order) else 0
            common = max(common_above, common_below)


@cached_njit
def find_text_occurrences(
    shard: SuffixArray, text: Bytes, start: int, end: int, reach: Integers, positions: Integers
) -> int:
    """Return the number of occurrences of `text[start:end]` in the shard, except inside a single token.

    Writes the position of the first token that begins in each to `positions`, up to its length.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    count = 0
    for at in range(start, end):
        if at - start > reach[at]:
            continue
        below, above = _first_suffix(shard, text, at, end, False), _first_suffix(shard, text, at, end, True)
        first, last = _tokens_ending_with(shard.vocabulary, text, start, at) if at > start else (0, 0)
        if at > start and above - below > SEARCH_COST * (last - first):
            for token in shard.vocabulary.backwards[first:last]:
                # A token of exactly the preceding bytes is found from its own first byte.
                if _common_suffix(shard.vocabulary, token, text, at)[1] == at - start:
                    continue
                key = _token_then_text(shard.vocabulary, token, text, at, end)
                for suffix in range(
                    _first_suffix(shard, key, 0, len(key), False), _first_suffix(shard, key, 0, len(key), True)
                ):
                    place = _token_place(shard, suffix)
                    if shard.tokens[place] == token:
                        if count < len(positions):
                            positions[count] = shard.order[suffix] + 1
                        count += 1
            continue
        for suffix in range(below, above):
            if at > start:
                before, size = _preceding_bytes(shard, suffix, text, at)
                # A token that begins at the start of the text is found from there.
                if before < at - start or size == at - start:
                    continue
            if count < len(positions):
                positions[count] = shard.order[suffix]
            count += 1
    return count


@cached_njit
def find_single_token_occurrences(shard: SuffixArray, text: Bytes, token: int, positions: Integers) -> int:
    """Return the number of occurrences of a token with the bytes `text`; write positions to `positions`.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    count = 0
    last = _first_suffix(shard, text, 0, len(text), True)
    for suffix in range(_first_suffix(shard, text, 0, len(text), False), last):
        if shard.tokens[_token_place(shard, suffix)] == token:
            if count < len(positions):
                positions[count] = shard.order[suffix]
            count += 1
    return count
