"""Finds a text in the suffix array of a shard, compiled: how far it goes on from each of its bytes, and where it is.

An occurrence of a text is told by the first of its bytes at which a token begins in the document: from there on it is
found by binary search, and the k bytes before are the last ones of the token before. `reach` says for each byte of the
text how many bytes before it are the end of any token at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.compiled import compiled

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Shard(NamedTuple):
    """What is searched: the suffix array, and the tokens that it is of.

    Attributes:
        order: positions of tokens, in the order of the text from there on.
        tokens: the file from its first token to its last, with what stands between the record batches.
        starts: the position of the first token of each record batch, and one past the last of all.
        shifts: what is added to a position of a record batch to have its place in `tokens`.
        letters: the bytes of all tokens of the vocabulary.
        spelled: where those of each token begin.
    """

    order: npt.NDArray[np.signedinteger[Any]]
    tokens: npt.NDArray[np.unsignedinteger[Any]]
    starts: Integers
    shifts: Integers
    letters: Bytes
    spelled: Integers


@compiled
def _place(shard: Shard, suffix: int) -> int:
    """Return where in the file the first token of a suffix stands."""
    position = shard.order[suffix]
    if position < 1 or position >= shard.starts[-1]:
        raise ValueError("a position is outside the shard")
    return int(position + shard.shifts[np.searchsorted(shard.starts, position, side="right") - 1])


@compiled
def _common(shard: Shard, suffix: int, text: Bytes, start: int, end: int) -> tuple[int, bool]:
    """Return how many bytes of `text[start:end]` the suffix begins with, and whether the text is the smaller one.

    A text that the suffix begins with is smaller. A special token ends every comparison.
    """
    place, at = _place(shard, suffix), start
    while place < len(shard.tokens) and shard.tokens[place] < len(shard.spelled) - 1:
        token = shard.tokens[place]
        for letter in range(shard.spelled[token], shard.spelled[token + 1]):
            if at == end:
                return at - start, True
            if text[at] != shard.letters[letter]:
                return at - start, text[at] < shard.letters[letter]
            at += 1
        place += 1
    return at - start, True


@compiled
def _bound(shard: Shard, text: Bytes, start: int, end: int, behind: bool) -> int:
    """Return the first suffix that is not smaller than a text; `behind`: and that does not begin with it either."""
    low, high = 0, len(shard.order)
    while low < high:
        middle = (low + high) // 2
        common, smaller = _common(shard, middle, text, start, end)
        if smaller and not (behind and common == end - start):
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _before(shard: Shard, suffix: int, text: Bytes, start: int) -> tuple[int, int]:
    """Return how many bytes before `start` the token before the suffix ends with, and how many bytes it has."""
    token = shard.tokens[_place(shard, suffix) - 1]
    if token >= len(shard.spelled) - 1:
        return 0, 0
    first, last = shard.spelled[token], shard.spelled[token + 1]
    size = 0
    while size < min(start, last - first) and text[start - 1 - size] == shard.letters[last - 1 - size]:
        size += 1
    return size, last - first


@compiled
def longest(shard: Shard, text: Bytes, reach: Integers, minimum: int, ends: Integers) -> None:
    """Raise `ends` to where the longest part from each byte of a text ends that stands in the shard.

    Parts of fewer than `minimum` bytes, and those within a single token, are left out.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    size = len(text)
    for start in range(size):
        below = _bound(shard, text, start, size, False)
        above = below - 1
        common_above = _common(shard, above, text, start, size)[0] if above >= 0 else 0
        common_below = _common(shard, below, text, start, size)[0] if below < len(shard.order) else 0
        common = max(common_above, common_below)
        if common >= minimum:
            ends[start] = max(ends[start], start + common)
        # From the nearest suffixes outwards, as long as one with more bytes before it would be a longer part.
        while common > 0:
            wanted = False
            for before in range(max(1, minimum - common), reach[start] + 1):
                wanted = wanted or ends[start - before] < start + common
            if not wanted:
                break
            suffix = above if common_above >= common_below else below
            for before in range(max(1, minimum - common), _before(shard, suffix, text, start)[0] + 1):
                ends[start - before] = max(ends[start - before], start + common)
            if suffix == above:
                above -= 1
                common_above = _common(shard, above, text, start, size)[0] if above >= 0 else 0
            else:
                below += 1
                common_below = _common(shard, below, text, start, size)[0] if below < len(shard.order) else 0
            common = max(common_above, common_below)


@compiled
def occurrences(shard: Shard, text: Bytes, start: int, end: int, reach: Integers, found: Integers) -> int:
    """Return how often `text[start:end]` stands in the shard, but for within a single token.

    As many as there is room for are written to `found`: the position of the first token that begins in each.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    count = 0
    for at in range(start, end):
        if at - start > reach[at]:
            continue
        last = _bound(shard, text, at, end, True)
        for suffix in range(_bound(shard, text, at, end, False), last):
            if at > start:
                before, size = _before(shard, suffix, text, at)
                # A token that begins with the text itself is found from there.
                if before < at - start or size == at - start:
                    continue
            if count < len(found):
                found[count] = shard.order[suffix]
            count += 1
    return count


@compiled
def of_token(shard: Shard, text: Bytes, token: int, found: Integers) -> int:
    """Return how often a token stands in the shard, `text` being its bytes; positions are written to `found`.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    count = 0
    last = _bound(shard, text, 0, len(text), True)
    for suffix in range(_bound(shard, text, 0, len(text), False), last):
        if shard.tokens[_place(shard, suffix)] == token:
            if count < len(found):
                found[count] = shard.order[suffix]
            count += 1
    return count
