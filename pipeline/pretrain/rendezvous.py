"""Lets the processes of a training find each other, by what torchrun or Slurm tells each of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pipeline.pretrain import device as devices

PATIENCE = timedelta(hours=1)
PORTS = range(20_000, 30_000)  # below those that Linux gives out itself: /proc/sys/net/ipv4/ip_local_port_range


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout


def first_node(nodes: str) -> str:
    """Return the address of the first node of a list such as `gcn[4-7]`: its name where that resolves, else Slurm's."""
    name = _scontrol("show", "hostnames", nodes).split()[0]
    try:
        socket.getaddrinfo(name, None)
        return name
    except socket.gaierror:
        found = re.search(r"NodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", name))
        return found[1] if found else name


def of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torch's variables from those that Slurm gives to a task of a step.

    The port follows from job and step. Where something else listens there, process 0 fails and the step with it; the
    next one has another number, and so another port.
    """
    per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    number = int(environment["SLURM_JOB_ID"]) * 101 + int(environment["SLURM_STEP_ID"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": per_node[0] if per_node else environment["SLURM_NTASKS"],
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_node(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(PORTS[number % len(PORTS)]),
    }


def join(kind: str) -> torch.device:
    """Join the other processes and return the device that this one computes on."""
    if kind == "srun":
        os.environ.update(of_slurm(os.environ))
    elif kind == "none":
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    backend, device = devices.choose(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if kind == "none":
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    else:
        dist.init_process_group(backend, timeout=PATIENCE)
    return device
