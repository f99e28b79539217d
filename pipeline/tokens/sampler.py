"""Which tokens a training step sees: a pure function of seed, step, rank and world size, with no state and no file.

The split is cut into sequences of T tokens. Each epoch visits every sequence once, in its own pseudo-random order: a
Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) with the SplitMix64 mixer as round function
(Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195), a permutation of the next larger power of two,
brought down to the number of sequences by cycle walking (Black and Rogaway 2002,
https://doi.org/10.1007/3-540-45760-7_9). So any step is computed at once, and a job that continues needs its step only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.errors import InputError
from pipeline.tokens.reader import TokenReader

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# Even, so that the two parts of unequal width end where they began; with 8 and with 12 rounds the places of an epoch of
# five sequences are measurably not equally likely.
ROUNDS = 16
IGNORED = -100
"""The target of a padded position, which torch's cross entropy leaves out of the loss."""


def mix(values: Words) -> Words:
    """SplitMix64: the next state's output for each 64-bit value; a bijection of 64-bit words."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def permute(indices: Integers, epochs: Integers, size: int, seed: int) -> Integers:
    """The place of each index 0 … size-1 in the pseudo-random order of its epoch; a bijection for each epoch."""
    bits = max((size - 1).bit_length(), 2)
    low_bits = np.uint64(bits - bits // 2)
    low_mask, high_mask = np.uint64(2 ** (bits - bits // 2) - 1), np.uint64(2 ** (bits // 2) - 1)
    key_N = mix(mix(np.full(indices.shape, seed % 2**64, dtype=np.uint64)) ^ epochs.astype(np.uint64))
    keys_RN = mix(key_N + np.arange(ROUNDS, dtype=np.uint64)[:, None])
    places = indices.astype(np.uint64)
    walking = np.ones(indices.shape, dtype=bool)
    while walking.any():
        left, right = places[walking] >> low_bits, places[walking] & low_mask
        for number, keys_N in enumerate(keys_RN[:, walking]):
            left, right = right, left ^ (mix(right ^ keys_N) & (low_mask if number % 2 else high_mask))
        places[walking] = (left << low_bits) | right
        walking = places >= np.uint64(size)
    return places.astype(np.int64)


class Sampler:
    """The batches of a training run, equal at every world size that divides the global batch.

    Sequence i holds the input tokens i*T … i*T+T-1 and their successors as targets.
    Raises InputError when the split is shorter than one sequence.
    """

    def __init__(self, reader: TokenReader, sequence_length: int, global_batch_size: int, seed: int) -> None:
        if sequence_length + 1 > reader.tokens:
            raise InputError(
                f"sequence_length {sequence_length} needs at least {sequence_length + 1} tokens, "
                f"the {'training' if reader.split == 'train' else reader.split} split has {reader.tokens}: "
                "lower sequence_length or add text"
            )
        self.reader = reader
        self.sequence_length = sequence_length
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.sequences = (reader.tokens - 1) // sequence_length

    def global_batch(self, step: int) -> Integers:
        """The sequence numbers of a step (from 0), (B,); a batch may end one epoch and start the next."""
        places = np.arange(step * self.global_batch_size, (step + 1) * self.global_batch_size, dtype=np.int64)
        return permute(places % self.sequences, places // self.sequences, self.sequences, self.seed)

    def rank_batch(self, step: int, rank: int, world_size: int) -> Integers:
        """The share of one rank, (B / world_size,); the shares of all ranks, joined in order, are the global batch.

        Raises InputError when the world size does not divide the global batch.
        """
        return _share(self.global_batch(step), rank, world_size)

    def batch_tokens(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Integers, Integers]:
        """The input and target tokens of one rank, (B / world_size, T) each."""
        starts_B = self.rank_batch(step, rank, world_size) * self.sequence_length
        length = self.sequence_length
        return self.reader.read_rows(starts_B, length), self.reader.read_rows(starts_B + 1, length)


def validation_batches(
    reader: TokenReader,
    sequence_length: int,
    global_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    batches: int | None = None,
) -> Iterator[tuple[Integers, Integers]]:
    """The split in its own order, each token a target once: input and target tokens of one rank, (B / world_size, T).

    All batches have the same shape, so that every rank takes equally many steps: what is missing at the end is filled
    with begin-of-text as input and IGNORED as target. `batches` stops after that many global batches.
    Raises InputError when the split has fewer than two tokens or the world size does not divide the batch.
    """
    if reader.tokens < 2:
        raise InputError(
            f"the {reader.split} split has {reader.tokens} tokens and nothing to predict: "
            "raise tokens.validation_fraction or add text"
        )
    sequences = -(-(reader.tokens - 1) // sequence_length)
    available = -(-sequences // global_batch_size)
    for batch in range(available if batches is None else min(batches, available)):
        numbers = _share(np.arange(batch * global_batch_size, (batch + 1) * global_batch_size), rank, world_size)
        inputs_BT = np.full((len(numbers), sequence_length), reader.begin_of_text_id, dtype=np.int64)
        targets_BT = np.full((len(numbers), sequence_length), IGNORED, dtype=np.int64)
        for row, start in enumerate((numbers * sequence_length).tolist()):
            length = min(sequence_length, reader.tokens - 1 - start)
            if length > 0:
                tokens = reader.read(start, length + 1)
                inputs_BT[row, :length], targets_BT[row, :length] = tokens[:-1], tokens[1:]
        yield inputs_BT, targets_BT


def _share(numbers: Integers, rank: int, world_size: int) -> Integers:
    if len(numbers) % world_size:
        raise InputError(
            f"global_batch_size {len(numbers)} cannot be shared by {world_size} ranks: give a multiple of {world_size}"
        )
    size = len(numbers) // world_size
    return numbers[rank * size : (rank + 1) * size]
