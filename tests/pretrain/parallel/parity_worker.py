"""One process that trains with many strategies and meshes in sequence: torchrun parity_worker.py CASES.json.

Process 0 writes for every case the losses and gradient norms of all steps, the validation loss, the norms of the
final weights and of their mean gradients, and how often its first block computed with a gradient.
"""

import faulthandler
import json
import math
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.core.lock_owner import die_with_parent
from pipeline.model.compilation_and_precision import set_determinism
from pipeline.model.decoder import Block
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.data_loader import find_document_offsets, make_batch, split_into_micro_batches
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.parallel.backend import Backend
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet


def made_from(start: SegmentStart, settings: SegmentSettings, vocabulary_size: int) -> Backend:
    arguments = (settings, vocabulary_size, start, torch.device("cpu"))
    if settings.training.backend == "deepspeed":
        from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend

        return DeepSpeedBackend(*arguments, disk=Path(tempfile.gettempdir()))
    from pipeline.pretrain.parallel.fsdp import FsdpBackend

    return FsdpBackend(*arguments)


class CountCollectives(TorchDispatchMode):
    """Count the all-gathers and reduce-scatters of FSDP."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {torch.ops.c10d._allgather_base_.default: 0, torch.ops.c10d._reduce_scatter_base_.default: 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.numbers:
            self.numbers[func] += 1
        return func(*args, **(kwargs or {}))


def total(value: torch.Tensor) -> float:
    everywhere = value.detach().double().clone()
    dist.all_reduce(everywhere)
    return float(everywhere)


def check_boxes(made: Backend) -> None:
    """Check that a process holds exactly the box of a distributed parameter that its placements define."""
    for name, parameter in made.parameters.items():  # type: ignore[attr-defined]
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            extents, offsets = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            box = tuple(slice(start, start + extent) for start, extent in zip(offsets, extents, strict=True))
            assert torch.equal(parameter.full_tensor()[box], parameter.to_local()), name


def train(settings: SegmentSettings, index: Path) -> dict[str, Any]:
    training, reader = settings.training, TokenReader(index, "train")
    sampler = Sampler(reader, training.sequence_length, training.batch_size, settings.seed)
    made = made_from(SegmentStart(None, settings, reader.vocabulary_size), settings, reader.vocabulary_size)
    place, length = (made.data_rank, made.data_size), training.sequence_length
    losses, norms, collectives, begun = [], [], [], []
    block = next(block for block in made.model.blocks if isinstance(block, Block))
    block.attention.register_forward_pre_hook(lambda *_: begun.append(torch.is_grad_enabled()))
    for step in range(settings.last_step):
        input_BT, target_BT = sampler.read_batch(step, *place)
        documents = find_document_offsets(input_BT, training, reader.begin_of_text_id, length)
        rows = (torch.from_numpy(array) for array in (input_BT, target_BT))
        micro_batches = split_into_micro_batches(*rows, [*map(torch.from_numpy, documents)], training, length)
        if step == settings.last_step - 1:  # so that the last step shows the effects of a validation
            batches = ValidationSet(index, length).batches(length, training.batch_size, *place)
            weight_T = 1 + torch.arange(length) / 10  # so that a loss at a wrong position is found
            batch = make_batch(*next(batches)[:2], training, reader.begin_of_text_id, torch.device("cpu"))
            with CountCollectives() as of_validation:
                validation = total((made.token_losses(batch) * weight_T).sum())
            is_sharded = isinstance(next(block.parameters()), DTensor)
        with CountCollectives() as of_step:
            accumulated = made.accumulate_gradients(micro_batches)
        collectives.append([*of_step.numbers.values()])
        loss = total(accumulated)
        losses.append(loss / (training.batch_size * training.sequence_length))
        norms.append(float(made.update(learning_rate_at(training, step + 1), lambda norm: True)))
    check_boxes(made)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(
        everyone, [(p.name, p.box, float(p.tensor.double().square().sum())) for p in made.state_shards()]
    )
    boxes = {(name, box): square for held in everyone for name, box, square in held}
    of_all = {name: math.sqrt(sum(s for (n, _), s in boxes.items() if n == name)) for name in {n for n, _ in boxes}}
    weights, moments = (
        {name: norm for name, norm in of_all.items() if name.startswith(kind)} for kind in ("model.", "exp_avg.")
    )
    return {
        "losses": losses,
        "norms": norms,
        "validation": validation,
        "weights": weights,
        "moments": moments,
        "forward_passes": sum(begun),
        "validation_gathers": next(iter(of_validation.numbers.values())),
        "is_sharded_after_validation": is_sharded,
        "step_collectives": collectives,
    }


def main() -> None:
    faulthandler.enable()
    die_with_parent()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    set_determinism(True)
    arguments = json.loads(Path(sys.argv[1]).read_text())
    device_and_process_group.join_process_group("torchrun")
    results = {}
    for name, settings in arguments["cases"].items():
        cpu = time.process_time()
        results[name] = train(SegmentSettings.model_validate(settings), Path(arguments["index"]))
        results[name]["cpu_seconds"] = time.process_time() - cpu
    if dist.get_rank() == 0:
        Path(arguments["outcome"]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
