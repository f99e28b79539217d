"""The device is sampled in parallel to the steps; a step without a sample has the last one, a failed device none."""

import threading
import time

import pytest
import torch

from pipeline.pretrain.monitors.telemetry import DeviceSample, DeviceSampler, make_sampler


def test_samples_are_averaged_and_the_last_one_is_kept() -> None:
    values = iter([DeviceSample(0.2, 10.0), DeviceSample(0.6, 30.0)])
    looked = threading.Semaphore(0)

    def sample() -> DeviceSample:
        result = next(values, None)
        if result is None:
            looked.release()
            time.sleep(60)
        return result or DeviceSample(0, 0)

    sampler = DeviceSampler(sample, every_seconds=0.01)
    assert looked.acquire(timeout=10)
    assert sampler.take_mean() == pytest.approx(DeviceSample(0.4, 20.0))
    assert sampler.take_mean() == pytest.approx(DeviceSample(0.4, 20.0))


def test_first_step_does_not_wait_for_a_sample() -> None:
    sampler = DeviceSampler(lambda: DeviceSample(0.5, 1.0), every_seconds=3600)
    assert sampler.take_mean() == DeviceSample(0.5, 1.0)
    sampler.close()


def test_unresponsive_device_is_not_shown_as_idle() -> None:
    was_sampled, failed = threading.Event(), threading.Event()

    def sample() -> DeviceSample:
        if not was_sampled.is_set():
            return DeviceSample(0.9, 1.0)
        failed.set()
        raise RuntimeError("driver")

    sampler = DeviceSampler(sample, every_seconds=0.3)
    assert sampler.take_mean() == DeviceSample(0.9, 1.0)
    was_sampled.set()
    assert failed.wait(10)
    sampler.close()
    assert sampler.take_mean() is None


def test_busy_process_uses_its_threads() -> None:
    look = make_sampler(torch.device("cpu"), threads=1)
    began = time.process_time()
    while time.process_time() - began < 0.3:
        pass
    result = look()
    assert 0.05 < result.utilization <= 1.6 and result.memory_bytes > 1e7
