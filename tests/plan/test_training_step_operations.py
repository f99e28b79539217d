from __future__ import annotations

import math
from typing import Any

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token, parameter_count
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.step_time import DeviceMesh, Kernel, StepWork
from pipeline.plan.training_step_operations import ASYNC_EXPOSED, count_step_work, make_device_mesh

EIGHT = Architecture(layers=32, width=4096, feed_forward_width=14336, heads=32, key_value_heads=8)
VOCABULARY = 128_256
PARAMETERS = parameter_count(EIGHT, VOCABULARY)


def training(**changes: Any) -> TrainingPlan:
    written = {"precision": "bf16", "sequence_length": 4096, "batch_size": 64, "micro_batch_size": 2, "steps": 1}
    return TrainingPlan.model_validate(written | changes)


def counted(devices: int = 16, **changes: Any) -> tuple[DeviceMesh, StepWork]:
    plan = training(**changes)
    mesh = make_device_mesh(plan, devices, 4)
    return mesh, count_step_work(EIGHT, VOCABULARY, plan, mesh)


def flops(kernels: tuple[Kernel, ...]) -> float:
    return sum(k.flops for k in kernels)


def test_flops_equal_those_of_the_model_except_causal_attention():
    _, whole = counted()
    tokens = 2 * 4096
    attention = 12 * 4096 * 4096  # of a token and layer, three passes over all scores
    ours = 32 * (flops(whole.forward) + flops(whole.backward)) + flops(whole.head)
    expected = tokens * (flops_per_token(EIGHT, VOCABULARY, 4096) - 32 * attention * (1 - (1 + 2.5) / 6))
    assert math.isclose(ours, expected)


def test_window_counts_only_scores_inside_it():
    plan = training(batch_size=32, micro_batch_size=1)
    windowed = EIGHT.model_copy(update={"window": 1000, "full_attention_layers": tuple(range(8))})
    result, whole = (
        count_step_work(shape, VOCABULARY, plan, make_device_mesh(plan, 16, 4)) for shape in (windowed, EIGHT)
    )
    scores = [min(position + 1, 1000) for position in range(4096)]
    share = (8 + 24 * sum(scores) / (4096 * 4097 / 2)) / 32
    for ours, full in zip(
        (result.forward[-2], result.backward[-2]), (whole.forward[-2], whole.backward[-2]), strict=True
    ):
        assert math.isclose(ours.flops, share * full.flops, rel_tol=1e-3) and ours.bytes == full.bytes


def test_attention_reads_and_writes_queries_keys_values_outputs_and_gradients():
    _, whole = counted()
    forward, backward = whole.forward[-2], whole.backward[-2]
    assert forward.bytes == 2 * (2 * 4096) * (4096 + 1024 + 1024 + 4096)
    assert backward.bytes == 2 * forward.bytes


def test_tensor_pipeline_and_context_parallelism_divide_flops_and_bytes():
    _, one = counted()
    for mesh, share in (({"tensor": 4}, 4), ({"context": 4}, 4), ({"tensor": 2, "context": 2}, 4)):
        _, split = counted(mesh=mesh)
        assert math.isclose(flops(split.forward) * share, flops(one.forward))
        assert math.isclose(flops(split.head) * share, flops(one.head))
        assert math.isclose(split.forward[-1].bytes * share, one.forward[-1].bytes)
    _, stage = counted(mesh={"pipeline": 4})
    assert stage.layers == 8 and stage.forward == one.forward
    assert stage.stage_bytes == 2 * 2 * 2 * 4096 * 4096  # forward and backward, two bytes, tokens, width


def test_micro_batches_are_per_device():
    assert counted(16)[1].micro_batches == 2
    assert counted(16, mesh={"tensor": 4, "pipeline": 2})[1].micro_batches == 16
    assert counted(16, mesh={"context": 4})[1].micro_batches == 8


def test_recomputed_kernels_follow_the_recomputation_mode():
    none, some, full = (counted(recomputation=name)[1] for name in ("none", "selective", "full"))
    down = 3
    assert none.recomputed == () and full.recomputed == (*full.forward[:down], *full.forward[down + 1 :])
    assert some.recomputed == full.forward[-1:] and some.recomputed[0].flops == 0  # products are kept
    assert full.tensor_bytes == 0
    names = ("none", "selective", "full")
    split = [counted(mesh={"tensor": 4}, recomputation=name)[1].tensor_bytes for name in names]
    assert split[0] == 2 * 2 * (2 * 4096) * 4 * 4096 * 3 / 4 and split[1] == split[2] == split[0] * 3 / 2
    hidden = counted(mesh={"tensor": 4}, async_tensor_parallel=True, compile=True)[1].tensor_bytes
    assert math.isclose(hidden, split[0] * ASYNC_EXPOSED) and 0 < ASYNC_EXPOSED < 1


def test_context_parallel_devices_exchange_queries_keys_values_and_outputs():
    _, split = counted(mesh={"context": 4})
    assert split.context_bytes == 2 * 2 * (2 * 4096 / 4) * (4096 + 1024 + 1024 + 4096) * 3 / 4


def test_context_parallel_devices_replicate_indivisible_key_value_heads():
    plan = training(sequence_length=8192, mesh={"context": 8})  # of which four divide 52 heads
    split = count_step_work(Architecture(preset="gptnl-30b"), VOCABULARY, plan, make_device_mesh(plan, 8, 4))
    queries, keys = 52 * 128, 52 * 128  # of 13 key-value heads that four divide, 52
    sent = 2 * queries * 3 / 4 + 2 * keys / 4 * 7  # to three with other heads; a quarter of keys and values to all
    assert split.context_bytes == 2 * 2 * (2 * 8192 / 8) * sent
    assert split.forward[-2].bytes == 2 * (2 * 8192 / 8) * (2 * queries + 2 * 2 * keys)


def test_compilation_reads_and_writes_less():
    plain, fused = (counted(compile=on)[1] for on in (False, True))
    moved = 2 * 2 * 4096
    assert plain.forward[-1].bytes == moved * (10 * 4096 + 4 * 5120 + 5 * 14336)
    assert plain.backward[-1].bytes == moved * (16 * 4096 + 4 * 5120 + 9 * 14336)
    assert fused.forward[-1].bytes == moved * (8 * 4096 + 2 * 5120 + 3 * 14336)
    assert fused.backward[-1].bytes == moved * (12 * 4096 + 2 * 5120 + 5 * 14336)


def test_each_strategy_sends_what_it_shards():
    def sent(strategy: str, **changes: Any) -> tuple[float, float, float]:
        mesh, one = counted(strategy=strategy, **changes)
        assert mesh.sharing * mesh.replicas == 16
        return tuple(round(x / PARAMETERS, 6) for x in (one.data_bytes, one.step_bytes, one.optimizer[0].bytes))  # type: ignore[return-value]

    # Weights of 2 bytes, gradients of 4; all-reduced twice their size.
    assert sent("full_shard") == (15 / 16 * 8, 0, 42 / 16)
    assert sent("full_shard", gradient_reduction="bf16") == (15 / 16 * 6, 0, 42 / 16)
    assert sent("shard_grad_op") == sent("zero2") == (15 / 16 * 6, 0, 42 / 16)
    assert sent("no_shard") == (0, 2 * 15 / 16 * 4, 42)
    assert sent("zero1") == (0, 2 * 15 / 16 * 4, 42 / 16)
    assert sent("shard_optimizer") == (0, 15 / 16 * (4 + 2), 42 / 16)  # gradients reduced, and weights gathered
    assert sent("hybrid_shard") == (3 / 4 * 8, 2 / 4 * 3 / 4 * 4, 42 / 4)
    assert sent("hybrid_shard_zero2") == (3 / 4 * 6, 2 / 4 * 3 / 4 * 4, 42 / 4)


def test_mesh_is_laid_out_innermost_first():
    mesh, split = counted(64, strategy="hybrid_shard", mesh={"tensor": 2, "pipeline": 4, "context": 2, "shard": 4})
    assert mesh == DeviceMesh(tensor=2, context=2, sharing=4, replicas=2, pipeline=4)
    block = (PARAMETERS - 2 * VOCABULARY * 4096 - 4096) / 32
    fullest = 8 * block + VOCABULARY * 4096  # the first of 8, 9, 9 and 6 layers, with the embedding
    assert (split.layers, split.most_layers, split.last_layers, split.micro_batches) == (8, 9, 6, 8)
    # Gradients of every micro-batch, and weights once for all eight of them.
    assert math.isclose(split.data_bytes, fullest / 2 * 3 / 4 * (4 + 2 / 8))
    assert make_device_mesh(training(strategy="hybrid_shard"), 16, 4) == DeviceMesh(sharing=4, replicas=4)


def test_tensor_parallel_devices_compute_the_key_value_heads_of_their_queries():
    thirty = Architecture(preset="gptnl-30b")  # 52 heads, four to each of 13 key-value heads
    for tensor, context, computed, repeated in (
        (1, 1, 13, 13),
        (2, 1, 7, 26),
        (4, 1, 4, 52),
        (13, 1, 1, 13),
        (1, 2, 13, 26),
    ):
        plan = training(mesh={"tensor": tensor, "context": context})
        split = count_step_work(thirty, VOCABULARY, plan, make_device_mesh(plan, 52, 4))
        tokens = 2 * 4096 / context
        assert split.forward[0].flops == 2 * tokens * 6656 * (6656 / tensor + 2 * computed * 128)
        assert split.forward[-2].bytes == 2 * tokens * (2 * 6656 + 2 * repeated * 128) / tensor


def test_naive_attention_computes_and_stores_all_scores():
    (_, flash), (_, plain) = counted(), counted(flash_attention=False)
    scores = 2 * 4096 * 4096 * 32  # of a micro-batch's sequences, in 32 heads
    for ours, theirs, bytes_of_scores in (
        (plain.forward[-2], flash.forward[-2], 24 * scores),
        (plain.backward[-2], flash.backward[-2], 48 * scores),
    ):
        assert ours.bytes - theirs.bytes == bytes_of_scores
    assert plain.forward[-2].flops == 2 * flash.forward[-2].flops
    # 4 T H of a token forward and twice as much backward, with H = D here
    assert plain.forward[-2].flops + plain.backward[-2].flops == 3 * 4 * 2 * 4096 * 4096 * 4096


def test_each_transfer_of_a_layer_is_a_collective() -> None:
    gathered, kept, copied = (counted(strategy=name)[1] for name in ("full_shard", "shard_grad_op", "no_shard"))
    assert (gathered.data_collectives, kept.data_collectives) == (32 * 3, 32 * 2)
    assert copied.step_collectives == 32 * 2, "an all-reduce is a reduce-scatter and an all-gather"
    piped = counted(mesh={"pipeline": 4})[1]  # weights are gathered once for the 8 micro-batches of a step
    assert piped.data_collectives == piped.most_layers * (1 + 1 / 8)
