"""Training over several nodes gives the bytes of one machine, through any Slurm event."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGUSR1
from typing import Any

import pytest

from pipeline.pretrain.settings import SegmentSettings
from tests.conftest import new_project
from tests.pretrain.conftest import settings, tokens  # noqa: F401
from tests.pretrain.processes import chaos
from tests.slurm import image
from tests.slurm.cluster import OTHER_SLURM, Cluster, wait_until
from tests.slurm.training import SlurmTraining, has_got, stands_still

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
Tokens = dict[str, Path]
STEPS, DISTURBED = 60, 8
# Slurm counts limits in whole minutes, so it warns immediately with two left.
SHORT_LIMIT = ("--signal=USR1@110", "--time=20")
FEW_STEPS = 20  # of four undisturbed processes


def case(strategy: str = "full_shard", steps: int = STEPS) -> SegmentSettings:
    return chaos.small(steps, strategy, 600.0)


@pytest.fixture(scope="module")
def local(tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:  # noqa: F811
    """Return a function that gives the result of an undisturbed training on this machine, made once."""
    made: dict[tuple[str, int, int], dict[str, Any]] = {}

    def result(strategy: str, processes: int, steps: int = STEPS) -> dict[str, Any]:
        key = strategy, processes, steps
        if key not in made:
            folder = tmp_path_factory.mktemp("local") / "run"
            launch = f"torchrun --standalone --nproc-per-node={processes}" if processes > 1 else ""
            chaos.Training(case(strategy, steps), tokens, folder, launch).finish()
            made[key] = chaos.result(folder)
        return made[key]

    return result


def test_two_nodes_of_two_tasks_equal_four_local_processes(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    disk = tmp_path / "disk"
    training = SlurmTraining(cluster, case(steps=FEW_STEPS), tokens, tmp_path / "run", 2, 2, staging=str(disk))
    training.finish()
    assert chaos.result(tmp_path / "run") == local("full_shard", 4, FEW_STEPS)
    assert sorted(path.name for path in (tmp_path / "run").glob("rank-*")) == [f"rank-{rank}.log" for rank in range(4)]
    assert f"step {FEW_STEPS}/{FEW_STEPS}" in (tmp_path / "run/rank-0.log").read_text()
    assert len(list(disk.glob("*/train/0.arrow"))) == 1  # the four read one copy, because the nodes are one machine


@pytest.mark.thorough  # the job is warned and requeued as with FSDP, and tests/pretrain restarts DeepSpeed
def test_warned_deepspeed_training_continues_in_another_allocation(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    state = case("zero3_optimizer_on_disk")
    training = SlurmTraining(cluster, state, tokens, tmp_path / "run", 2, 1, staging=str(tmp_path / "disk"))
    training.wait_for_step(DISTURBED)
    with training.frozen():
        cluster.ask("scancel", "--signal=USR1", training.job)  # as Slurm itself does with --signal: the tasks alone
    training.finish()
    assert training.requeues() == 1 and "continuing from the recovery checkpoint" in training.said()
    assert "as asked by a signal after step" in training.said()  # the warning did not kill it
    assert chaos.result(tmp_path / "run") == local("zero3_offload_optimizer", 2)


def test_warned_process_without_srun_continues_in_another_allocation(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    training = SlurmTraining(cluster, case(), tokens, tmp_path / "run", 1, 1)
    training.wait_for_step(DISTURBED)
    with training.frozen():
        cluster.ask("scancel", "--signal=URG", training.job)
    training.finish()
    assert training.requeues() == 1 and "continuing from the recovery checkpoint" in training.said()
    assert "as asked by a signal after step" in training.said()  # the warning did not kill it
    assert chaos.result(tmp_path / "run") == local("full_shard", 1)


@pytest.mark.versions
def test_killed_rank_ends_its_step_and_the_allocation_continues(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    training = SlurmTraining(cluster, case(), tokens, tmp_path / "run", 2, 1)
    training.wait_for_step(DISTURBED)
    with training.frozen() as ranks:
        ranks[1].kill()
    training.finish()
    assert training.requeues() == 0 and training.said().count("restarting") == 1
    assert chaos.result(tmp_path / "run") == local("full_shard", 2)


@pytest.mark.versions
def test_preempted_training_keeps_its_last_step_and_continues(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    training = SlurmTraining(cluster, case(), tokens, tmp_path / "run", 2, 1)
    training.wait_for_step(DISTURBED)
    with training.frozen() as ranks:
        cluster.ask("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        wait_until(lambda: not stands_still(ranks[0]), "Slurm asks the training to stop")
    training.finish()
    # Slurm 24.11 restarts a preempted job after its end: the allocation's file lists the finished jobs.
    assert training.requeues() == (2 if OTHER_SLURM else 1) and training.said().count("step 60/60") == 1
    assert "as asked by a signal after step" in training.said()  # it did not wait to be killed
    assert chaos.result(tmp_path / "run") == local("full_shard", 2)


def test_training_in_an_image_across_a_time_limit_gives_the_same_bytes(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    copy = new_project(tmp_path / "polder")
    copy.path(".venv-image").symlink_to(Path(sys.prefix).resolve())
    variables = image.make(tmp_path / "images", cluster.nodes, tmp_path, tokens["index"].parent)
    variables |= {"PATH": f"{tmp_path}/images/bin:$PATH", "PIPELINE_IMAGE": str(tmp_path / "images/torch.sif")}
    variables |= {"PIPELINE_PYTHON": str(copy.path("envs/container/python"))}
    exports = " ".join(f'{name}="{value}"' for name, value in variables.items())
    options, before = (f"--chdir={copy.folder}", *SHORT_LIMIT), f"export {exports};"
    training = SlurmTraining(cluster, case(), tokens, tmp_path / "run", 2, 1, *options, before=before)
    training.wait_for_step(DISTURBED)
    with training.frozen() as ranks, training.in_its_last_minutes():
        assert len(ranks) == 2 and all(rank.environ()["APPTAINER_NAME"] == "torch.sif" for rank in ranks)
        wait_until(lambda: all(has_got(rank, SIGUSR1) for rank in ranks), "Slurm warns the training")
    training.finish()
    assert training.requeues() == 1 and "continuing from the recovery checkpoint" in training.said()
    assert "as asked by a signal after step" in training.said()  # the warning did not kill it
    assert chaos.result(tmp_path / "run") == local("full_shard", 2)
    counts = json.loads((tmp_path / "run/counts").read_text())
    assert (counts["container"], counts["world_size"]) == ("torch.sif", 2)


@pytest.mark.thorough  # as above, without an image
def test_time_limit_loses_no_step(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
    local: Callable[..., dict[str, Any]],
) -> None:
    training = SlurmTraining(cluster, case(), tokens, tmp_path / "run", 2, 1, *SHORT_LIMIT)
    training.wait_for_step(DISTURBED)
    with training.frozen() as ranks, training.in_its_last_minutes():
        wait_until(lambda: all(has_got(rank, SIGUSR1) for rank in ranks), "Slurm warns the training")
    training.finish()
    assert training.requeues() == 1 and "continuing from the recovery checkpoint" in training.said()
    assert "as asked by a signal after step" in training.said()  # the warning did not kill it
    assert chaos.result(tmp_path / "run") == local("full_shard", 2)


@pytest.mark.versions
def test_cancelled_training_is_not_requeued(
    cluster: Cluster,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
) -> None:
    training = SlurmTraining(cluster, case(steps=5000), tokens, tmp_path / "run", 2, 1)
    training.wait_for_step(DISTURBED)
    cluster.ask("scancel", training.job)
    wait_until(lambda: cluster.state(training.job) == "CANCELLED", "the job has ended")
    assert training.requeues() == 0
