"""Read and write checkpoints for every backend, strategy and world size: tensor shards in safetensors, and state.json.

Each process writes one file, such as `rank-00000.safetensors`, with boxes of the full tensors `model.NAME`,
`exp_avg.NAME` and `exp_avg_sq.NAME` in float32. A partial box has its offset in the key, as `model.NAME@128,0`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.model.networks import initial_weight, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.pretrain.checkpoints.shard_layout import Box, TensorShard, full_box
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.sampler import count_total_tokens_seen

MOMENTS = ("exp_avg", "exp_avg_sq")
SAMPLER_KEYS = ("sequence_length", "batch_size", "ramp", "sampling")
SCHEDULE = ("steps", "schedule", "learning_rate", "minimum_learning_rate_fraction", "warmup_steps", "decay_fraction")
_BLOCK_BYTES = 16 * 2**20


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says what to do."""


class CheckpointDiskFull(CheckpointError):
    """A checkpoint cannot be written because a disk or a quota is full."""


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file atomically, safe against a loss of power."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    flush_to_disk(partial)
    partial.rename(path)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write float32 CPU tensors as safetensors and hash them; return bytes and sha256 for state.json."""
    header: dict[str, Any] = {}
    position = 0
    for key, tensor in tensors.items():
        end = position + tensor.numel() * 4
        header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # alignment of the data
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        contents = (memoryview(tensor.view(-1).view(torch.uint8).numpy().data) for tensor in tensors.values())
        for content in (memoryview(len(text).to_bytes(8, "little") + text), *contents):
            for first in range(0, len(content), _BLOCK_BYTES):
                block = content[first : first + _BLOCK_BYTES]
                digest.update(block)
                stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
        return {"bytes": stream.tell(), "sha256": digest.hexdigest()}


def make_checkpoint_metadata(
    settings: SegmentSettings,
    step: int,
    optimizer_step: int,
    judged: Mapping[str, Any],
    identity: str,
    world_size: int,
    files: Mapping[str, Any],
    tensors: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Return the content of state.json: everything except tensors.

    Args:
        step: completed steps of the training.
        optimizer_step: steps that the optimizer took.
        judged: the state of the bad-batch detector: skipped data steps `skips`, and `recent` values of good batches.
        files: by file, its bytes, sha256 and pieces with their shapes.
        tensors: the full shapes by name.
    """
    training = settings.training.model_dump(mode="json")
    return {
        "step": step,
        "optimizer_step": optimizer_step,
        "tokens_seen": count_total_tokens_seen(settings.training.batch_schedule, step, judged.get("skips", [])),
        **judged,
        "sampler": {"seed": settings.seed, **{name: training[name] for name in SAMPLER_KEYS if name in training}},
        "schedule": {name: training[name] for name in SCHEDULE},
        "layout": {"backend": training["backend"], "strategy": training["strategy"], "world_size": world_size},
        "identity": identity,
        "torch": str(torch.__version__),
        "files": dict(files),
        "tensors": {name: list(shape) for name, shape in tensors.items()},
    }


class CheckpointReader:
    """Reads any boxes of a checkpoint's tensors from memory-mapped files, whatever boxes were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: dict[str, Any] = json.loads((folder / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))
        self.shapes = {name: tuple(shape) for name, shape in self.state["tensors"].items()}
        self._open: dict[str, Any] = {}

    @cached_property
    def _stored(self) -> dict[str, list[tuple[Box, str, str]]]:
        """The stored boxes of each tensor, with file and key."""
        stored: dict[str, list[tuple[Box, str, str]]] = {}
        for file, described in self.state["files"].items():
            for key, shape in described["pieces"].items():
                name, _, offset = key.partition("@")
                box = Box(tuple(map(int, offset.split(","))), tuple(shape)) if offset else full_box(shape)
                stored.setdefault(name, []).append((box, file, key))
        return stored

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """Return a box of a tensor, by default all of it, in float32.

        Raises:
            CheckpointError: the checkpoint has no such tensor, or not all elements of the box.
        """
        if name not in self.shapes:
            raise CheckpointError(f"{self.folder} has no {name}: start from a checkpoint of the same model")
        box = box or full_box(self.shapes[name])
        tensor, elements = torch.empty(box.shape), 0
        for stored, file, key in self._stored.get(name, ()):
            if common := box.intersect(stored):
                if file not in self._open:
                    self._open[file] = safe_open(str(self.folder / file), framework="pt")
                part = self._open[file].get_slice(key)[common.slices_within(stored)]
                tensor[common.slices_within(box)] = part
                elements += common.elements
        if elements != box.elements:
            raise CheckpointError(f"{self.folder} has {elements} of {box.elements} elements of {name}: remove it")
        return tensor

    def close(self) -> None:
        """Close the files, so that every file system can remove the folder; a later read opens them again."""
        self._open.clear()

    def weights(self) -> Mapping[str, Tensor]:
        """Return the model's parameters by name, each read on access."""
        names = sorted(name.removeprefix("model.") for name in self.shapes if name.startswith("model."))
        return LazyTensors(names, lambda name: self.read(f"model.{name}"))


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each made on access, so that one at a time is in memory."""

    def __init__(self, names: Sequence[str], get: Callable[[str], Tensor]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Tensor:
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class SegmentStart:
    """The start of a segment: a checkpoint, or random weights from the seed; tensors are read on access."""

    def __init__(self, folder: Path | None, settings: SegmentSettings, vocabulary_size: int) -> None:
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.reader = None if folder is None else CheckpointReader(folder)
        state: dict[str, Any] = self.reader.state if self.reader else {"step": 0, "optimizer_step": 0}
        self.step, self.optimizer_step = int(state["step"]), int(state["optimizer_step"])
        self.skips: list[int] = state.get("skips", [])
        self.recent: dict[str, list[float]] = state.get("recent", {})

    @torch.no_grad()
    def load(self, pieces: Iterable[TensorShard]) -> None:
        """Fill the shards of a process, reading only their boxes. Optimizer state at the first step stays as it is."""
        if self.reader:
            for piece in pieces:
                if self.optimizer_step == 0 and piece.name.partition(".")[0] in MOMENTS:
                    continue
                piece.tensor.copy_(self.reader.read(piece.name, piece.box))
            self.reader.close()
            return
        architecture, seed = self.settings.architecture, self.settings.seed
        shapes = parameter_shapes(architecture, self.vocabulary_size)
        for piece in pieces:
            name = piece.name.removeprefix("model.")
            if name != piece.name:
                part = piece.box.slices_within(full_box(shapes[name]))
                piece.tensor.copy_(initial_weight(name, shapes[name], architecture, seed, part))


def check_model_shape(folder: Path, architecture: Architecture, vocabulary_size: int) -> None:
    """Check that a checkpoint has the parameters of this model.

    Raises:
        InputError: a parameter is missing or has another shape; the message names the first one.
    """
    parameters = parameter_shapes(architecture, vocabulary_size)
    expected = {f"model.{name}": tuple(shape) for name, shape in parameters.items()}
    shapes = {name: shape for name, shape in CheckpointReader(folder).shapes.items() if name.startswith("model.")}
    for name in sorted(expected.keys() | shapes.keys()):
        if shapes.get(name) != expected.get(name):
            there, here = (
                f"{model_shapes[name]}" if name in model_shapes else "none" for model_shapes in (shapes, expected)
            )
            raise InputError(
                f"{folder} is of a model of another shape: {name} is {there} in it and {here} in the configuration: "
                "change architecture back, or train from the first step"
            )
