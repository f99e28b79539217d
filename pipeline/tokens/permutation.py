"""Pseudo-random orders that are computed place by place, with no memory of the places before.

A Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) with the SplitMix64 mixer as round function
(Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195) permutes the next larger power of two; cycle
walking (Black and Rogaway 2002, https://doi.org/10.1007/3-540-45760-7_9) brings it down to the size that is wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# Even, so that the two parts of unequal width end where they began; with 8 and with 12 rounds the places of an epoch of
# five sequences are measurably not equally likely.
ROUNDS = 16


def mix(values: Words) -> Words:
    """SplitMix64: the next state's output for each 64-bit value; a bijection of 64-bit words."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def permute(
    indices: Integers, epochs: Integers, size: int | Integers, key: int | Words, *, backwards: bool = False
) -> Integers:
    """The place of each index 0 … size-1 in the pseudo-random order of its epoch; a bijection for each epoch and key.

    Epochs, sizes and keys are one for all indices or one for each; `backwards` gives the index of each place.
    """
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), indices.shape).astype(np.uint64)
    keys = np.asarray(key % 2**64 if isinstance(key, int) else key, dtype=np.uint64)
    # frexp's exponent is the number of bits; a float64 may round a size - 1 of more than 53 bits up to one bit more,
    # which the walk makes good.
    bits = np.maximum(np.frexp((sizes - np.uint64(1)).astype(np.float64))[1], 2).astype(np.uint64)
    low_bits: Words = bits - bits // np.uint64(2)
    one = np.uint64(1)
    masks = ((one << (bits // np.uint64(2))) - one, (one << low_bits) - one)
    key_N = mix(np.broadcast_to(mix(np.atleast_1d(keys)), indices.shape) ^ np.asarray(epochs).astype(np.uint64))
    rounds = range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS)
    places = indices.astype(np.uint64)
    walking = np.arange(len(places))
    while len(walking):
        shift, high_mask, low_mask = low_bits[walking], masks[0][walking], masks[1][walking]
        left: Words = places[walking] >> shift
        right: Words = places[walking] & low_mask
        round_key = key_N[walking]
        for number in rounds:
            keys_N = mix(round_key + np.uint64(number))
            mask = low_mask if number % 2 else high_mask
            if backwards:
                left, right = right ^ (mix(left ^ keys_N) & mask), left
            else:
                left, right = right, left ^ (mix(right ^ keys_N) & mask)
        found = (left << shift) | right
        places[walking] = found
        walking = walking[found >= sizes[walking]]
    return places.astype(np.int64)
