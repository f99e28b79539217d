"""What a step says of the machine: how busy, how full, how fast against its peak, and at how many joules.

Model FLOPs utilisation is useful arithmetic over the device's peak (`pipeline.model.size.flops_per_token`: 6 N plus
attention, Chowdhery et al. 2022); that of the hardware counts the blocks that full recomputation computes a second time
(8 N). The peak is that of the precision, bf16 where products are made in 8 bits; where it is not known neither is the
utilisation. Device utilisation is something else: the share of time in which anything ran.
"""

from __future__ import annotations

import json
import platform
import resource
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.ground import platform_files
from pipeline.model.size import flops_per_token
from pipeline.pretrain.gauges.consumption import Consumption
from pipeline.pretrain.gauges.devices import Gauges, sampler
from pipeline.pretrain.gauges.metrics import Metrics
from pipeline.pretrain.gauges.peaks import peak_flops_per_second
from pipeline.pretrain.processes import device as devices
from pipeline.pretrain.settings import SegmentSettings

UNKNOWN = -1.0  # between processes, where every figure has to be a number


class Telemetry:
    """The figures of one process, brought together with those of all others once a step.

    Process 0 has the `scratch` folder: it finds the joules there and leaves what the device is in device.json.
    """

    def __init__(
        self, settings: SegmentSettings, vocabulary_size: int, device: torch.device, scratch: Path | None
    ) -> None:
        training = settings.training
        shape = settings.architecture, vocabulary_size, training.sequence_length
        name, self._device = devices.name(device), device
        self._peak = training.peak_flops_per_second or peak_flops_per_second(name, training.precision)
        if scratch:
            described = {
                "device": name,
                "peak_flops_per_second": self._peak,
                "container": platform_files.image(),  # of what computes: what started it may run outside of the image
                "python": platform.python_version(),
                "torch": torch.__version__,
            }
            (scratch / "device.json").write_text(json.dumps(described), encoding="utf-8")
        self._model_flops = flops_per_token(*shape)
        self._hardware_flops = flops_per_token(*shape, recomputation=training.recomputation == "full")
        self._consumption = Consumption(scratch / "energy.json") if scratch else None
        refresh = self._consumption.refresh if self._consumption else lambda: None
        self._gauges = Gauges(sampler(device, training.threads), refresh)

    def _memory_bytes(self) -> int:
        """Return the peak of this process: of the device, or of main memory where there is none."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def start(self) -> None:
        """Count energy from here on."""
        if self._consumption:
            self._consumption.take()

    def line(self, tokens: int, seconds: float, stall_seconds: float) -> Metrics:
        """Return the figures of a step of so many tokens over all processes, which call this together.

        Utilisation is the mean and the least, memory and stall the most of all processes; energy is that of the node of
        process 0, which has the meters, and None on the others.
        """
        sample = self._gauges.take()
        own = [sample.utilization, sample.memory_bytes] if sample else [UNKNOWN, UNKNOWN]
        row = torch.tensor([*own, self._memory_bytes(), stall_seconds], dtype=torch.float64, device=self._device)
        table = torch.empty(dist.get_world_size() * len(row), dtype=torch.float64, device=self._device)
        dist.all_gather_into_tensor(table, row)
        busy, used, peak, stall = table.view(-1, len(row)).T.tolist()
        known = min(busy) >= 0
        energy = self._consumption.take() if self._consumption else None
        per_peak = tokens / seconds / self._peak / len(busy) if self._peak else None
        return {
            "tokens_per_second": tokens / seconds,
            "model_flops_utilization": None if per_peak is None else self._model_flops * per_peak,
            "hardware_flops_utilization": None if per_peak is None else self._hardware_flops * per_peak,
            "device_utilization": sum(busy) / len(busy) if known else None,
            "device_utilization_least": min(busy) if known else None,
            "memory_bytes": int(max(peak)),
            "memory_used_bytes": int(max(used)) if known else None,
            "data_stall_seconds": max(stall),
            "energy_joules": energy[0] if energy else None,
            "energy_measured": energy[1] if energy else None,
        }
