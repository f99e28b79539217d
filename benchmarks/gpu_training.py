"""Train once on one device for `benchmarks/gpu.py`, in a separate process: python gpu_training.py SETTINGS.

Prints one line, "result: " and JSON: seconds of the steps, last loss, peak memory, power and the machine, or that
memory ran out.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from checkpoint_stall import measure_stall
from torch import Tensor

from pipeline.core.machine import describe_machine
from pipeline.model.compilation_and_precision import set_determinism, set_execution_options
from pipeline.model.llama_network import Llama
from pipeline.pretrain.checkpoints.checkpoint import SegmentStart
from pipeline.pretrain.checkpoints.shard_layout import TensorShard
from pipeline.pretrain.monitors.memory_estimate import is_out_of_memory
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings

SECONDS_BETWEEN_READINGS = 0.1


class Drawn(SegmentStart):
    """Random weights made on the device, which takes no time; nothing that is measured depends on them."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield nothing: DeepSpeed's model keeps what PyTorch draws."""
        return iter(())

    @torch.no_grad()
    def load(self, pieces: Iterable[TensorShard]) -> None:
        """Fill the parameters."""
        for piece in pieces:
            if piece.name.startswith("model."):
                piece.tensor.normal_(0, 0.02) if len(piece.shape) > 1 else piece.tensor.fill_(1)


class HuggingFace:
    """A plain loop over LlamaForCausalLM: float32 weights, bf16 products by autocast, fused AdamW."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, device: torch.device) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        from pipeline.model.llama_network import huggingface_config

        self.training = training = settings.training
        shape = huggingface_config(settings.architecture, vocabulary_size, training.sequence_length)
        with torch.device(device):
            self.model = LlamaForCausalLM(LlamaConfig.from_dict({**shape, "use_cache": False}))
        if training.recomputation != "none":
            self.model.gradient_checkpointing_enable()
        if training.compile:
            for layer in self.model.model.layers:
                layer.compile()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )

    def step(self, micro_batches: Sequence[Batch]) -> float:
        """Take a step and return the mean of the token losses."""
        losses = []
        for batch in micro_batches:
            with torch.autocast(batch.input_BT.device.type, torch.bfloat16):
                result = self.model(batch.input_BT, labels=batch.target_BT, shift_labels=batch.target_BT)
            (result.loss / len(micro_batches)).backward()
            losses.append(result.loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(torch.stack(losses).mean())


class Native:
    """The backend of the settings."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, device: torch.device) -> None:
        self.training = settings.training
        if self.training.backend == "deepspeed":
            from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend as Backend
        else:
            from pipeline.pretrain.parallel.fsdp import FsdpBackend as Backend  # type: ignore[assignment]
        self.backend = Backend(settings, vocabulary_size, Drawn(None, settings, vocabulary_size), device)

    def step(self, micro_batches: Sequence[Batch]) -> float:
        """Take a step and return the mean of the token losses."""
        loss = self.backend.accumulate_gradients(micro_batches)
        self.backend.update(self.training.learning_rate, lambda norm: True)
        return float(loss) / self.training.batch_size / self.training.sequence_length


class Small:
    """The model with the least state: bf16 parameters and gradients, SGD."""

    def __init__(self, settings: SegmentSettings, vocabulary_size: int, device: torch.device) -> None:
        training = settings.training
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            self.model = Llama(settings.architecture, vocabulary_size)
        torch.set_default_dtype(torch.float32)
        set_execution_options(
            self.model,
            device,
            recomputation=training.recomputation,
            compile=training.compile,
            tiled_feed_forward=training.tiled_feed_forward,
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=training.learning_rate, fused=True)

    def step(self, micro_batches: Sequence[Batch]) -> float:
        """Take a step and return the mean of the token losses."""
        (batch,) = micro_batches
        loss = self.model(*batch) / batch.target_BT.numel()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


class Power:
    """The mean power of a GPU's board while this is open, in watts, through NVML or AMD SMI; None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._readings, self._stop = device, list[float](), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        unit = 1.0 if torch.version.hip else 1e-3  # NVML reads milliwatts
        while not self._stop.wait(SECONDS_BETWEEN_READINGS):
            self._readings.append(torch.cuda.power_draw(self._device) * unit)

    def __enter__(self) -> Power:
        if self._device.type == "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def watts(self) -> float | None:
        """Return the mean of the readings."""
        return statistics.fmean(self._readings) if self._readings else None


def machine(device: torch.device) -> dict[str, Any]:
    """Return the names and versions of a device and what drives it."""
    driver = describe_machine().get("driver") if device.type == "cuda" else None
    names = {"device": device_and_process_group.get_device_name(device), "driver": driver, "torch": torch.__version__}
    return {**names, "cuda": torch.version.cuda, "rocm": torch.version.hip}


def train(asked: dict[str, Any]) -> dict[str, Any]:
    """Train in this process; return seconds of the steps, last loss, peak memory and power."""
    settings, vocabulary_size = SegmentSettings.model_validate(asked["settings"]), int(asked["vocabulary_size"])
    training = settings.training
    set_determinism(training.deterministic)
    device = device_and_process_group.join_process_group("none")
    results: dict[str, Any] = {"machine": machine(device)}
    shape = (training.batch_size, training.sequence_length + 1)
    seconds: list[float] = []
    try:
        arguments = (settings, vocabulary_size, device)
        kinds: dict[str, Any] = {"native": Native, "checkpoint": Native, "small": Small, "huggingface": HuggingFace}
        trainer = kinds[asked["side"]](*arguments)

        def draw() -> list[Batch]:
            tokens = torch.randint(vocabulary_size, shape, device=device)
            return _make_batches(tokens, training.micro_batch_size, asked["documents"])

        for _ in range(asked["warm_up"]):
            trainer.step(draw())
        with Power(device) as power:
            for _ in range(asked["steps"]):
                batches = draw()
                began = time.perf_counter()
                loss = trainer.step(batches)  # its value waits for the device
                device_and_process_group.synchronize_device(device)
                seconds.append(time.perf_counter() - began)
        if asked["side"] == "checkpoint":
            with tempfile.TemporaryDirectory() as folder:
                waits = measure_stall(trainer.backend, settings, draw(), Path(folder), rounds=2)
            results |= {f"{name}_seconds": min(values) for name, values in waits.items()}
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {**results, "out_of_memory": True}
    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else cpu
    return {**results, "seconds": seconds, "loss": loss, "peak_memory_bytes": memory, "watts": power.watts}


def _make_batches(tokens: Tensor, size: int, document_tokens: int | None) -> list[Batch]:
    """Return micro-batches of random tokens; with documents, all of a row have as many tokens but the last."""
    batches = []
    for rows in tokens.split(size):
        inputs, length, documents = rows[:, :-1].contiguous(), rows.shape[1] - 1, None
        if document_tokens:
            starts = [row * length + first for row in range(len(rows)) for first in range(0, length, document_tokens)]
            documents = torch.tensor([*starts, inputs.numel()], dtype=torch.int32, device=tokens.device)
        batches.append(Batch(inputs, rows[:, 1:].contiguous(), documents))
    return batches


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    print(f"result: {json.dumps(train(json.loads(sys.argv[1])))}", flush=True)
