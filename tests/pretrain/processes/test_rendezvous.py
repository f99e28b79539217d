"""The rendezvous of a training: the first node of Slurm's list, without Slurm, and its address."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
import torch

from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.pretrain.processes import device_and_process_group, launch_command


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gcn4", "gcn4"),
        ("gcn[4-7]", "gcn4"),
        ("nid[005010-005012,005001]", "nid005010"),
        ("cn-[001-002,13],a1", "cn-001"),
        ("b1,a[3-4,1-2]", "b1"),
        ("n[2-3]-[5-6],n1", "n2-5"),
    ],
)
def test_first_node_of_a_list_is_the_first_one_written(nodes: str, first: str) -> None:
    assert device_and_process_group.find_first_node(nodes) == first


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder on the PATH: there is no Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_address_is_the_host_name_with_the_platform_suffix_if_it_resolves(path: Path) -> None:
    assert device_and_process_group.find_address("localhost", {}) == "localhost"
    here, end = socket.gethostname()[:-1], socket.gethostname()[-1]
    environment: dict[str, str] = {}
    launch_command.set_platform_variables("juwels-booster", environment)
    assert (
        environment["PIPELINE_ADDRESS_SUFFIX"]
        == platform_files.load_platform("juwels-booster")["address_suffix"]
        == "i"
    )
    assert device_and_process_group.find_address(here, {**environment, "PIPELINE_ADDRESS_SUFFIX": end}) == here + end


def test_slurm_resolves_an_unresolvable_host_name(path: Path) -> None:
    scontrol = path / "scontrol"
    scontrol.write_text(f'#!{sys.executable}\nprint("NodeName=node7.invalid NodeAddr=10.0.0.7 Port=1")\n')
    scontrol.chmod(0o755)
    assert device_and_process_group.find_address("node7.invalid", {}) == "10.0.0.7"
    scontrol.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    with pytest.raises(InputError, match=r"the first node, node7.invalid, has no address here"):
        device_and_process_group.find_address("node7.invalid", {})


def test_unresolvable_host_without_slurm_error_suggests_master_addr(path: Path) -> None:
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    task |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "node[7-8].invalid"}
    with pytest.raises(
        InputError,
        match=r"node7.invalid, has no address here \(.*\): write MASTER_ADDR into",
    ):
        device_and_process_group.make_slurm_environment(task)
    environment = device_and_process_group.make_slurm_environment({**task, "MASTER_ADDR": "10.1.2.3"})
    assert (environment["MASTER_ADDR"], environment["LOCAL_WORLD_SIZE"]) == ("10.1.2.3", "2")


def test_process_ranks_come_from_the_slurm_task() -> None:
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    task |= {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "MASTER_ADDR": "10.1.2.3"}
    numbers = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert device_and_process_group.make_slurm_environment(task).items() >= numbers.items()


@pytest.mark.parametrize(("seen", "number"), [(1, "0"), (4, "3")])
def test_deepspeed_gets_the_device_index_if_one_device_is_visible(
    seen: int, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed uses device LOCAL_RANK, which does not exist if a scheduler shows each process one device."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device_and_process_group, "count_visible_devices", lambda: seen)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    assert device_and_process_group.join_process_group("torchrun") == torch.device("cuda", int(number))
    assert os.environ["LOCAL_RANK"] == number


def test_process_without_a_launcher_uses_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)  # of a shell in an allocation
    monkeypatch.setattr(device_and_process_group, "count_visible_devices", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    assert device_and_process_group.join_process_group("none") == torch.device("cuda", 0)
    assert {os.environ[name] for name in ("RANK", "LOCAL_RANK")} == {"0"}
