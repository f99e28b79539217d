"""The process layout, and the errors about indivisible sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipeline.core.errors import InputError
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, list_backend_strategies
from pipeline.pretrain.parallel import process_groups, process_layout
from pipeline.pretrain.processes.launch_command import count_processes_per_node
from pipeline.pretrain.settings import Mesh, SegmentSettings, Training

Make = Callable[..., SegmentSettings]
NUMBERS = {"sequence_length": 64, "batch_size": 64, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}


@given(
    data=st.integers(1, 12),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 4),
    context=st.sampled_from([1, 2, 3]),
    per_node=st.integers(1, 16),
    strategy=st.sampled_from(list_backend_strategies("fsdp")),
)
def test_every_process_has_one_mesh_position(
    data: int, tensor: int, pipeline: int, context: int, per_node: int, strategy: str
) -> None:
    asked = Mesh(tensor=tensor, pipeline=pipeline, context=context)
    training = Training.model_validate({**NUMBERS, "strategy": strategy, "mesh": asked})
    processes = data * tensor * pipeline * context
    sizes = process_layout.make_layout(training, processes, per_node)
    assert sizes.pipeline * sizes.replicate * sizes.shard * sizes.tensor == processes and sizes.data == data
    shares = [sizes.data_rank(rank) for rank in range(processes)]
    assert [shares.count(share) for share in range(data)] == [tensor * pipeline * context] * data
    # Neighboring ranks work on the same part, so the most communication stays on one node.
    assert shares[: tensor * context] == [0] * (tensor * context)
    if STRATEGIES[strategy].is_hybrid:
        assert sizes.shard * tensor <= max(per_node, tensor)
    assert (strategy != "no_shard" or sizes.shard == 1) and (strategy != "full_shard" or sizes.replicate == 1)


LAYOUTS = [
    (process_groups.ProcessLayout(pipeline=1, replicate=1, shard=128, context=1, tensor=1), 1),
    (process_groups.ProcessLayout(pipeline=1, replicate=128, shard=1, context=1, tensor=1), 1),
    (process_groups.ProcessLayout(pipeline=1, replicate=16, shard=8, context=1, tensor=1), 3),
    (process_groups.ProcessLayout(pipeline=2, replicate=4, shard=4, context=2, tensor=4), 5),
    (process_groups.ProcessLayout(pipeline=1, replicate=1, shard=1, context=1, tensor=1), 0),
]


@pytest.mark.parametrize(("sizes", "groups"), LAYOUTS)
def test_process_creates_only_its_own_groups(
    sizes: process_groups.ProcessLayout, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = sizes.pipeline * sizes.replicate * sizes.shard * sizes.tensor
    asked: list[Any] = []
    make = dist.new_group
    monkeypatch.setattr(
        dist, "new_group", lambda *given, **named: asked.append(named["timeout"]) or make(*given, **named)
    )
    for rank in {0, processes // 3, processes - 1}:
        dist.init_process_group("fake", rank=rank, world_size=processes, store=FakeStore())
        try:
            asked.clear()
            made = process_groups.make_mesh(sizes, "cpu")
            context = process_groups.make_context_group(sizes) if sizes.context > 1 else None
            # By the calls and by torch's own list, which also contains the group of all.
            assert len(asked) == len(c10d._world.pg_map) - 1 == groups
            assert set(asked) <= {process_groups.COLLECTIVE_TIMEOUT}
            assert (made["replicate"].size(), made["shard"].size()) == (sizes.replicate, sizes.shard)
            torchs = init_device_mesh("cpu", made.shape, mesh_dim_names=made.mesh_dim_names)
            for name in made.mesh_dim_names:
                mine, theirs = made.get_group(name), torchs.get_group(name)
                assert dist.get_process_group_ranks(mine) == dist.get_process_group_ranks(theirs)
                assert made.get_local_rank(name) == torchs.get_local_rank(name)
                assert made[name].get_group() is mine
            if context:
                sharing = dist.get_process_group_ranks(context)
                assert rank in sharing and [one - sharing[0] for one in sharing] == [0, sizes.tensor]
                assert {sizes.data_rank(one) for one in sharing} == {sizes.data_rank(rank)}
        finally:
            dist.destroy_process_group()


def test_neighboring_processes_divide_the_experts() -> None:
    sizes = process_groups.ProcessLayout(pipeline=1, replicate=2, shard=8, context=1, tensor=1, expert=4)
    dist.init_process_group("fake", rank=13, world_size=16, store=FakeStore())
    try:
        made = process_groups.make_expert_mesh(sizes, "cpu")
        groups = {name: dist.get_process_group_ranks(made.get_group(name)) for name in made.mesh_dim_names or ()}
        assert groups["expert"] == [12, 13, 14, 15]
        assert groups["shard"] == [9, 13]  # of the same experts
        assert groups["replicate"] == [5, 13] and groups["pipeline"] == groups["tensor"] == [13]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("training", "architecture", "processes", "message"),
    [
        ({"mesh": {"tensor": 2, "pipeline": 2}}, {}, 6, r"6 processes .* tensor 2 x pipeline 2 x context 1 = 4"),
        ({"mesh": {"tensor": 3}, "batch_size": 6}, {}, 6, r"heads 4 .* by training.mesh.tensor 3: 1, 2 and 4 would do"),
        (
            {"mesh": {"tensor": 2, "context": 4}, "sequence_length": 40},
            {},
            8,
            r"sequence_length 40 .* training.mesh.tensor x context x 2 = 16: a multiple of 16 would do",
        ),
        (
            {"mesh": {"pipeline": 3}},
            {},
            3,
            r"layers 2 are fewer than the stages of .*pipeline 3: a pipeline of at most 2 w",
        ),
        (
            {"mesh": {"pipeline": 2, "interleaving": 2}},
            {"layers": 3},
            2,
            r"layers 3 are fewer than the stages of .*pipeline 2 x interleaving 2: a pipeline of at most 1 would do",
        ),
        (
            {"mesh": {"pipeline": 2, "interleaving": 2}, "batch_size": 3},
            {"layers": 4},
            2,
            r"batch_size of 3 gives .* 3 micro-batches, which .*pipeline 2 does not divide, .* of 1 or 3 would do, or",
        ),
        ({"mesh": {"context": 2}, "sequence_length": 31}, {}, 2, r"sequence_length 31 .* context 2: a multiple of 2 w"),
        ({"mesh": {"tensor": 2}}, {"feed_forward_width": 33}, 2, r"feed-forward width 33 .*tensor 2: 1 would do"),
        ({"mesh": {"tensor": 4}}, {"feed_forward_width": 34}, 4, r"width 34 .*tensor 4: 1 and 2 would do"),
        ({"mesh": {"tensor": 8}}, {"feed_forward_width": 33}, 8, r"heads 4 .*tensor 8: 1 would do"),
        ({"micro_batch_size": 4, "batch_size": 12}, {}, 2, r"a batch_size of 8 or 16, or a micro_batch_size of 1, 2"),
        ({"mesh": {"pipeline": 2}, "micro_batch_size": 4}, {}, 2, r"of 4 gives each .* 1 micro-batch, fewer than .*p"),
        (
            {"mesh": {"pipeline": 2}, "micro_batch_size": 2, "ramp": [{"to_step": 2, "batch_size": 2}], "steps": 4},
            {},
            2,
            r"of 2 gives each data-parallel process 1 micro-batch, fewer than .* 2: a pipeline of at most 1 would do",
        ),
        ({"mesh": {"pipeline": 2}}, {"tie_embeddings": True}, 2, r"set training.mesh.pipeline to 1"),
        (
            {"batch_size": 6, "mesh": {"tensor": 2}},
            {},
            8,
            r"batch_size 6 .* 4 data-.*: a batch_size of 4 or 8 wo",
        ),
        ({"strategy": "hybrid_shard", "mesh": {"shard": 3}}, {}, 4, r"mesh.shard 3 .*: 1, 2 and 4 would do"),
    ],
)
def test_indivisible_sizes_are_named(
    training: dict[str, Any], architecture: dict[str, Any], processes: int, message: str, settings: Make
) -> None:
    chosen = settings(architecture=architecture, **training)
    with pytest.raises(InputError, match=message):
        process_layout.check_mesh_divides_model(chosen.training, chosen.architecture, 304, processes, processes)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"backend": "deepspeed", "strategy": "zero1", "mesh": {"tensor": 2}}, "mesh.tensor 2 needs backend fsdp"),
        ({"mesh": {"interleaving": 2}}, "mesh.interleaving 2 needs a pipeline: set it to 1, or"),
        ({"mesh": {"shard": 2}}, "mesh.shard 2 needs a hybrid strategy, not full_shard"),
        ({"async_tensor_parallel": True, "mesh": {"tensor": 2}}, "async_tensor_parallel needs compile"),
    ],
)
def test_contradicting_mesh_settings_are_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training.model_validate({**NUMBERS, **training})


@pytest.mark.parametrize(
    ("launch", "environment", "expected"),
    [
        (None, {}, 1),
        ("torchrun --nnodes=2 --nproc-per-node=4", {}, 4),
        ("srun --nodes=2 --ntasks=8", {}, 4),
        ("srun --ntasks-per-node=4", {"SLURM_NNODES": "2"}, 4),
        ("srun --ntasks=8", {"SLURM_NTASKS_PER_NODE": "2"}, 2),
        ("srun --ntasks=8", {}, 8),
    ],
)
def test_processes_of_one_node(launch: str | None, environment: dict[str, str], expected: int) -> None:
    assert count_processes_per_node(launch, environment) == expected
