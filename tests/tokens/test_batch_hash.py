"""The hash of a batch is the same however its sequences are shared, and another for any other batch."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tokens.batch_hash import batch_hash, batch_words


def test_it_is_the_sum_of_what_its_definition_says() -> None:
    rows = [[3, 1, 70_000], [3, 1, 70_000], [2, 9, 4], [7, 7, 7]]
    sums = [0, 0, 0, 0]
    for place, row in enumerate(rows):
        digest = hashlib.sha256(
            b"".join([place.to_bytes(8, "little"), *(t.to_bytes(4, "little") for t in row)])
        ).digest()
        sums = [total + int.from_bytes(digest[4 * n : 4 * n + 4], "little") for n, total in enumerate(sums)]
    assert batch_hash(batch_words(np.array(rows), 0)) == "".join(f"{total % 2**32:08x}" for total in sums)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_parts_of_any_number_of_processes_add_up_to_it(seed: int, processes: int) -> None:
    tokens_BT = np.random.default_rng(seed).integers(0, 2**17, (12, 5))
    size = 12 // processes
    parts = [batch_words(tokens_BT[rank * size :][:size], rank * size) for rank in range(processes)]
    assert batch_hash(np.sum(parts, axis=0)) == batch_hash(batch_words(tokens_BT, 0))


def test_another_order_another_token_and_a_place_too_far_are_seen() -> None:
    tokens_BT = np.arange(20).reshape(4, 5)
    others = [tokens_BT[::-1], tokens_BT + (tokens_BT == 19), tokens_BT[:3], tokens_BT[[0, 0, 2, 3]]]
    hashes = [batch_hash(batch_words(rows, 0)) for rows in (tokens_BT, *others)]
    assert len({*hashes, batch_hash(batch_words(tokens_BT, 1))}) == 6
