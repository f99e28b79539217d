"""Selects the tokens of a training step, as a pure function of seed, step, recorded skips, rank and world size.

Groups of the split (source, language and strata) with the same mixing rates form a stream: one long row of tokens over
all shards, divided into sequences of T tokens. Each epoch of a stream visits every sequence once, in its own
pseudo-random order. There is no index file and no state: a resumed job needs only its step and its skips.
"""

from __future__ import annotations

import difflib
import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.core.batch_schedule import BatchSchedule, RampStage
from pipeline.core.errors import InputError
from pipeline.tokens.data_order import Integers, StreamOrder
from pipeline.tokens.memory_mapped_shards import Group
from pipeline.tokens.settings import Mixture, Sampling
from pipeline.tokens.token_reader import TokenReader

IGNORE_INDEX = -100
"""The target of a padded position, which torch's cross entropy ignores."""


def document_boundaries(tokens_BT: Integers, begin_of_text_id: int) -> NDArray[np.int32]:
    """Return the start of each document, or rest of one, in the flattened rows, and the end, (documents + 1,)."""
    begins_BT = tokens_BT == begin_of_text_id
    begins_BT[:, 0] = True
    return np.append(np.flatnonzero(begins_BT), begins_BT.size).astype(np.int32)


def data_step_after_skips(step: int, skips: Sequence[int]) -> int:
    """Return the data step of a training step, both from 0: the step-th one that is not in the ascending `skips`."""
    kept_before = [skip - number for number, skip in enumerate(skips)]
    return step + bisect_left(kept_before, step + 1)


def count_total_tokens_seen(batches: BatchSchedule, steps: int, skips: Sequence[int]) -> int:
    """Return the tokens that a training has seen after `steps` steps, without the skipped data steps."""
    end = data_step_after_skips(steps - 1, skips) + 1 if steps else 0
    left_out = sum(batches.at(skip).batch_size for skip in skips if skip < end)
    return batches.count_tokens(0, end) - left_out * batches.sequence_length


class Sampler:
    """The batches of a training, the same at every world size that divides the global batch size.

    Sequence i of a stream has the input tokens i*T … i*T+T-1, and the tokens after each as targets.

    Args:
        ramp: smaller first batches.
        skips: the skipped data steps, from 0 and ascending; the list may grow.

    Raises:
        InputError: a stream is shorter than one sequence, or the sampling names a group that the split does not have.
    """

    def __init__(
        self,
        reader: TokenReader,
        sequence_length: int,
        global_batch_size: int,
        seed: int,
        sampling: Sampling | None = None,
        steps: int | None = None,
        skips: Sequence[int] = (),
        ramp: Sequence[RampStage] = (),
    ) -> None:
        self.reader = reader
        self.sequence_length = sequence_length
        self.skips = skips
        mixtures = [(0, Mixture())] if sampling is None else sampling.mixtures(steps or 2**62)
        groups_by_rate: dict[tuple[tuple[str, Fraction], ...], list[Group]] = {}
        for _, mixture in mixtures:
            _check_mixture_names(reader, mixture)
        for group in sorted(reader.groups):
            named = dict(zip(reader.grouped_by, group, strict=True))
            groups_by_rate.setdefault(tuple(_mixture_rate(mixture, named) for _, mixture in mixtures), []).append(group)
        rates = list(groups_by_rate)
        rows = (
            [reader]
            if len(groups_by_rate) < 2
            else [reader.select_tokens_of_groups(set(groups).__contains__) for groups in groups_by_rate.values()]
        )
        sizes = [max(row.tokens - 1, 0) // sequence_length for row in rows]
        split = "training" if reader.split == "train" else reader.split
        for rate, row, size in zip(rates or [((split, Fraction(1)),)], rows, sizes, strict=True):
            if not size and any(amount for _, amount in rate):
                of = f"the {split} split" if len(rows) == 1 else f"the part of the {split} split for {rate[0][0]}"
                raise InputError(
                    f"sequence_length {sequence_length} needs at least {sequence_length + 1} tokens, {of} has "
                    f"{row.tokens}: lower sequence_length or add text"
                )
        self.rows = rows
        self.groups = list(groups_by_rate.values())
        phases = []
        for number, (start, mixture) in enumerate(mixtures):
            of_name: dict[str, int] = {}
            for rate, size in zip(rates, sizes, strict=True):
                of_name[rate[number][0]] = of_name.get(rate[number][0], 0) + size
            # Streams of the same name share its weight; an epoch is a complete pass over each of them.
            weights = [
                rate[number][1] * (Fraction(size, of_name[rate[number][0]] or 1) if mixture.weights else size)
                for rate, size in zip(rates, sizes, strict=True)
            ]
            if not sum(weights):
                raise InputError(f"sampling: nothing is left of the tokens from step {start} on: raise a weight")
            phases.append((start, weights))
        keys = [
            int.from_bytes(hashlib.sha256(f"{seed} {groups}".encode()).digest()[:8])
            for groups in groups_by_rate.values()
        ]
        self.batches = BatchSchedule(sequence_length, global_batch_size, ramp)
        self.order = StreamOrder(sizes, keys, phases, self.batches)
        self.sequences = sum(sizes)

    def data_step(self, step: int) -> int:
        return data_step_after_skips(step, self.skips)

    def global_batch_sequence_numbers(self, step: int) -> Integers:
        """Return the sequence numbers of a training step (from 0), (B,), numbered through all streams."""
        return self.order.batch_sequences_of_all_streams(self.data_step(step))

    def locate(self, sequence: int) -> tuple[int, int]:
        """Return the stream of a sequence and the position of its first token in the stream's row."""
        stream = int(np.searchsorted(self.order.offsets, sequence, side="right")) - 1
        return stream, (sequence - int(self.order.offsets[stream])) * self.sequence_length

    def read_rows(self, sequences: Integers) -> np.ndarray:
        """Return the tokens of each sequence and the one after it, (B, T + 1), in the dtype of the files."""
        tokens_BT = np.empty((len(sequences), self.sequence_length + 1), dtype=self.reader.dtype)
        streams = np.searchsorted(self.order.offsets, sequences, side="right") - 1
        starts = (sequences - self.order.offsets[streams]) * self.sequence_length
        for stream in np.unique(streams).tolist():
            rows = np.flatnonzero(streams == stream)
            self.rows[stream].read_rows(starts[rows], tokens_BT, rows)
        return tokens_BT

    def read_batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Integers, Integers]:
        """Return input and target tokens of one rank in a step, each (B / world_size, T), views of one array."""
        sequences = rank_share(self.global_batch_sequence_numbers(step), rank, world_size)
        tokens_BT = self.reader.check_vocabulary(self.read_rows(sequences)).astype(np.int64)
        return tokens_BT[:, :-1], tokens_BT[:, 1:]


def _mixture_rate(mixture: Mixture, group: Mapping[str, str]) -> tuple[str, Fraction]:
    """Return the name of a group in a mixture, and its weight or epochs."""
    if not (mixture.weights or mixture.epochs):
        return "the rest", Fraction(1)
    name = group[mixture.by]
    if mixture.weights:
        return name, Fraction(str(mixture.weights.get(name, 0.0)))
    return (name if name in mixture.epochs else "the rest"), Fraction(str(mixture.epochs.get(name, 1.0)))


def _check_mixture_names(reader: TokenReader, mixture: Mixture) -> None:
    wanted = mixture.weights or mixture.epochs
    if wanted and mixture.by not in reader.grouped_by:
        raise InputError(f"sampling: the tokens have no stratum {mixture.by}: add it to the strata of the token set")
    place = reader.grouped_by.index(mixture.by) if wanted else 0
    group_names = sorted({group[place] for group in reader.groups})
    for name, amount in wanted.items():
        if name not in group_names and amount:
            near = difflib.get_close_matches(name, group_names, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there is {', '.join(group_names)}"
            raise InputError(f"sampling: the tokens have no {mixture.by} {name}: {advice}")


def rank_share(numbers: Integers, rank: int, world_size: int) -> Integers:
    """Return the consecutive share of one rank.

    Raises:
        InputError: the world size does not divide the numbers.
    """
    if len(numbers) % world_size:
        raise InputError(
            f"global_batch_size {len(numbers)} cannot be shared by {world_size} ranks: give a multiple of {world_size}"
        )
    size = len(numbers) // world_size
    return numbers[rank * size : (rank + 1) * size]
