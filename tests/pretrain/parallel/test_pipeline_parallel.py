"""The computation order of a pipeline: planned waiting and memory in flight.

PyTorch's interleaved schedule defines the actions; here each action takes a time, and begins when its inputs are
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipeline.model.llama_network import Llama
from pipeline.model.settings import Architecture
from pipeline.plan import training_cost_formulas
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.step_time import DeviceMesh, Kernel, Machine, StepWork, estimate_step_time
from pipeline.pretrain.monitors.torch_tracing_private import skip_pipeline_stage_communication
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.pipeline_parallel import Pipeline, make_stages_class_for_model

BACKWARD = 2
"""Times a forward pass."""
Action = tuple[int, str, int]


class _Stage:
    """A stage's interface for the schedules before they run."""

    def __init__(self, index: int, processes: int, number: int) -> None:
        self.stage_index, self.num_stages = index, number
        self.group_rank, self.group_size = index % processes, processes
        self.is_first, self.is_last, self.submod = index == 0, index == number - 1, None
        self.has_backward, self.stage_index_to_group_rank = False, {}


def orders(processes: int, parts: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each process in order: stage, F or B, micro-batch."""
    results = []
    for process in range(processes):
        if parts == 1:  # PyTorch defines no order: as many forward passes as there are later stages, then alternating
            ahead = min(processes - process - 1, micro_batches)
            turns = [(process, kind, n - ahead * (kind == "B")) for n in range(ahead, micro_batches) for kind in "FB"]
            first = [(process, "F", n) for n in range(ahead)]
            results.append([*first, *turns, *((process, "B", n) for n in range(micro_batches - ahead, micro_batches))])
            continue
        own = [_Stage(process + part * processes, processes, processes * parts) for part in range(parts)]
        table = ScheduleInterleaved1F1B(own, micro_batches).pipeline_order  # type: ignore[arg-type]
        results.append(
            [
                (one.stage_index, one.computation_type.value, one.microbatch_index or 0)
                for one in table[process]
                if one is not None and one.computation_type.value in "FB"
            ]
        )
    return results


def simulated(order: Sequence[Sequence[Action]], costs: Sequence[Fraction]) -> Fraction:
    """Return the end of the last process; costs are those of a stage's forward pass."""
    ends: dict[Action, Fraction] = {}
    now, done = [Fraction(0)] * len(order), [0] * len(order)
    while any(done[p] < len(actions) for p, actions in enumerate(order)):
        were = list(done)
        for process, actions in enumerate(order):
            while done[process] < len(actions):
                stage, kind, number = actions[done[process]]
                last = stage == len(costs) - 1
                before = (stage - 1, "F", number) if kind == "F" else (stage + 1, "B", number)
                needs = stage > 0 if kind == "F" else not last
                if needs and before not in ends:
                    break
                begins = max(now[process], ends[before]) if needs else now[process]
                now[process] = begins + costs[stage] * (1 if kind == "F" else BACKWARD)
                ends[stage, kind, number] = now[process]
                done[process] += 1
        assert done != were, "the processes wait for each other"
    return max(now)


def planned(process_layers: Sequence[int], processes: int, parts: int, micro_batches: int, output: int) -> float:
    """Return the planned seconds of a step with one forward second per layer."""
    machine = Machine(1.0, 1.0, 1.0, 1.0, devices=processes)
    second = 1 / machine.seconds([Kernel(1, 0)])
    work = StepWork(
        forward=(Kernel(second, 0),),
        backward=(Kernel(BACKWARD * second, 0),),
        recomputed=(),
        tensor_bytes=0,
        context_bytes=0,
        head=(Kernel(output * (1 + BACKWARD) * second, 0),),
        layers=sum(process_layers) / processes,
        most_layers=max(process_layers),
        last_layers=process_layers[-1],
        micro_batches=micro_batches,
    )
    return estimate_step_time(work, DeviceMesh(pipeline=processes, interleaving=parts), machine).seconds


@pytest.mark.parametrize(("processes", "parts"), [(2, 1), (4, 1), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_planned_wait_of_equal_stages_equals_the_schedule(processes: int, parts: int, rounds: int) -> None:
    micro_batches = rounds * processes
    order = orders(processes, parts, micro_batches)
    took = simulated(order, [Fraction(1)] * processes * parts)
    idle = took - 3 * parts * micro_batches  # of each process, whose layers take three seconds of a micro-batch
    assert idle == 3 * (processes - 1)  # by (p - 1) / v of a process's time for a micro-batch
    assert planned([parts] * processes, processes, parts, micro_batches, output=0) == pytest.approx(float(took))


@pytest.mark.parametrize(("layers", "parts"), [(18, 1), (22, 1), (35, 1), (22, 2), (39, 2)])
def test_planned_wait_of_unequal_stages_is_within_a_few_percent(layers: int, parts: int) -> None:
    shape, length, output = Architecture(layers=layers, width=64, heads=4), 64, 2
    block = 6 * (4 * 64 * 64 + 3 * 64 * shape.intermediate_width) + 12 * length * 64
    vocabulary = round(output * block / (6 * 64))  # so that the output takes two layers' operations
    assert training_cost_formulas.output_cost_in_layers(shape, vocabulary, length) == pytest.approx(output, abs=0.01)
    numbers = {"sequence_length": length, "batch_size": 16, "micro_batch_size": 1, "steps": 1}
    plan = TrainingPlan.model_validate({**numbers, "mesh": {"pipeline": 4, "interleaving": parts}})
    costs = [Fraction(len(part)) for part in training_cost_formulas.divide_layers(shape, vocabulary, length, 4 * parts)]
    costs[-1] += output
    took = simulated(orders(4, parts, 16), costs)
    result = planned(training_cost_formulas.layers_per_pipeline_rank(shape, vocabulary, plan), 4, parts, 16, output)
    assert result == pytest.approx(float(took), rel=0.04)
    # The division is no worse than an equal number of layers, as near as possible.
    each, more = divmod(layers, 4 * parts)
    equal = [Fraction(each + (stage < more)) for stage in range(4 * parts)]
    equal[-1] += output
    assert took <= simulated(orders(4, parts, 16), equal)


@pytest.mark.parametrize(
    ("processes", "parts", "micro_batches"), [(4, 1, 8), (2, 1, 2), (4, 2, 8), (4, 4, 16), (2, 3, 8)]
)
def test_planned_layers_in_flight_equal_the_schedule(processes: int, parts: int, micro_batches: int) -> None:
    shape = Architecture(layers=processes * parts * 2, width=64, heads=4)
    numbers = {"sequence_length": 64, "batch_size": micro_batches, "micro_batch_size": 1, "steps": 1}
    plan = TrainingPlan.model_validate({**numbers, "mesh": {"pipeline": processes, "interleaving": parts}})
    most = 0
    for actions in orders(processes, parts, micro_batches):
        held = 0
        for _, kind, _ in actions:
            held += 2 if kind == "F" else -2
            most = max(most, held)
    assert training_cost_formulas.layers_in_flight(shape, 16, plan) == most


@pytest.mark.parametrize("rank", [0, 1])
def test_stage_buffers_fit_the_micro_batches_in_flight(rank: int) -> None:
    """At most two of eight, for any stand-in of the neighbor; and for none after the step."""
    architecture, batch = Architecture(layers=2, width=32, heads=4), torch.zeros(1, 16, dtype=torch.long)
    dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
    try:
        own = make_stages_class_for_model(Llama)(
            architecture, 96, [range(rank, rank + 1)], is_first=rank == 0, is_last=rank == 1
        )
        assert dist.group.WORLD is not None
        pipeline = Pipeline(own, 1, torch.float32, torch.device("cpu"), dist.group.WORLD, reduces_once=False)
        (stage,) = pipeline._make_schedule(8, batch.shape, trains=True)[1]

        def count_buffers() -> int:
            received = (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
            return sum(info.buffer is not None for infos in received for info in infos)

        seen: list[int] = []
        make = stage._allocate_buffers
        stage._allocate_buffers = lambda infos: seen.append(make(infos) or count_buffers())
        with skip_pipeline_stage_communication():
            pipeline.accumulate_gradients([Batch(batch, batch, None)] * 8, 8 * 16)
        assert pipeline._make_schedule(8, batch.shape, trains=True)[1] == [stage]
        assert 1 <= max(seen) <= 2 and count_buffers() == 0
        with skip_pipeline_stage_communication(), torch.no_grad():
            pipeline.token_losses(Batch(batch, batch, None))
        for each in (stage, *pipeline._make_schedule(1, batch.shape, trains=False)[1]):
            assert not each.fwd_cache and not each.output_chunks, "logits of a validation would remain"
    finally:
        dist.destroy_process_group()
