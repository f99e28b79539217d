"""Find a text in the suffix array of a shard, compiled: how far it matches from each of its bytes, and where.

An occurrence of a text is told by the first of its bytes at which a token begins in the document: from there on it is
found by binary search, and the k bytes before are the last ones of the token before. `reach` says for each byte of the
text how many bytes before it are the end of any token at all. Where so much stands in the shard that to look at the
token before each is slow, the text is searched behind each token that could be there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.numba_cache import compiled

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


DEARER = 16  # a binary search takes as long as a look at so many suffixes in a row


class TokenBytes(NamedTuple):
    """The tokens that a tokenizer knows."""

    letters: Bytes  # of all of them
    spelled: Integers  # where those of each begin, and one past the last of all
    backwards: Integers  # their numbers, sorted by their bytes read backwards


class SuffixArray(NamedTuple):
    """What is searched: the suffix array, and the tokens that it is of."""

    order: npt.NDArray[np.signedinteger[Any]]  # positions of tokens, in the order of the text from there on
    tokens: npt.NDArray[np.unsignedinteger[Any]]  # the file, with what stands between the record batches
    starts: Integers  # the position of the first token of each record batch, and one past the last of all
    shifts: Integers  # what is added to a position of a record batch to have its place in `tokens`
    vocabulary: TokenBytes


@compiled
def _place(shard: SuffixArray, suffix: int) -> int:
    """Return where in the file the first token of a suffix stands."""
    position = shard.order[suffix]
    if position < 1 or position >= shard.starts[-1]:
        raise ValueError("a position is outside the shard")
    return int(position + shard.shifts[np.searchsorted(shard.starts, position, side="right") - 1])


@compiled
def _common(shard: SuffixArray, suffix: int, text: Bytes, start: int, end: int) -> tuple[int, bool]:
    """Return how many bytes of `text[start:end]` the suffix begins with, and whether the text is the smaller one.

    A text that the suffix begins with is smaller. A special token ends every comparison.
    """
    letters, spelled, _ = shard.vocabulary
    place, at = _place(shard, suffix), start
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


@compiled
def _bound(shard: SuffixArray, text: Bytes, start: int, end: int, behind: bool) -> int:
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
def _end(vocabulary: TokenBytes, token: int, text: Bytes, end: int) -> tuple[int, int]:
    """Return how many bytes of `text[:end]` a token ends with, and how many bytes it has."""
    if token >= len(vocabulary.spelled) - 1:
        return 0, 0
    first, last = vocabulary.spelled[token], vocabulary.spelled[token + 1]
    size = 0
    while size < min(end, last - first) and text[end - 1 - size] == vocabulary.letters[last - 1 - size]:
        size += 1
    return size, last - first


@compiled
def _before(shard: SuffixArray, suffix: int, text: Bytes, start: int) -> tuple[int, int]:
    """Return how many bytes before `start` the token before the suffix ends with, and how many bytes it has."""
    return _end(shard.vocabulary, shard.tokens[_place(shard, suffix) - 1], text, start)


@compiled
def _ending(vocabulary: TokenBytes, text: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return between which places of `backwards` the tokens are that end with `text[start:end]`."""
    found = (0, 0)
    for behind in (False, True):
        low, high = 0, len(vocabulary.backwards)
        while low < high:
            middle = (low + high) // 2
            token = vocabulary.backwards[middle]
            same, size = _end(vocabulary, token, text, end)
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
        found = (found[1], low)
    return found


@compiled
def reachable_bytes(vocabulary: TokenBytes, text: Bytes) -> Integers:
    """Return how many bytes before each byte of a text, and before its end, are the end of some token."""
    reach = np.zeros(len(text) + 1, dtype=np.int64)
    for end in range(1, len(text) + 1):
        while reach[end] < end:
            first, last = _ending(vocabulary, text, end - reach[end] - 1, end)
            if first == last:
                break
            reach[end] += 1
    return reach


@compiled
def _behind(vocabulary: TokenBytes, token: int, text: Bytes, start: int, end: int) -> Bytes:
    """Return the bytes of a token and then `text[start:end]`."""
    return np.concatenate(
        (vocabulary.letters[vocabulary.spelled[token] : vocabulary.spelled[token + 1]], text[start:end])
    )


@compiled
def _longest(shard: SuffixArray, text: Bytes, start: int) -> tuple[int, int, int]:
    """Return the first suffix that is not smaller than `text[start:]`, and what it and the one before it begin with."""
    below, size = _bound(shard, text, start, len(text), False), len(text)
    common_above = _common(shard, below - 1, text, start, size)[0] if below > 0 else 0
    common_below = _common(shard, below, text, start, size)[0] if below < len(shard.order) else 0
    return below, common_above, common_below


@compiled
def _longest_behind_tokens(
    shard: SuffixArray, text: Bytes, start: int, least: int, minimum: int, ends: Integers
) -> None:
    """Raise `ends` by the occurrences before whose first token, at `start`, a token ends with `least` bytes or more."""
    first, last = _ending(shard.vocabulary, text, start - least, start)
    for token in shard.vocabulary.backwards[first:last]:
        key = _behind(shard.vocabulary, token, text, start, len(text))
        _, common_above, common_below = _longest(shard, key, 0)
        before, size = _end(shard.vocabulary, token, text, start)
        common = max(common_above, common_below) - size
        for back in range(max(least, minimum - common), before + 1 if common > 0 else 0):
            ends[start - back] = max(ends[start - back], start + common)


@compiled
def longest(shard: SuffixArray, text: Bytes, reach: Integers, minimum: int, ends: Integers) -> None:
    """Raise `ends` to where the longest part from each byte of a text ends that stands in the shard.

    Parts of fewer than `minimum` bytes, and those within a single token, are left out.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    size = len(text)
    for start in range(size):
        below, common_above, common_below = _longest(shard, text, start)
        above, looks = below - 1, 0
        common = max(common_above, common_below)
        if common >= minimum:
            ends[start] = max(ends[start], start + common)
        # From the nearest suffixes outwards, as long as one with more bytes before it would be a longer part.
        while common > 0:
            least = 0
            for before in range(reach[start], max(1, minimum - common) - 1, -1):
                least = before if ends[start - before] < start + common else least
            if least == 0:
                break
            looks += 1
            if looks % (DEARER * DEARER) == 0:
                first, last = _ending(shard.vocabulary, text, start - least, start)
                if looks > DEARER * (last - first):
                    _longest_behind_tokens(shard, text, start, least, minimum, ends)
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
def occurrences(shard: SuffixArray, text: Bytes, start: int, end: int, reach: Integers, found: Integers) -> int:
    """Return how often `text[start:end]` stands in the shard, but for within a single token.

    As many as there is room for are written to `found`: the position of the first token that begins in each.

    Raises:
        ValueError: the suffix array does not fit its shard.
    """
    count = 0
    for at in range(start, end):
        if at - start > reach[at]:
            continue
        below, above = _bound(shard, text, at, end, False), _bound(shard, text, at, end, True)
        first, last = _ending(shard.vocabulary, text, start, at) if at > start else (0, 0)
        if at > start and above - below > DEARER * (last - first):
            for token in shard.vocabulary.backwards[first:last]:
                # A token that is no longer than the bytes before is found from its own first byte.
                if _end(shard.vocabulary, token, text, at)[1] == at - start:
                    continue
                key = _behind(shard.vocabulary, token, text, at, end)
                for suffix in range(_bound(shard, key, 0, len(key), False), _bound(shard, key, 0, len(key), True)):
                    place = _place(shard, suffix)
                    if shard.tokens[place] == token:
                        if count < len(found):
                            found[count] = shard.order[suffix] + 1
                        count += 1
            continue
        for suffix in range(below, above):
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
def of_token(shard: SuffixArray, text: Bytes, token: int, found: Integers) -> int:
    """Return how often the token with the bytes `text` occurs in the shard; positions are written to `found`.

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
