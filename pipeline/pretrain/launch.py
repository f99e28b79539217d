"""Starts the processes of a training run, ends them with their parent, and lets them find each other."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from pipeline.errors import InputError
from pipeline.pretrain import device as devices

PATIENCE = timedelta(hours=1)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that ends (prctl(2), PR_SET_PDEATHSIG)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _words(launch: str | None) -> list[str]:
    try:
        return shlex.split(launch or "")
    except ValueError as error:
        raise InputError(f"launch: {launch} is no command line ({error}): close its quotes") from None


def _option(words: Sequence[str], *names: str) -> str | None:
    """Return the value of the first of these options: `--name value`, `--name=value` or `-nVALUE`."""
    for position, word in enumerate(words):
        for name in names:
            if word == name and position + 1 < len(words):
                return words[position + 1]
            if name.startswith("--") and word.startswith(f"{name}="):
                return word.split("=", 1)[1]
            if not name.startswith("--") and word.startswith(name) and word[len(name) :].isdigit():
                return word[len(name) :]
    return None


def _number(value: str | None, what: str) -> int:
    if value is None or not value.isdigit() or int(value) < 1:
        raise InputError(f"launch: {what} is {value!r}: write it as a whole number, such as 2")
    return int(value)


def launcher(launch: str | None) -> str:
    """Return what hands out the ranks: torchrun, srun or none."""
    words = _words(launch)
    return next((name for name in ("torchrun", "srun") if name in words), "none")


def world_size(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that a launch command starts.

    Raises:
        InputError: the command does not say it as a number.
    """
    words, kind = _words(launch), launcher(launch)
    if kind == "torchrun":
        words = words[words.index("torchrun") :]
        per_node = _option(words, "--nproc-per-node", "--nproc_per_node") or "1"
        return _number(_option(words, "--nnodes") or "1", "--nnodes") * _number(per_node, "--nproc-per-node")
    if kind == "srun":
        words = words[words.index("srun") :]
        tasks, tasks_per_node = _option(words, "--ntasks", "-n"), _option(words, "--ntasks-per-node")
        if tasks is not None:
            return _number(tasks, "--ntasks")
        if tasks_per_node is not None:
            nodes = _option(words, "--nodes", "-N") or environment.get("SLURM_NNODES", "1")
            return _number(nodes, "--nodes") * _number(tasks_per_node, "--ntasks-per-node")
        return _number(environment.get("SLURM_NTASKS"), "srun's --ntasks")
    return 1


def processes_per_node(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return how many of the processes run on one node, as far as the command or Slurm tells: the first node's number.

    Without a word on it all run on one node.
    """
    words, kind = _words(launch), launcher(launch)
    told = None
    if kind == "torchrun":
        words = words[words.index("torchrun") :]
        told = _option(words, "--nproc-per-node", "--nproc_per_node") or "1"
    elif kind == "srun":
        words = words[words.index("srun") :]
        told = _option(words, "--ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
        nodes = _option(words, "--nodes", "-N") or environment.get("SLURM_NNODES")
        if told is None and nodes is not None:
            return -(-world_size(launch, environment) // _number(nodes, "--nodes"))
    return world_size(launch, environment) if told is None else _number(told, "the number of processes on a node")


def command(launch: str | None, module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a module of this package in every process."""
    words = _words(launch)
    if "torchrun" in words:
        position = words.index("torchrun")
        words[position : position + 1] = [sys.executable, "-m", "torch.distributed.run"]
        return [*words, "-m", module, *arguments]
    if "srun" in words:
        words.insert(words.index("srun") + 1, "--kill-on-bad-exit=1")  # or the others wait for a dead one
    return [*words, sys.executable, "-m", module, *arguments]


def _meet(rank: int, size: int, rendezvous: Path) -> Store:
    """Return a store at process 0, whose address the others read from a file that all nodes see."""
    if rank == 0:
        host = os.environ.get("MASTER_ADDR", socket.gethostname())
        store = TCPStore(host, 0, size, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        partial = rendezvous.with_suffix(".partial")
        partial.write_text(f"{host} {store.port}", encoding="utf-8")
        partial.replace(rendezvous)
        return store
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not rendezvous.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process 0 did not come to {rendezvous}")
        time.sleep(0.05)
    host, port = rendezvous.read_text(encoding="utf-8").split()
    return TCPStore(host, int(port), size, is_master=False, timeout=PATIENCE)


def join(kind: str, rendezvous: Path) -> torch.device:
    """Join the other processes and return the device that this one computes on."""
    if kind != "torchrun":
        names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
        for variable, theirs in names.items():
            alone = "1" if variable == "WORLD_SIZE" else "0"
            os.environ[variable] = os.environ[theirs] if kind == "srun" else alone
        per_node = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")) if kind == "srun" else None
        os.environ["LOCAL_WORLD_SIZE"] = per_node[0] if per_node else os.environ["WORLD_SIZE"]
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    backend, device = devices.choose(local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if kind == "torchrun":
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        store = _meet(rank, size, rendezvous) if size > 1 else HashStore()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return device


def requeue() -> bool:
    """Ask Slurm to put this job back into the queue; return whether it will.

    A job that is not running any more, because somebody has cancelled it, is left to its end.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--format=%T", f"--jobs={job}"], capture_output=True, text=True, check=True
        )
        return asked.stdout.strip() == "RUNNING" and subprocess.run(["scontrol", "requeue", job]).returncode == 0
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the job was not put back into the queue: {error}", file=sys.stderr, flush=True)
        return False
