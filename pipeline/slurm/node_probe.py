"""Probe one node (`node`) or the network of two nodes (`pair`) for `platform check`; print one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec

from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm import job_software, site_checks

MEGABYTES = {"gloo": 64, "nccl": 512}
ROUNDS = 5


def probe_node(disk: str, device: str) -> dict[str, object]:
    """Return what this node has: its Python, the GPUs that Slurm gives and torch sees, and its own disk."""
    answer: dict[str, object] = {"node": os.environ["SLURMD_NODENAME"]}
    answer["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    answer["lacks"] = [name for name in job_software.REQUIRED_MODULES if find_spec(name) is None]
    given = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS") or ""
    answer["gpus_given"] = len([gpu for gpu in given.split(",") if gpu])
    if device:
        from pipeline.pretrain.processes import device_and_process_group

        answer |= {
            "built_for": device_and_process_group.find_torch_build(),
            "gpus_seen": device_and_process_group.count_visible_devices(),
        }
    if disk:
        try:
            finding = site_checks.check_writable("the node's disk", platform_files.fill_folder_template(disk, None))
            answer |= {"disk_ok": finding.ok, "disk": finding.what}
        except InputError as error:
            answer |= {"disk_ok": False, "disk": str(error)}
    return answer


def measure_network_bandwidth() -> dict[str, object] | None:
    """Sum a tensor over the processes, started like a training's; return the bandwidth, on the first process."""
    import torch
    import torch.distributed as dist

    from pipeline.pretrain.processes import device_and_process_group

    device = device_and_process_group.join_process_group("srun")
    backend = dist.get_backend()
    numbers = torch.ones(MEGABYTES.get(backend, 64) * 250_000, device=device)
    dist.all_reduce(numbers)
    started = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
        float(numbers[0])  # waits for the device
    seconds = time.perf_counter() - started
    right = float(numbers[0]) == dist.get_world_size() ** (ROUNDS + 1)
    nodes: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, os.environ["SLURMD_NODENAME"])
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    bandwidth = numbers.numel() * 4 * ROUNDS / seconds
    return {"nodes": nodes, "backend": backend, "right": right, "bytes_per_second": bandwidth} if first else None


if __name__ == "__main__":
    answer = probe_node(*sys.argv[2:]) if sys.argv[1] == "node" else measure_network_bandwidth(*sys.argv[2:])
    if answer:
        print(json.dumps(answer), flush=True)
