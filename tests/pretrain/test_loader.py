"""Batches come one step ahead, in any order that they are asked for, and what was read ahead is used once."""

import time

import numpy as np
import pytest
import torch

from pipeline.pretrain.loader import Loader


def reader(delay: float = 0.0):
    asked: list[int] = []

    def read(step: int):
        asked.append(step)
        time.sleep(delay)
        return np.full((2, 3), step), np.full((2, 3), step + 1)

    return read, asked


def test_every_step_gets_its_own_batch_after_jumps_and_repetitions() -> None:
    read, _ = reader()
    loader = Loader(read, torch.device("cpu"))
    for step in (1, 2, 3, 3, 7, 8, 2, 3):
        inputs, targets = loader.get(step)
        assert (inputs == step).all() and (targets == step + 1).all() and inputs.dtype == torch.int64
    loader.close()


def test_the_next_batch_is_read_while_a_step_computes() -> None:
    read, asked = reader(delay=1.0)
    loader = Loader(read, torch.device("cpu"))
    loader.get(1)
    assert loader.stall_seconds >= 1
    time.sleep(2)  # a step
    assert asked == [1, 2]
    loader.get(2)
    assert loader.stall_seconds < 1, "it is not read only now"
    loader.close()


def test_what_was_forgotten_is_read_again() -> None:
    read, asked = reader()
    loader = Loader(read, torch.device("cpu"))
    loader.get(1)
    loader.forget()
    loader.get(2)
    loader.close()
    assert asked.count(2) >= 1 and set(asked) <= {1, 2, 3}


def test_an_error_of_reading_comes_with_its_own_step() -> None:
    def read(step: int):
        if step == 2:
            raise OSError("the shard is gone")
        return (np.zeros(1),)

    loader = Loader(read, torch.device("cpu"))
    loader.get(1)
    with pytest.raises(OSError, match="the shard is gone"):
        loader.get(2)
    loader.close()
