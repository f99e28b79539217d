"""`python -m pipeline model import FOLDER OUT` and `model export FOLDER OUT`: a model from and to Transformers' layout.

The own layout is a folder with the weights by own names in safetensors, architecture.json and the tokenizer.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.model import huggingface, weights
from pipeline.model.networks import parameter_shapes
from pipeline.model.settings import Architecture

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def _folders(command: str, arguments: list[str]) -> tuple[Path, Path]:
    parser = argparse.ArgumentParser(prog=f"python -m pipeline model {command}")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if options.out.exists():
        raise InputError(f"{options.out} exists: name a new folder")
    return options.folder, options.out


def import_model(arguments: list[str]) -> int:
    """Write a model that Transformers saved in the own layout."""
    folder, out = _folders("import", arguments)
    architecture, vocabulary_size, state = huggingface.read(folder)
    _, _, sequence_length = huggingface.read_architecture(folder)
    out.mkdir(parents=True)
    described = {"vocabulary_size": vocabulary_size, "sequence_length": sequence_length}
    ends = {"eos_token_id": huggingface.end_ids(folder)}
    content = json.dumps({"architecture": architecture.model_dump(), **described, **ends}, indent=1, sort_keys=True)
    (out / "architecture.json").write_text(content + "\n", encoding="utf-8")
    weights.write(out, parameter_shapes(architecture, vocabulary_size), state.__getitem__, rename=str)
    for name in _TOKENIZER:
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    return 0


def export_model(arguments: list[str]) -> int:
    """Write a model in the own layout as Transformers loads it."""
    folder, out = _folders("export", arguments)
    try:
        described = json.loads((folder / "architecture.json").read_text(encoding="utf-8"))
        architecture = Architecture.model_validate(described["architecture"])
        size, length = int(described["vocabulary_size"]), int(described["sequence_length"])
        ends = [int(number) for number in described.get("eos_token_id", [])]
    except (OSError, ValueError, KeyError, ValidationError) as error:
        raise InputError(f"{folder} holds no model ({error!r}): give the folder that `model import` wrote") from None
    for name in _TOKENIZER:
        if not (folder / name).exists():
            raise InputError(f"{folder} has no {name}: put the model's tokenizer there")
    out.parent.mkdir(parents=True, exist_ok=True)
    huggingface.export(
        weights.Weights(folder, parameter_shapes(architecture, size), rename=str),
        architecture,
        size,
        length,
        tokenizer=folder / _TOKENIZER[0],
        tokenizer_configuration=folder / _TOKENIZER[1],
        folder=out,
        ends=ends,
    )
    return 0
