"""One process that compares the initial state of both backends and the gradients of one step: torchrun … CASES.json.

Process 0 writes the results of each case. Gradients are read from the optimizer's first moment after one step that
clips nothing; they are compared with float64 sums of a plain copy of the model over each micro-batch.
"""

import gc
import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.core.lock_owner import die_with_parent
from pipeline.model.compilation_and_precision import set_determinism
from pipeline.model.networks import get_network, initial_state
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.shard_layout import full_box
from pipeline.pretrain.parallel.backend import Backend, Batch, layer_name
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.parity_worker import made_from, total

VOCABULARY = 512
MEGABYTE = 1e6


def resident(kind: str) -> float:
    """Return this process's memory in MB: current VmRSS, peak VmHWM since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MEGABYTE for line in lines if line.startswith(kind))


@contextmanager
def before_the_engine() -> Iterator[dict[str, float]]:
    """Measure the rise of this process's memory until DeepSpeed's engine gets the model."""
    import deepspeed

    results: dict[str, float] = {}
    starts = deepspeed.initialize

    def measured(*arguments: Any, **named: Any) -> Any:
        results["rise"] = resident("VmHWM") - before
        return starts(*arguments, **named)

    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    with patch.object(deepspeed, "initialize", measured):
        yield results


def merged(made: Backend, kind: str) -> dict[str, Tensor]:
    """Return the full tensors of a kind, put together from all processes' pieces."""
    mine = [(p.name, p.shape, p.box, p.tensor.clone()) for p in made.state_shards() if p.name.startswith(kind)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    full: dict[str, Tensor] = {}
    for name, shape, box, tensor in (one for held in everyone for one in held):
        into = full.setdefault(name.removeprefix(kind), torch.full(shape, math.nan))
        into[box.slices_within(full_box(shape))] = tensor
    return full


def batches(settings: SegmentSettings) -> list[Batch]:
    """Return this process's micro-batches of a step."""
    training = settings.training
    share = training.batch_size // dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(VOCABULARY, (share, training.sequence_length + 1), generator=generator)
    return [Batch(rows[:, :-1], rows[:, 1:]) for rows in tokens.split(training.micro_batch_size)]


def exact_gradients(settings: SegmentSettings) -> dict[str, Tensor]:
    """Return the mean gradients over all micro-batches and processes, summed in float64."""
    model = get_network(settings.architecture.name).model(settings.architecture, VOCABULARY)
    model.load_state_dict(initial_state(settings.architecture, VOCABULARY, settings.seed), strict=False)
    model.to(torch.bfloat16 if settings.training.precision == "bf16" else torch.float32)
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    micro_batches = batches(settings)
    count = len(micro_batches) * dist.get_world_size()
    for batch in micro_batches:
        model.zero_grad()
        torch.autograd.backward(model(*batch) / batch.target_BT.numel() / count)
        for name, parameter in model.named_parameters():
            sums[name] += parameter.grad
    for tensor in sums.values():
        dist.all_reduce(tensor)
    return sums


def in_file(tensor: Tensor) -> bool:
    """Return whether a tensor is in a writable mapped file, and not in the process's own memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(address, 16) for address in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.split()[4] != "0"  # the inode
    return False


def planned_versions(made: Any) -> dict[str, Any]:
    """Return the kernel of the optimizer, and whether DeepSpeed keeps its state and the weights in main memory.

    Also whether all state is in files.
    """
    if made.training.backend == "fsdp":
        return {"fused": made.optimizer.defaults["fused"]}
    offloads = [bool(made.engine.zero_offload_optimizer()), bool(made.engine.zero_offload_param())]
    state = [
        *made._flat_parameters(),
        *(one for held in made.base.state.values() for name, one in held.items() if name != "step"),
    ]
    on_disk = {in_file(tensor) for tensor in state}
    return {"fused": made.base.defaults["fused"], "offloads": offloads, "on_disk": [*on_disk]}


def compared(settings: SegmentSettings) -> dict[str, Any]:
    """Return the errors of weights, gradients and norms, and `planned_versions`."""
    made = made_from(SegmentStart(None, settings, VOCABULARY), settings, VOCABULARY)
    initial = initial_state(settings.architecture, VOCABULARY, settings.seed)
    weights = merged(made, "model.")
    assert weights.keys() == initial.keys()
    same = all(torch.equal(weights[name], initial[name]) for name in initial)
    exact = exact_gradients(settings)
    made.accumulate_gradients(batches(settings))
    layer_norms = made.norms_by_layer()
    norm = float(made.update(1e-3, lambda norm: True))
    gradients = {
        name: moment.double() / (1 - settings.training.beta1) for name, moment in merged(made, "exp_avg.").items()
    }
    squares = {
        name: float((gradients[name] - exact[name]).square().sum() / exact[name].square().sum()) for name in exact
    }
    wanted: dict[str, float] = {}
    for kind, tensors in (("gradient", exact), ("weight", initial)):
        for name, tensor in tensors.items():
            key = f"{kind}_norm/{layer_name(name)}"
            wanted[key] = math.hypot(wanted.get(key, 0.0), float(tensor.double().norm()))
    assert layer_norms.keys() == wanted.keys()
    return {
        **planned_versions(made),
        "same_weights": same,
        "gradient": math.sqrt(max(squares.values())),
        "layer_norms": max(abs(layer_norms[key] / wanted[key] - 1) for key in wanted),
        "norm": norm / math.hypot(*(value for key, value in wanted.items() if key.startswith("gradient"))) - 1,
    }


def main() -> None:
    die_with_parent()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    set_determinism(True)
    arguments = json.loads(Path(sys.argv[1]).read_text())
    device_and_process_group.join_process_group("torchrun")
    results: dict[str, Any] = {}
    kept = []  # memory freed by the model before would serve the next one
    for name, values in arguments["cases"].items():
        settings = SegmentSettings.model_validate(values)
        if arguments["kind"] == "memory":
            with before_the_engine() as measured:
                kept.append(made_from(SegmentStart(None, settings, VOCABULARY), settings, VOCABULARY))
            results[name] = {"rise": total(torch.tensor(measured["rise"])) / dist.get_world_size()}
        else:
            results[name] = compared(settings)
    if dist.get_rank() == 0:
        Path(arguments["outcome"]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
