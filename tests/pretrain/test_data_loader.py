"""Batches are prefetched by one step, in any requested order, and each prefetched batch is used once."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.pretrain.data_loader import PrefetchingLoader


def reader():
    asked: list[int] = []

    def read(step: int):
        asked.append(step)
        return np.full((2, 3), step), np.full((2, 3), step + 1)

    return read, asked


def test_every_step_gets_its_own_batch_after_jumps_and_repetitions() -> None:
    read, _ = reader()
    loader = PrefetchingLoader(read, torch.device("cpu"))
    for step in (1, 2, 3, 3, 7, 8, 2, 3):
        inputs, targets = loader.get(step)
        assert (inputs == step).all() and (targets == step + 1).all() and inputs.dtype == torch.int64
    loader.close()


def test_next_batch_is_read_while_a_step_computes() -> None:
    asked_for_second, may_read = threading.Event(), threading.Event()

    def read(step: int):
        if step == 2:
            asked_for_second.set()
            assert may_read.wait(60)
        return (np.full((2, 3), step),)

    loader = PrefetchingLoader(read, torch.device("cpu"))
    (first,) = loader.get(1)  # it does not wait for the second
    assert asked_for_second.wait(60) and (first == 1).all()
    may_read.set()
    assert (loader.get(2)[0] == 2).all()
    loader.close()


def test_data_loading_stall_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5.0, 7.5])
    monkeypatch.setattr("pipeline.pretrain.data_loader.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    loader = PrefetchingLoader(reader()[0], torch.device("cpu"))
    loader.get(1)
    assert loader.stall_seconds == 2.5
    loader.close()


def test_evicted_batch_is_read_again() -> None:
    read, asked = reader()
    loader = PrefetchingLoader(read, torch.device("cpu"))
    loader.get(1)
    loader.discard_prefetched()
    loader.get(2)
    loader.close()
    assert asked.count(2) >= 1 and set(asked) <= {1, 2, 3}


def test_reading_error_is_raised_at_its_own_step() -> None:
    def read(step: int):
        if step == 2:
            raise OSError("the shard is gone")
        return (np.zeros(1),)

    loader = PrefetchingLoader(read, torch.device("cpu"))
    loader.get(1)
    with pytest.raises(OSError, match="the shard is gone"):
        loader.get(2)
    loader.close()
