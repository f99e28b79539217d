"""Choose the device of a process, NVIDIA (CUDA), AMD (ROCm) or CPU, and join its process group."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

import torch
import torch.distributed as dist

from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.model.torch_private import HashStore
from pipeline.pretrain.parallel.process_groups import COLLECTIVE_TIMEOUT

VISIBILITY_VARIABLES = {"cuda": ("CUDA_VISIBLE_DEVICES",), "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
"""The variables that hide devices from a process; torch numbers the visible ones from 0."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

COLLECTIVES = "PIPELINE_COLLECTIVES"
"""The variable that names torch's backend of collectives on GPUs, such as ucc; a platform may set it."""


def find_torch_build() -> str:
    """Return the platform that the installed torch is built for: `cuda`, `rocm` or `cpu`."""
    if torch.version.hip:
        return "rocm"
    return "cuda" if torch.version.cuda else "cpu"


def count_visible_devices() -> int:
    """Return the number of GPUs that this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_backend_and_device(local_rank: int) -> tuple[str, torch.device]:
    """Return the collective backend, from the variable COLLECTIVES, nccl (NCCL or RCCL) or gloo, and the device.

    Where a scheduler shows each process only its own device, that device is number 0.

    Raises:
        InputError: the variable selects UCC, and torch is built without it.
    """
    count = count_visible_devices()
    if not count:
        return "gloo", torch.device("cpu")
    backend = os.environ.get(COLLECTIVES, "nccl")
    if backend == "ucc" and not dist.is_ucc_available():
        raise InputError(f"{COLLECTIVES} is ucc, but the installed torch is built without UCC: remove it")
    return backend, torch.device("cuda", local_rank % count)


def get_device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "CPU"


def synchronize_device(device: torch.device) -> None:
    """Wait until a device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory of CPU tensors (mallopt(3)) instead of mapping large ones again each step."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, 2**31 - 1)


def check_devices(platform: str | None, processes: int, environment: Mapping[str, str] = os.environ) -> None:
    """Check in each process that the platform's devices are visible, for so many processes of this node."""
    wanted = platform_files.load_platform(platform).get("device") if platform else None
    if wanted is None:
        return
    count = count_visible_devices()
    if find_torch_build() != wanted:
        raise InputError(
            f"platform {platform} has {wanted} devices, but the installed torch is built for {find_torch_build()}: "
            f"install envs/{wanted}.lock, or choose the platform local"
        )
    if not count:
        hidden = _format_visibility(wanted, environment)
        raise InputError(
            f"platform {platform} has {wanted} devices, but this process sees none{hidden}: start it on a node with "
            "GPUs, or choose the platform local"
        )
    if processes > count > 1:
        raise InputError(
            f"launch starts {processes} processes on a node where {count} devices are seen: start at most {count}"
        )


def _format_visibility(kind: str, environment: Mapping[str, str]) -> str:
    given = [
        f"{variable} is {environment[variable]!r}" for variable in VISIBILITY_VARIABLES[kind] if variable in environment
    ]
    return f" ({', '.join(given)})" if given else ""


ADDRESS_SUFFIX = "PIPELINE_ADDRESS_SUFFIX"
"""The variable with address_suffix of the platform's file."""

PORTS = range(20_000, 30_000)  # below those that Linux gives out itself: /proc/sys/net/ipv4/ip_local_port_range


def find_first_node(nodes: str) -> str:
    """Return the first node of a Slurm node list, such as gcn4 of `gcn[4-7,2]`; libraries would sort the list."""
    first = re.match(r"(?:\[[^]]*\]|[^,\[])*", nodes)
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", first[0] if first else nodes)


def find_address(node: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of a node: its name with the platform's suffix, or else the address that Slurm has."""
    name = node + environment.get(ADDRESS_SUFFIX, "")
    try:
        socket.getaddrinfo(name, None)
        return name
    except socket.gaierror as error:
        problem = error.strerror
    if scontrol := shutil.which("scontrol"):
        shown = subprocess.run([scontrol, "--oneliner", "show", "node", node], capture_output=True, text=True)
        if match := re.search(r"NodeAddr=(\S+)", shown.stdout):
            return match[1]
    raise InputError(
        f"the name of the first node, {name}, has no address here ({problem}): write MASTER_ADDR into "
        "environment of the platform's file, or correct address_suffix there"
    )


def make_slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torch's environment variables from those of a Slurm task.

    The port depends on job and step, so the next step has another one.
    """
    per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    number = int(environment["SLURM_JOB_ID"]) * 101 + int(environment["SLURM_STEP_ID"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": per_node[0] if per_node else environment["SLURM_NTASKS"],
        "MASTER_ADDR": environment.get("MASTER_ADDR")
        or find_address(find_first_node(environment["SLURM_STEP_NODELIST"]), environment),
        "MASTER_PORT": str(PORTS[number % len(PORTS)]),
    }


def join_process_group(kind: str, platform: str | None = None) -> torch.device:
    """Join the process group and return the device of this process.

    Raises:
        InputError: the first node has no address, or the platform's devices are not visible.
    """
    if kind == "srun":
        os.environ.update(make_slurm_environment(os.environ))
    elif kind == "none":
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    check_devices(platform, int(os.environ["LOCAL_WORLD_SIZE"]))
    backend, device = choose_backend_and_device(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ["LOCAL_RANK"] = str(device.index)  # DeepSpeed takes its device from it
    if kind == "none":
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=COLLECTIVE_TIMEOUT)
    else:
        # With a device, NCCL connects at once and not in the first step.
        dist.init_process_group(
            backend, timeout=COLLECTIVE_TIMEOUT, device_id=device if device.type == "cuda" else None
        )
    return device
