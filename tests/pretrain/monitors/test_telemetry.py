"""The device is looked at beside the steps; a step without a look has the last one, a device that fails has none."""

import threading
import time

import pytest
import torch

from pipeline.pretrain.monitors.telemetry import DeviceSample, DeviceSampler, make_sampler


def test_samples_are_averaged_and_the_last_one_stays() -> None:
    values = iter([DeviceSample(0.2, 10.0), DeviceSample(0.6, 30.0)])
    looked = threading.Semaphore(0)

    def sample() -> DeviceSample:
        found = next(values, None)
        if found is None:
            looked.release()
            time.sleep(60)
        return found or DeviceSample(0, 0)

    gauges = DeviceSampler(sample, every_seconds=0.01)
    assert looked.acquire(timeout=10)
    assert gauges.take_mean() == pytest.approx(DeviceSample(0.4, 20.0))
    assert gauges.take_mean() == pytest.approx(DeviceSample(0.4, 20.0))


def test_the_first_step_does_not_wait_for_a_sample() -> None:
    gauges = DeviceSampler(lambda: DeviceSample(0.5, 1.0), every_seconds=3600)
    assert gauges.take_mean() == DeviceSample(0.5, 1.0)
    gauges.close()


def test_a_device_that_does_not_answer_is_not_shown_as_idle() -> None:
    is_told, failed = threading.Event(), threading.Event()

    def sample() -> DeviceSample:
        if not is_told.is_set():
            return DeviceSample(0.9, 1.0)
        failed.set()
        raise RuntimeError("driver")

    gauges = DeviceSampler(sample, every_seconds=0.3)
    assert gauges.take_mean() == DeviceSample(0.9, 1.0)
    is_told.set()
    assert failed.wait(10)
    gauges.close()
    assert gauges.take_mean() is None


def test_a_busy_process_uses_its_threads() -> None:
    look = make_sampler(torch.device("cpu"), threads=1)
    began = time.process_time()
    while time.process_time() - began < 0.3:
        pass
    found = look()
    assert 0.05 < found.utilization <= 1.6 and found.memory_bytes > 1e7
