"""Weights in folders of safetensors files, one or several with an index, as Transformers writes them; never all in
memory at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.core import atomic_files
from pipeline.core.errors import InputError

LARGEST_FILE_BYTES = 1_000_000_000
"""So that many processes can write a large model at once; which file holds what depends on the model alone."""

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"

Work = Callable[[], None]


def in_order(works: Sequence[Work]) -> None:
    """Do pieces of work one after another."""
    for work in works:
        work()


def divided(shapes: Mapping[str, torch.Size], largest_file_bytes: int) -> dict[str, list[str]]:
    """Return by file the names of the tensors in it, in their order; none is larger than asked for, but of one tensor.

    The tensors are float32.
    """
    files: list[list[str]] = [[]]
    room = largest_file_bytes
    for name, shape in shapes.items():
        size = 4 * shape.numel()
        if files[-1] and size > room:
            files.append([])
            room = largest_file_bytes
        files[-1].append(name)
        room -= size
    if len(files) == 1:
        return {_ONE: files[0]}
    return {f"model-{number:05d}-of-{len(files):05d}.safetensors": names for number, names in enumerate(files, start=1)}


def write(
    folder: Path,
    shapes: Mapping[str, torch.Size],
    get: Callable[[str], Tensor],
    *,
    rename: Callable[[str], str],
    largest_file_bytes: int = LARGEST_FILE_BYTES,
    do: Callable[[Sequence[Work]], None] = in_order,
) -> None:
    """Write the tensors that `get` returns by name, float32, in the order of `shapes`, under the names of `rename`.

    One file, or as many as needed so that none is larger than asked for, unless a single tensor is; then an index.
    For `do` see `huggingface.export`.
    """
    files = divided(shapes, largest_file_bytes)

    def write_file(file: str) -> None:
        path = folder / file
        tensors = {
            theirs: tensor
            for name in files[file]
            for theirs, tensor in _parts(rename(name), get(name).detach().float().contiguous())
        }
        with atomic_files.mode_of_umask(path):
            save_file(tensors, path, metadata={"format": "pt"})

    def write_index() -> None:
        total = 4 * sum(shape.numel() for shape in shapes.values())
        places = {
            theirs: file
            for file, names in files.items()
            for name in names
            for theirs, _ in _parts(rename(name), torch.empty(shapes[name], device="meta"))
        }
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    elements = {file: sum(shapes[name].numel() for name in names) for file, names in files.items()}
    largest_first = sorted(files, key=elements.__getitem__, reverse=True)  # those that write at once end together
    do([partial(write_file, file) for file in largest_first])
    if len(files) > 1:
        do([write_index])


def _parts(theirs: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor under a name, or where that has a star each matrix of a stack under its number."""
    if "*" not in theirs:
        yield theirs, tensor
        return
    for number, part in enumerate(tensor):
        yield theirs.replace("*", str(number)), part


class Weights(Mapping[str, Tensor]):
    """The weights in a folder by name, float32; each is read when it is asked for."""

    def __init__(self, folder: Path, shapes: Mapping[str, torch.Size], *, rename: Callable[[str], str]) -> None:
        """Find every tensor of `shapes`, which the files call as `rename` says, one with a star by its matrices.

        Raises:
            InputError: one is missing or of another shape, or a file cannot be read.
        """
        self._open: dict[str, Any] = {}
        self._found: dict[str, list[tuple[str, str]]] = {}
        self._stacks = {name for name in shapes if "*" in rename(name)}
        self._listed: set[str] = set()
        for name, shape in shapes.items():
            one = torch.empty(shape, device="meta")
            parts = [(theirs, tuple(part.shape)) for theirs, part in _parts(rename(name), one)]
            self._found[name] = [self._place(folder, theirs) for theirs, _ in parts]
            for (file, theirs), (_, expected) in zip(self._found[name], parts, strict=True):
                found = tuple(self._open[file].get_slice(theirs).get_shape())
                if found != expected:
                    raise InputError(f"{folder / file}: {theirs} has shape {found}, not {expected} as config.json says")

    def _place(self, folder: Path, theirs: str) -> tuple[str, str]:
        try:
            index = folder / _INDEX
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else None
            file = _ONE if places is None else places[theirs]
            if file not in self._open:
                self._open[file] = safe_open(str(folder / file), framework="pt")
                self._listed |= {*self._open[file].keys(), *(places or ())}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"{folder} does not hold {theirs} ({error!r}): give a folder with all files") from None
        if theirs not in self._open[file].keys():  # noqa: SIM118  it is no mapping
            raise InputError(f"{folder / file} does not hold {theirs}: give the folder of a whole model")
        return file, theirs

    def unused(self) -> list[str]:
        """Return the names in the files of tensors that the model does not have, in order."""
        return sorted(self._listed - {theirs for places in self._found.values() for _, theirs in places})

    def __getitem__(self, name: str) -> Tensor:
        parts: list[Tensor] = [self._open[file].get_tensor(theirs).float() for file, theirs in self._found[name]]
        return torch.stack(parts) if name in self._stacks else parts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
