"""Read and write models in the layout of Hugging Face Transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.core import atomic_files, output_lease
from pipeline.core.errors import InputError
from pipeline.model.networks import NETWORKS, get_network, parameter_shapes
from pipeline.model.settings import Architecture

LARGEST_FILE_BYTES = 1_000_000_000
"""Lets many processes write a large model in parallel; the content of each file depends on the model only."""

_SINGLE_FILE, _INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

Task = Callable[[], None]


def run_sequentially(works: Sequence[Task]) -> None:
    for work in works:
        work()


def assign_files(shapes: Mapping[str, torch.Size], largest_file_bytes: int) -> dict[str, list[str]]:
    """Assign float32 tensors to files; a file with several tensors is at most `largest_file_bytes`."""
    files: list[list[str]] = [[]]
    free = largest_file_bytes
    for name, shape in shapes.items():
        size = 4 * shape.numel()
        if files[-1] and size > free:
            files.append([])
            free = largest_file_bytes
        files[-1].append(name)
        free -= size
    if len(files) == 1:
        return {_SINGLE_FILE: files[0]}
    return {f"model-{number:05d}-of-{len(files):05d}.safetensors": names for number, names in enumerate(files, start=1)}


def write_weights(
    folder: Path,
    shapes: Mapping[str, torch.Size],
    get: Callable[[str], Tensor],
    *,
    rename: Callable[[str], str],
    largest_file_bytes: int = LARGEST_FILE_BYTES,
    run_tasks: Callable[[Sequence[Task]], None] = run_sequentially,
) -> None:
    """Write the tensors that `get` returns by name, float32, in the order of `shapes`, under the names of `rename`.

    No file is larger than `largest_file_bytes`; several files get an index. `run_tasks`: see `save_pretrained`.
    """
    files = assign_files(shapes, largest_file_bytes)

    def write_file(file: str) -> None:
        path = folder / file
        tensors = {
            theirs: tensor
            for name in files[file]
            for theirs, tensor in _split_stacked_weights(rename(name), get(name).detach().float().contiguous())
        }
        with atomic_files.apply_umask(path):
            save_file(tensors, path, metadata={"format": "pt"})

    def write_index() -> None:
        total = 4 * sum(shape.numel() for shape in shapes.values())
        places = {
            theirs: file
            for file, names in files.items()
            for name in names
            for theirs, _ in _split_stacked_weights(rename(name), torch.empty(shapes[name], device="meta"))
        }
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / _INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    elements = {file: sum(shapes[name].numel() for name in names) for file, names in files.items()}
    largest_first = sorted(files, key=elements.__getitem__, reverse=True)  # parallel writers then end together
    run_tasks([partial(write_file, file) for file in largest_first])
    if len(files) > 1:
        run_tasks([write_index])


def _split_stacked_weights(theirs: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor under its name, or each matrix of stacked weights where the name has a star for its number."""
    if "*" not in theirs:
        yield theirs, tensor
        return
    for number, part in enumerate(tensor):
        yield theirs.replace("*", str(number)), part


class SavedWeights(Mapping[str, Tensor]):
    """The weights in a folder by name, float32, each read on access."""

    def __init__(self, folder: Path, shapes: Mapping[str, torch.Size], *, rename: Callable[[str], str]) -> None:
        """Find every tensor of `shapes` under its name by `rename`.

        Raises:
            InputError: a tensor is missing or has another shape.
        """
        self._open: dict[str, Any] = {}
        self._locations: dict[str, list[tuple[str, str]]] = {}
        self._stacks = {name for name in shapes if "*" in rename(name)}
        self._listed: set[str] = set()
        for name, shape in shapes.items():
            one = torch.empty(shape, device="meta")
            parts = [(theirs, tuple(part.shape)) for theirs, part in _split_stacked_weights(rename(name), one)]
            self._locations[name] = [self._find_file(folder, theirs) for theirs, _ in parts]
            for (file, theirs), (_, expected_shape) in zip(self._locations[name], parts, strict=True):
                saved_shape = tuple(self._open[file].get_slice(theirs).get_shape())
                if saved_shape != expected_shape:
                    raise InputError(
                        f"{folder / file}: {theirs} has shape {saved_shape}, not {expected_shape} as config.json says"
                    )

    def _find_file(self, folder: Path, theirs: str) -> tuple[str, str]:
        try:
            index = folder / _INDEX_FILE
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else None
            file = _SINGLE_FILE if places is None else places[theirs]
            if file not in self._open:
                self._open[file] = safe_open(str(folder / file), framework="pt")
                self._listed |= {*self._open[file].keys(), *(places or ())}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"{folder} does not hold {theirs} ({error!r}): give a folder with all files") from None
        if theirs not in self._open[file].keys():  # noqa: SIM118  it is no mapping
            raise InputError(f"{folder / file} does not hold {theirs}: give the folder of a whole model")
        return file, theirs

    def list_unused(self) -> list[str]:
        """Return the sorted names of tensors in the files that the model does not have."""
        return sorted(self._listed - {theirs for places in self._locations.values() for _, theirs in places})

    def __getitem__(self, name: str) -> Tensor:
        parts: list[Tensor] = [self._open[file].get_tensor(theirs).float() for file, theirs in self._locations[name]]
        return torch.stack(parts) if name in self._stacks else parts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._locations)

    def __len__(self) -> int:
        return len(self._locations)


def read_special_token_ids(tokenizer: Path, tokenizer_configuration: Path) -> dict[str, int]:
    """Return bos_token_id, eos_token_id and pad_token_id of a tokenizer, without the ones that it lacks."""
    added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    roles = json.loads(tokenizer_configuration.read_text(encoding="utf-8"))
    special_tokens = {f"{role}_id": roles.get(role) for role in ("bos_token", "eos_token", "pad_token")}
    return {key: ids[content] for key, content in special_tokens.items() if content in ids}


def read_end_token_ids(folder: Path) -> list[int]:
    """Return the ids of end tokens, from generation_config.json first and then from config.json.

    Raises:
        InputError: one of these files is not a JSON object.
    """
    end_token_ids: dict[int, None] = {}
    for path in (folder / "generation_config.json", folder / "config.json"):
        try:
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is no JSON object ({error}): give the model's whole folder") from None
        named = ids if isinstance(ids, list) else [ids]
        end_token_ids |= dict.fromkeys(one for one in named if type(one) is int and one >= 0)  # -1 stands for none
    return [*end_token_ids]


def read_end_token_ids_of_same_tokenizer(folder: Path, tokenizer: Path) -> list[int]:
    """Return the end tokens of a model in `folder` if it has this tokenizer, else none."""
    own = folder / "tokenizer.json"
    return read_end_token_ids(folder) if own.is_file() and own.read_bytes() == tokenizer.read_bytes() else []


def save_pretrained(
    state: Mapping[str, Tensor],
    architecture: Architecture,
    vocabulary_size: int,
    sequence_length: int,
    *,
    tokenizer: Path,
    tokenizer_configuration: Path,
    folder: Path,
    ends: Sequence[int] = (),
    largest_file_bytes: int = LARGEST_FILE_BYTES,
    run_tasks: Callable[[Sequence[Task]], None] = run_sequentially,
) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load.

    Args:
        state: the weights by own names; it may make tensors on access, because one file is in memory at a time.
        ends: end tokens in addition to the tokenizer's, such as those of the pretrained model.
        run_tasks: runs independent tasks and returns when all are done, here or in other processes.
    """
    folder.mkdir(exist_ok=True)  # another process may create it first
    of = get_network(architecture.name)
    shapes = parameter_shapes(architecture, vocabulary_size)
    rename = of.huggingface_name
    write_weights(
        folder, shapes, state.__getitem__, rename=rename, largest_file_bytes=largest_file_bytes, run_tasks=run_tasks
    )

    def write_config_and_tokenizer_files() -> None:
        special: dict[str, int | list[int]] = {**read_special_token_ids(tokenizer, tokenizer_configuration)}
        own = special.get("eos_token_id")
        if all_ends := [*([own] if isinstance(own, int) and own not in ends else []), *ends]:
            special["eos_token_id"] = all_ends if len(all_ends) > 1 else all_ends[0]
        config = {**of.huggingface_config(architecture, vocabulary_size, sequence_length), **special}
        # Without model_max_length the tokenizer does not truncate texts to the model's positions.
        roles = {"model_max_length": sequence_length, **json.loads(tokenizer_configuration.read_text(encoding="utf-8"))}
        written = {"config": config, "generation_config": special, "tokenizer_config": roles}
        for name, content in written.items():
            (folder / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, folder / "tokenizer.json")

    run_tasks([write_config_and_tokenizer_files])


def read_architecture(folder: Path) -> tuple[Architecture, int, int]:
    """Return shape, vocabulary size and maximum sequence length of a model.

    Raises:
        InputError: config.json is missing or describes an unsupported model.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("quantization_config"):
            raise InputError(f"{path} describes quantized weights: give the model in bfloat16, float16 or float32")
        known = {theirs: get_network(name) for name in NETWORKS for theirs in get_network(name).model_types}
        if config["model_type"] not in known:
            raise InputError(f"{path} describes a {config['model_type']}: only a {' or a '.join(known)} can be read")
        architecture = known[config["model_type"]].read_huggingface_config(config, path)
        return architecture, int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no configuration of such a model ({error!r}): give a whole folder") from None


def load_pretrained(folder: Path) -> tuple[Architecture, int, SavedWeights]:
    """Return shape, vocabulary size and weights by own name, float32, each read on access."""
    architecture, vocabulary_size, _ = read_architecture(folder)
    shapes = parameter_shapes(architecture, vocabulary_size)
    weights = SavedWeights(folder, shapes, rename=get_network(architecture.name).huggingface_name)
    return architecture, vocabulary_size, weights


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise InputError(f"{folder} exists: name a new folder")


@contextmanager
def _create_folder_atomically(out: Path) -> Iterator[Path]:
    """Yield a hidden folder that is renamed to `out` at the end, or removed if the block raises."""
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = output_lease.temporary_output_path(out)
    hidden.mkdir()
    try:
        yield hidden
        hidden.rename(out)
    except BaseException:
        shutil.rmtree(hidden)
        raise


def import_model(folder: Path, out: Path) -> None:
    """Write a model that Transformers saved in Polder's layout: safetensors, architecture.json and the tokenizer.

    Raises:
        InputError: the folder holds no model of a known architecture, or `out` exists.
    """
    _refuse_existing(out)
    architecture, vocabulary_size, state = load_pretrained(folder)
    _, _, sequence_length = read_architecture(folder)
    described = {"vocabulary_size": vocabulary_size, "sequence_length": sequence_length}
    ends = {"eos_token_id": read_end_token_ids(folder)}
    content = json.dumps({"architecture": architecture.model_dump(), **described, **ends}, indent=1, sort_keys=True)
    with _create_folder_atomically(out) as made:
        (made / "architecture.json").write_text(content + "\n", encoding="utf-8")
        write_weights(made, parameter_shapes(architecture, vocabulary_size), state.__getitem__, rename=str)
        for name in _TOKENIZER_FILES:
            if (folder / name).exists():
                shutil.copyfile(folder / name, made / name)


def export_model(folder: Path, out: Path) -> None:
    """Write a model in Polder's layout as Transformers loads it.

    Raises:
        InputError: the folder holds no model or no tokenizer, or `out` exists.
    """
    _refuse_existing(out)
    try:
        described = json.loads((folder / "architecture.json").read_text(encoding="utf-8"))
        architecture = Architecture.model_validate(described["architecture"])
        size, length = int(described["vocabulary_size"]), int(described["sequence_length"])
        ends = [int(number) for number in described.get("eos_token_id", [])]
    except (OSError, ValueError, KeyError, ValidationError) as error:
        raise InputError(f"{folder} holds no model ({error!r}): give the folder that `model import` wrote") from None
    for name in _TOKENIZER_FILES:
        if not (folder / name).exists():
            raise InputError(f"{folder} has no {name}: put the model's tokenizer there")
    with _create_folder_atomically(out) as made:
        save_pretrained(
            SavedWeights(folder, parameter_shapes(architecture, size), rename=str),
            architecture,
            size,
            length,
            tokenizer=folder / _TOKENIZER_FILES[0],
            tokenizer_configuration=folder / _TOKENIZER_FILES[1],
            folder=made,
            ends=ends,
        )
