"""Lets the processes of a training find each other, by what torchrun or Slurm tells each of them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

import torch
import torch.distributed as dist

from pipeline.core.errors import InputError
from pipeline.model.torch_private import HashStore
from pipeline.pretrain.parallel.mesh import PATIENCE
from pipeline.pretrain.processes import device as devices

ADDRESS_SUFFIX = "PIPELINE_ADDRESS_SUFFIX"
"""The variable with address_suffix of the platform's file."""

PORTS = range(20_000, 30_000)  # below those that Linux gives out itself: /proc/sys/net/ipv4/ip_local_port_range


def first_node(nodes: str) -> str:
    """Return the first node of a list of Slurm's, such as gcn4 of `gcn[4-7,2]`: there process 0 runs.

    It is read here, without Slurm, which no image has; a library that expands such lists sorts them too.
    """
    first = re.match(r"(?:\[[^]]*\]|[^,\[])*", nodes)
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", first[0] if first else nodes)


def address(node: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return where the others reach process 0, which runs on this node.

    That is the node's name with the platform's suffix where it resolves, else Slurm's own address where there is Slurm.

    Raises:
        InputError: neither is known.
    """
    name = node + environment.get(ADDRESS_SUFFIX, "")
    try:
        socket.getaddrinfo(name, None)
        return name
    except socket.gaierror as error:
        problem = error.strerror
    if scontrol := shutil.which("scontrol"):
        told = subprocess.run([scontrol, "--oneliner", "show", "node", node], capture_output=True, text=True)
        if found := re.search(r"NodeAddr=(\S+)", told.stdout):
            return found[1]
    raise InputError(
        f"the name of the first node, {name}, has no address here ({problem}): set MASTER_ADDR, or correct "
        "address_suffix in the platform's file"
    )


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
        "MASTER_ADDR": environment.get("MASTER_ADDR")
        or address(first_node(environment["SLURM_STEP_NODELIST"]), environment),
        "MASTER_PORT": str(PORTS[number % len(PORTS)]),
    }


def join(kind: str, platform: str | None = None) -> torch.device:
    """Join the other processes and return the device that this one computes on.

    Raises:
        InputError: the first node has no address, or the platform's devices are not here.
    """
    if kind == "srun":
        os.environ.update(of_slurm(os.environ))
    elif kind == "none":
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    devices.check(platform, int(os.environ["LOCAL_WORLD_SIZE"]))
    backend, device = devices.choose(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ["LOCAL_RANK"] = str(device.index)  # by which DeepSpeed takes its device
    if kind == "none":
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    else:
        # Told its device, NCCL connects at once, and not in the first step.
        dist.init_process_group(backend, timeout=PATIENCE, device_id=device if device.type == "cuda" else None)
    return device
