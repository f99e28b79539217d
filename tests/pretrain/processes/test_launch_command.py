"""The number of processes of a launch command, and its final form."""

import sys

import pytest

from pipeline.core.errors import InputError
from pipeline.pretrain.processes.launch_command import build_command, count_processes, launcher_name


@pytest.mark.parametrize(
    ("launch", "environment", "kind", "processes"),
    [
        (None, {}, "none", 1),
        ("", {"SLURM_NTASKS": "8"}, "none", 1),
        ("torchrun --standalone --nproc-per-node=2", {}, "torchrun", 2),
        ("torchrun --nnodes 3 --nproc_per_node 4", {}, "torchrun", 12),
        ("srun --nodes=2 --ntasks=8 --cpus-per-task=16", {}, "srun", 8),
        ("srun -N2 -n 4", {}, "srun", 4),
        ("nice -n 5 srun -N2 -n 4", {}, "srun", 4),
        ("srun -N2 -n6", {}, "srun", 6),
        ("srun -N3 --ntasks-per-node=4", {"SLURM_NNODES": "1"}, "srun", 12),
        ("srun --nodes=2 --ntasks-per-node=4", {}, "srun", 8),
        ("srun --ntasks-per-node=4", {"SLURM_NNODES": "3"}, "srun", 12),
        ("srun --cpu-bind=cores", {"SLURM_NTASKS": "6"}, "srun", 6),
        ("srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4", {}, "torchrun", 8),
        ("numactl --interleave=all", {}, "none", 1),
    ],
)
def test_world_size_from_the_launch_command(
    launch: str | None, environment: dict[str, str], kind: str, processes: int
) -> None:
    assert (launcher_name(launch), count_processes(launch, environment)) == (kind, processes)


@pytest.mark.parametrize("launch", ["torchrun --nproc-per-node=gpu", "torchrun --nnodes=1:4", "srun", "srun -n x"])
def test_unknown_number_of_processes_is_refused(launch: str) -> None:
    with pytest.raises(InputError, match="write it as a whole number"):
        count_processes(launch, {})


def test_command_runs_the_module_with_this_python() -> None:
    python = sys.executable
    assert build_command(None, "a.b", ["x y"]) == [python, "-m", "a.b", "x y"]
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "a.b", "x"]
    assert build_command("torchrun --nproc-per-node=2", "a.b", ["x"]) == torchrun
    srun = ["srun", "--kill-on-bad-exit=1", "-n", "2", python, "-m", "a.b", "x"]
    assert build_command("srun -n 2", "a.b", ["x"]) == srun
    assert build_command("srun torchrun --nnodes=2", "a.b", [])[:2] == ["srun", python]
