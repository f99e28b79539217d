"""Numbers the pretokens of texts: the strings between white space, read from their bytes.

Lines and white space are those of `str.splitlines` and `str.split`. A hash table with comparison of bytes assigns equal
numbers to equal pretokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.cached_numba_compilation import cached_njit

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

_INSIDE, _SPACE, _BREAK, _RETURN, _LEAD = range(5)
_CLASSES = np.zeros(256, dtype=np.uint8)
_CLASSES[[0x09, 0x1F, 0x20]] = _SPACE
_CLASSES[[0x0A, 0x0B, 0x0C, 0x1C, 0x1D, 0x1E]] = _BREAK
_CLASSES[0x0D] = _RETURN
_CLASSES[[0xC2, 0xE1, 0xE2, 0xE3]] = _LEAD  # white space beyond ASCII begins with one of these
_FIRST_PRETOKENS, _FIRST_BYTES = 2**12, 2**16
POSITION, PRETOKENS, LINES, KNOWN = range(4)


@cached_njit
def _white_space_width(data: Bytes, place: int) -> tuple[int, bool]:
    """Return the bytes of the white space at a position, 0 if there is none, and whether it ends a line."""
    one = _CLASSES[data[place]]
    if one == _INSIDE:
        return 0, False
    if one == _SPACE:
        return 1, False
    if one == _BREAK:
        return 1, True
    if one == _RETURN:
        return (2, True) if place + 1 < len(data) and data[place + 1] == 0x0A else (1, True)
    if place + 1 >= len(data):
        return 0, False
    lead, second = data[place], data[place + 1]
    if lead == 0xC2:
        return (2, second == 0x85) if second == 0x85 or second == 0xA0 else (0, False)
    if place + 2 >= len(data):
        return 0, False
    third = data[place + 2]
    if lead == 0xE1:
        return (3, False) if second == 0x9A and third == 0x80 else (0, False)
    if lead == 0xE3:
        return (3, False) if second == 0x80 and third == 0x80 else (0, False)
    if second == 0x80:
        if third == 0xA8 or third == 0xA9:
            return 3, True
        return (3, False) if third <= 0x8A or third == 0xAF else (0, False)
    return (3, False) if second == 0x81 and third == 0x9F else (0, False)


@cached_njit
def _collapse_white_space(data: Bytes) -> tuple[Bytes, int]:
    joined = np.empty(len(data), dtype=np.uint8)
    place = size = characters = 0
    gap = False
    while place < len(data):
        width = _white_space_width(data, place)[0] if _CLASSES[data[place]] else 0
        if width:
            place, gap = place + width, size > 0
            continue
        if gap:
            joined[size], gap = 0x20, False
            size, characters = size + 1, characters + 1
        joined[size] = data[place]
        characters += data[place] & 0xC0 != 0x80
        size, place = size + 1, place + 1
    return joined[:size], characters


def collapse_white_space(text: str) -> tuple[Bytes, int]:
    """Return `" ".join(text.split())` in UTF-8, and its number of characters."""
    return _collapse_white_space(np.frombuffer(text.encode(), dtype=np.uint8))


@cached_njit
def _hash_slot(key: np.uint64, size: int) -> np.int64:
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1))


@cached_njit
def _number_pretokens(
    data: Bytes,
    state: Numbers,
    numbers_P: Integers,
    pretokens_L: Numbers,
    slots_S2: Numbers,
    known_K2: Numbers,
    stored: Bytes,
) -> bool:
    """Number the pretokens of a text from a position on; return False if the table is full.

    The key of a pretoken of at most seven bytes is its bytes and length, of a longer one a hash. `slots_S2` is a hash
    table with linear probing: a slot has a key and 2 · (number + 1), plus 1 for a longer pretoken. Pretoken i has the
    key `known_K2[i, 0]`; its bytes and a line feed are `stored[known_K2[i, 1]:known_K2[i + 1, 1]]`. The indices of
    `state` are POSITION, PRETOKENS, LINES and KNOWN.
    """
    place, pretokens, line, known = state
    size, counts = len(data), len(pretokens_L) > 0
    while place < size:
        kind = _CLASSES[data[place]]
        if kind:
            width, breaks = _white_space_width(data, place) if kind != _SPACE else (1, False)
            if width:
                place += width
                line += breaks
                continue
        start, value, word, bits = place, np.uint64(0), np.uint64(0), 0
        while place < size:
            if _CLASSES[data[place]] and _white_space_width(data, place)[0]:
                break
            if bits == 56:
                value = (value ^ word) * np.uint64(0xFF51AFD7ED558CCD)
                value, word, bits = value ^ (value >> np.uint64(32)), np.uint64(0), 0
            word |= np.uint64(data[place]) << np.uint64(bits)
            bits += 8
            place += 1
        length = place - start
        key, longer = word | np.uint64(length) << np.uint64(56), 0
        if length > 7:
            key, longer = (value ^ key) * np.uint64(0xC4CEB9FE1A85EC53), 1
        signed, slot = np.int64(key), _hash_slot(key, len(slots_S2))
        number = -1
        while slots_S2[slot, 1]:
            if slots_S2[slot, 0] == signed and slots_S2[slot, 1] & 1 == longer:
                candidate = (slots_S2[slot, 1] >> 1) - 1
                if not longer:
                    number = candidate
                    break
                at = known_K2[candidate, 1]
                same = 0 if known_K2[candidate + 1, 1] - at == length + 1 else length + 1
                while same < length and stored[at + same] == data[start + same]:
                    same += 1
                if same == length:
                    number = candidate
                    break
            slot = (slot + 1) & (len(slots_S2) - 1)
        if number < 0:
            end = known_K2[known, 1] + length + 1
            if known + 1 >= len(known_K2) or end > len(stored):
                state[0], state[1], state[2], state[3] = start, pretokens, line, known
                return False
            number = known
            slots_S2[slot, 0], slots_S2[slot, 1] = signed, 2 * known + 2 + longer
            known_K2[known, 0] = signed
            for step in range(length):
                stored[end - length - 1 + step] = data[start + step]
            stored[end - 1] = 0x0A
            known += 1
            known_K2[known, 1] = end
        numbers_P[pretokens] = number
        if counts:
            pretokens_L[line] += 1
        pretokens += 1
    state[0], state[1], state[2], state[3] = place, pretokens, line, known
    return True


@cached_njit
def _build_slots(known_K2: Numbers, known: int, size: int) -> Numbers:
    slots_S2 = np.zeros((size, 2), dtype=np.int64)
    for number in range(known):
        slot = _hash_slot(np.uint64(known_K2[number, 0]), size)
        while slots_S2[slot, 1]:
            slot = (slot + 1) & (size - 1)
        longer = known_K2[number + 1, 1] - known_K2[number, 1] > 8
        slots_S2[slot, 0], slots_S2[slot, 1] = known_K2[number, 0], 2 * number + 2 + longer
    return slots_S2


class GrowingArray:
    """An array that grows in place."""

    def __init__(self, values: Sequence[int] = (), kind: type[np.integer[Any]] = np.int64) -> None:
        self._size = len(values)
        self._values = np.array([*values, *[0] * 1024], dtype=kind)

    def __len__(self) -> int:
        return self._size

    def extend(self, new: npt.NDArray[np.integer[Any]]) -> None:
        size = self._size + len(new)
        if size > len(self._values):
            self._values = np.concatenate([self._values, np.zeros(size, dtype=self._values.dtype)])
        self._values[self._size : size] = new
        self._size = size

    def backing_array(self) -> npt.NDArray[Any]:
        """Return the array, which may have more elements than were added."""
        return self._values


class PretokenTable:
    """The different pretokens of texts, numbered by first occurrence."""

    def __init__(self) -> None:
        self._slots_S2 = np.zeros((2 * _FIRST_PRETOKENS, 2), dtype=np.int64)
        self._known_K2 = np.zeros((_FIRST_PRETOKENS, 2), dtype=np.int64)
        self._stored = np.zeros(_FIRST_BYTES, dtype=np.uint8)
        self._known = 0

    def __len__(self) -> int:
        return self._known

    def encode(self, text: str, lines: int = 0) -> tuple[Integers, Numbers, str]:
        """Return the numbers of a text's pretokens, the pretokens per line, and the new pretokens.

        A line feed ends each of the new pretokens.

        Args:
            lines: the number of lines of the text; 0 does not count pretokens per line.
        """
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        numbers_P = np.empty(len(data) // 2 + 1, dtype=np.int32)
        pretokens_L = np.zeros(lines, dtype=np.int64)
        state = np.array([0, 0, 0, self._known])
        while not _number_pretokens(data, state, numbers_P, pretokens_L, self._slots_S2, self._known_K2, self._stored):
            self._grow(int(state[KNOWN]), len(data))
        first, self._known = self._known, int(state[KNOWN])
        new = self._stored[self._known_K2[first, 1] : self._known_K2[self._known, 1]].tobytes()
        return numbers_P[: state[PRETOKENS]], pretokens_L, new.decode("utf-8", "surrogatepass")

    def _grow(self, known: int, wanted_bytes: int) -> None:
        if known + 1 >= len(self._known_K2):
            self._known_K2 = np.concatenate([self._known_K2, np.zeros_like(self._known_K2)])
            self._slots_S2 = _build_slots(self._known_K2, known, 2 * len(self._known_K2))
        else:
            self._stored = np.concatenate([self._stored, np.zeros(len(self._stored) + wanted_bytes, dtype=np.uint8)])
