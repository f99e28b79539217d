"""Batch results are decided on the device: the host waits once, after the optimizer is queued."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException

from pipeline.pretrain.bad_batches import BadBatchDetector
from pipeline.pretrain.monitors.fsdp_memory_trace import (
    _Backend,
    make_segment_settings,
    patch_expert_dispatch,
)
from pipeline.pretrain.monitors.memory_estimate import TraceRequest
from pipeline.pretrain.monitors.torch_tracing_private import fake_tensors, join_fake_group
from pipeline.pretrain.parallel.expert_parallel import measure_largest_share
from pipeline.pretrain.processes.batch_result_exchange import all_gather_results
from pipeline.pretrain.settings import Stability
from tests.pretrain.monitors.test_memory_trace import EXPERTS, request

CPU = torch.device("cpu")


@pytest.mark.parametrize("loss", [1.0, 2.0, 2.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("norm", [0.5, 1.5, math.nan, math.inf])
def test_device_and_host_decide_equally(loss: float, norm: float) -> None:
    """Limits for losses of about 2 and norms of about 1."""
    detector = BadBatchDetector(Stability(window=8, loss_deviations=10, gradient_norm_deviations=10), [], {})
    for number in range(8):
        detector.record_good(loss=2.0 + 0.01 * number, gradient_norm=1.0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        pending = all_gather_results(
            torch.tensor(7 * loss),
            torch.tensor(norm),
            tokens=7,
            others=[True, torch.tensor(5), 2.0**40 + 1],
            equal=[torch.tensor(0.25)],
            thresholds=detector.thresholds(),
        )
    finally:
        dist.destroy_process_group()
    values, equal, table = pending.wait_for_results()
    assert values["gradient_norm"] == (norm if math.isfinite(norm) else math.inf)
    assert values["loss"] == pytest.approx(loss, rel=1e-12, nan_ok=True)
    assert equal == [0.25] and table.tolist() == [[1.0, 5.0, 2.0**40 + 1]]
    assert bool(pending.accepted) == (detector.find_reason(**values) is None) == (loss in (1, 2) and norm == 0.5)


def step_without_data(asked: TraceRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a step of one of four processes on meta tensors, which raise if the host reads one."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    join_fake_group(0, asked.processes)
    try:
        fake = fake_tensors()
        with patch_expert_dispatch():
            backend = _Backend(make_segment_settings(asked), asked.vocabulary_size, fake)
            with fake:
                loss = backend.accumulate_gradients(backend.batches())
                shares = measure_largest_share(backend.model, CPU)
                limits = {"loss": 9.0, "gradient_norm": math.inf}
                given: dict[str, Any] = {"tokens": 5, "others": [], "thresholds": limits, "equal": [*shares.values()]}
                norm = backend.update(1e-3, lambda norm: all_gather_results(loss, norm, **given).accepted)
                assert norm.shape == () and len(shares) == bool(asked.architecture.experts)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"mesh": {"tensor": 2}},
        {"mesh": {"context": 2}},
        {"architecture": EXPERTS, "load_balancing_loss": 0.01},
    ],
)
def test_host_does_not_synchronize_before_the_optimizer_is_queued(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_without_data(request(4, batch_size=8, **changes), monkeypatch)


def test_muon_and_plain_kernels_wait_for_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in ({"optimizer": "muon"}, {"fused_optimizer": False}):
        with pytest.raises(DataDependentOutputException):
            step_without_data(request(4, batch_size=8, **changes), monkeypatch)
