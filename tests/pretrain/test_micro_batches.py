"""Micro-batches are on the host: a step does not synchronize the device for them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.pretrain.monitors.profiler import REQUEST, TRACES
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.test_segment import train

pytestmark = pytest.mark.usefixtures("warm_processes")
WAITS = {"aten::nonzero", "aten::item", "aten::_local_scalar_dense", "aten::masked_select", "aten::repeat_interleave"}


@pytest.mark.slow
def test_document_masks_cause_no_host_synchronization(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    counts = []
    for masked in (False, True):
        folder = tmp_path / str(masked)
        (folder / "scratch").mkdir(parents=True)
        (folder / "scratch" / REQUEST).write_text("2")
        train(settings(last_step=3, sampling={"mask_documents": masked}), tokens, folder)
        (trace,) = (folder / "scratch" / TRACES).iterdir()
        counts.append(Counter(event.get("name") for event in json.loads(trace.read_text())["traceEvents"]))
    plain, within = counts
    assert within["aten::bucketize"] > plain["aten::bucketize"] == 0, "documents are masked"
    assert {name: within[name] for name in WAITS} == {name: plain[name] for name in WAITS}
    assert plain["aten::item"] and not within["aten::nonzero"]
