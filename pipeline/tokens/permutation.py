"""Pseudo-random orders that are computed place by place, with no memory of the places before.

A Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) with the SplitMix64 mixer as round function
(Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195), on pairs of numbers below any two ranges with
addition in place of exclusive or, permutes the next larger rectangle; cycle walking (both Black and Rogaway 2002,
https://doi.org/10.1007/3-540-45760-7_9) brings it down to the size that is wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# With few rounds the places of an epoch of five sequences are measurably not equally likely.
ROUNDS = 16


def mix(values: Words) -> Words:
    """SplitMix64: the next state's output for each 64-bit value; a bijection of 64-bit words."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


ROUND_KEYS = mix(np.arange(ROUNDS, dtype=np.uint64))


def permute(
    indices: Integers, epochs: Integers, size: int | Integers, key: int | Words, *, backwards: bool = False
) -> Integers:
    """The place of each index 0 … size-1 in the pseudo-random order of its epoch; a bijection for each epoch and key.

    Epochs, sizes (up to 2**62) and keys are one for all indices or one for each; `backwards` gives the index of each
    place.
    """
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), indices.shape).astype(np.uint64)
    keys = np.asarray(key % 2**64 if isinstance(key, int) else key, dtype=np.uint64)
    key_N = mix(np.broadcast_to(mix(np.atleast_1d(keys)), indices.shape) ^ np.asarray(epochs).astype(np.uint64))
    # Any widths whose product is not below the size make a bijection; near the root few places lie outside the size.
    heights: Words = np.maximum(np.sqrt(sizes.astype(np.float64)).astype(np.uint64), np.uint64(1))
    widths = (sizes - np.uint64(1)) // heights + np.uint64(1)
    rounds = range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS)
    places = indices.astype(np.uint64)
    walking = np.arange(len(places))
    while len(walking):
        width, height, walking_keys = widths[walking], heights[walking], key_N[walking]
        parts = list(np.divmod(places[walking], width))
        ranges = (height, width)
        for number in rounds:
            changed = number % 2
            # The mixer's upper half times the range, over 2**32: a number below the range, without a division.
            mixed = mix(parts[1 - changed] ^ walking_keys ^ ROUND_KEYS[number]) >> np.uint64(32)
            shift = (mixed * ranges[changed]) >> np.uint64(32)
            moved = parts[changed] + (ranges[changed] - shift if backwards else shift)
            parts[changed] = moved - ranges[changed] * (moved >= ranges[changed])
        found = parts[0] * width + parts[1]
        places[walking] = found
        walking = walking[found >= sizes[walking]]
    return places.astype(np.int64)
