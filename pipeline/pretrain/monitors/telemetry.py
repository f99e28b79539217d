"""What a step says of the machine: how busy, how full, and how fast against its peak.

Model FLOPs utilisation is useful arithmetic over the device's peak (`pipeline.model.size.flops_per_token`: 6 N plus
attention, Chowdhery et al. 2022); that of the hardware counts the blocks that full recomputation computes a second time
(8 N). The peak is that of the precision, bf16 where products are made in 8 bits; where it is not known neither is the
utilisation. Device utilisation is something else: the share of time in which anything ran.
"""

from __future__ import annotations

import json
import platform
import resource
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.cuda import nccl

from pipeline.core import platform_files
from pipeline.core.machine import facts
from pipeline.core.ramp import Stretch
from pipeline.energy.node_meter import node_name
from pipeline.model.size import flops_per_token
from pipeline.model.switches import is_deterministic
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.monitors.device_use import Gauges, Probe, sampler
from pipeline.pretrain.monitors.metrics import UNKNOWN, Metrics
from pipeline.pretrain.monitors.peak_flops import peak_flops_per_second
from pipeline.pretrain.processes import rendezvous
from pipeline.pretrain.settings import SegmentSettings


def of_all(text: str, device: torch.device) -> list[str]:
    """Return the text of each process, in their order; they call this together. Nothing is pickled."""
    own = torch.tensor([*text.encode()], dtype=torch.uint8, device=device)
    sizes = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(own)], dtype=torch.int64, device=device))
    longest = int(sizes.max())
    row = torch.zeros(longest, dtype=torch.uint8, device=device)
    row[: len(own)] = own
    table = torch.empty(len(sizes) * longest, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(table, row)
    rows = zip(table.view(-1, longest).tolist(), sizes.tolist(), strict=True)
    return [bytes(line[:size]).decode() for line, size in rows]


class Telemetry:
    """The figures of one process, and of them and those of all others once a step.

    Process 0 has the `scratch` folder and leaves there, in device.json, what the device is and what each node is.
    """

    def __init__(
        self, settings: SegmentSettings, vocabulary_size: int, device: torch.device, scratch: Path | None
    ) -> None:
        training = settings.training
        name, self._device = rendezvous.name(device), device
        self._peak = training.peak_flops_per_second or peak_flops_per_second(name, training.precision)
        places = [json.loads(one) for one in of_all(json.dumps([node_name(), facts()]), device)]
        self.nodes: list[str] = [node for node, _ in places]
        nodes = dict(places)
        if scratch:
            described = {
                "device": name,
                "peak_flops_per_second": self._peak,
                "container": platform_files.image(),  # of what computes: what started it may run outside of the image
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "hip": torch.version.hip,
                # Of the library that torch calls, AMD's RCCL under the same name.
                "nccl": ".".join(map(str, nccl.version())) if device.type == "cuda" else None,  # type: ignore[no-untyped-call]
                "deterministic": is_deterministic(),
                "nodes": dict(sorted(nodes.items())),
            }
            (scratch / "device.json").write_text(json.dumps(described), encoding="utf-8")
        self._training, self._shape = training, (settings.architecture, vocabulary_size)
        self._gauges = Gauges(sampler(device, training.threads))
        self.probe = Probe(device)

    def _memory_bytes(self) -> int:
        """Return the peak of this process: of the device, or of main memory where there is none."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def own(self, stall_seconds: float) -> list[float]:
        """Return what this process tells: utilisation, used and peak memory, the wait for its batch, its last probe."""
        sample = self._gauges.take()
        busy = [sample.utilization, sample.memory_bytes] if sample else [UNKNOWN, UNKNOWN]
        return [*busy, self._memory_bytes(), stall_seconds, self.probe.take()]

    def line(self, size: Stretch, seconds: float, told: NDArray[np.float64]) -> Metrics:
        """Return the figures of a step of that size over all processes, (processes, 5), as each has told its own.

        Utilisation is the mean and the least, memory and stall the most of all processes. The end of the step tells
        which of the joules that the meters have read were used for it.
        """
        busy, used, peak, stall, probes = told.T.tolist()
        known = min(busy) >= 0
        tokens = size.batch_size * self._training.sequence_length
        of_model, on_hardware = (
            flops_per_token(*self._shape, size.sequence_length, recomputation=again)
            for again in (False, self._training.recomputation == "full")
        )
        per_peak = tokens / seconds / self._peak / len(busy) if self._peak else None
        return {
            "tokens_per_second": tokens / seconds,
            "model_flops_utilization": None if per_peak is None else of_model * per_peak,
            "hardware_flops_utilization": None if per_peak is None else on_hardware * per_peak,
            "device_utilization": sum(busy) / len(busy) if known else None,
            "device_utilization_least": min(busy) if known else None,
            "memory_bytes": int(max(peak)),
            "memory_used_bytes": int(max(used)) if known else None,
            "data_stall_seconds": max(stall),
            **metrics.summarize_probes(probes),
            "ended_unix_seconds": round(time.time(), 3),
        }
