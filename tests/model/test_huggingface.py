"""Models are exported to Transformers' layout and imported unchanged."""

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.model import huggingface
from pipeline.model.llama_network import Llama
from pipeline.model.networks import initial_state, initial_weight, parameter_shapes
from pipeline.model.settings import Architecture

VOCABULARY = 96
SHAPES = [
    Architecture(layers=2, width=32, heads=4, key_value_heads=2),
    Architecture(layers=3, width=32, heads=2, key_value_heads=1, tie_embeddings=True, rope_theta=10_000.0),
    Architecture(
        layers=1,
        width=48,
        heads=3,
        key_value_heads=3,
        head_width=32,
        rope_scaling={"factor": 8, "original_context_length": 240},
    ),
]
TOKENS = torch.arange(40).reshape(2, 20)


class Lazy(Mapping[str, Tensor]):
    """Weights made on demand, which record how many were alive at most."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture, self.shapes = architecture, parameter_shapes(architecture, VOCABULARY)
        self.made: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        self.made.append(name)
        return initial_weight(name, self.shapes[name], self.architecture, 3)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def export(architecture: Architecture, tokenizer: Path, folder: Path, **options: Any) -> Lazy:
    state = Lazy(architecture)
    configuration = tokenizer.with_name("tokenizer_config.json")
    places = {"tokenizer": tokenizer, "tokenizer_configuration": configuration, "folder": folder}
    huggingface.save_pretrained(state, architecture, VOCABULARY, 64, **places, **options)
    return state


def logits(architecture: Architecture, state: Mapping[str, Tensor]) -> Tensor:
    model = Llama(architecture, VOCABULARY)
    model.load_state_dict(dict(state), strict=not architecture.tie_embeddings)
    with torch.no_grad():
        result: Tensor = model(TOKENS)
    return result


@pytest.mark.parametrize("largest_file_bytes", [5_000_000_000, 9_000])
@pytest.mark.parametrize("architecture", SHAPES)
def test_export_and_import_preserve_the_model(
    architecture: Architecture, largest_file_bytes: int, tmp_path: Path, tokenizer: Path
) -> None:
    folder = tmp_path / "huggingface"
    state = export(architecture, tokenizer, folder, largest_file_bytes=largest_file_bytes)
    files = sorted(folder.glob("*.safetensors"))
    assert (folder / "model.safetensors.index.json").exists() == (len(files) > 1) == (largest_file_bytes < 10_000)
    for file in files:
        tensors = load_file(file)
        assert len(tensors) == 1 or sum(4 * t.numel() for t in tensors.values()) <= largest_file_bytes
    assert sorted(state.made) == sorted(state.shapes)  # each once
    expected = logits(architecture, initial_state(architecture, VOCABULARY, 3))
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS).logits, expected, atol=1e-5, rtol=1e-5)
    assert loaded.config.eos_token_id == 1
    encode = AutoTokenizer.from_pretrained(folder)
    assert encode.model_max_length == 64 == len(encode("x " * 99, truncation=True)["input_ids"]), "as long as the model"
    assert loaded.config.rope_parameters["rope_theta"] == architecture.rope_theta
    result, vocabulary_size, weights = huggingface.load_pretrained(folder)
    assert (result, vocabulary_size) == (
        architecture.model_copy(update={"feed_forward_width": result.intermediate_width}),
        VOCABULARY,
    )
    assert result.intermediate_width == architecture.intermediate_width and list(weights) == list(state.shapes)
    assert all(torch.equal(weights[name], state[name]) for name in weights)


@pytest.mark.parametrize("umask", [0o007, 0o027, 0o077])
def test_umask_sets_the_permissions_of_the_weights(umask: int, tmp_path: Path, tokenizer: Path) -> None:
    before = os.umask(umask)
    try:
        export(SHAPES[0], tokenizer, tmp_path / "huggingface", largest_file_bytes=9_000)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "huggingface").iterdir()}
    assert len(modes) > 3 and set(modes.values()) == {0o666 & ~umask}, modes


def test_model_written_by_transformers_is_read(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=VOCABULARY, tie_word_embeddings=True,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    architecture, _, weights = huggingface.load_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(logits(architecture, weights), theirs(TOKENS).logits, atol=1e-5, rtol=1e-5)
    older = {**json.loads((tmp_path / "config.json").read_text()), "rope_theta": 7.0}
    del older["rope_parameters"]
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps({**older, "rope_scaling": {"rope_type": "llama3", **scaling}}))
    architecture, _, _ = huggingface.load_pretrained(tmp_path)
    assert architecture.rope_theta == 7 and architecture.rope_scaling is not None
    assert architecture.rope_scaling.original_context_length == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "describes a mixtral"),
        ({"attention_bias": True}, "attention_bias True: only a model with false"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"num_hidden_layers": 3}, "does not hold model.layers.2"),
        ({"hidden_size": 64, "head_dim": 16}, r"has shape \(96, 32\), not \(96, 64\)"),
        ({"vocab_size": None}, "config.json"),
    ],
)
def test_unsupported_model_folder_is_refused(
    change: dict[str, object], message: str, tmp_path: Path, tokenizer: Path
) -> None:
    folder = tmp_path / "huggingface"
    export(SHAPES[0], tokenizer, folder)
    config = json.loads((folder / "config.json").read_text()) | change
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        huggingface.load_pretrained(folder)


def test_missing_model_file_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "huggingface"
    export(SHAPES[0], tokenizer, folder, largest_file_bytes=9_000)
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()
    with pytest.raises(InputError, match="does not hold"):
        huggingface.load_pretrained(folder)
    with pytest.raises(InputError, match=r"config\.json"):
        huggingface.load_pretrained(tmp_path / "nowhere")


def test_import_of_a_broken_model_leaves_nothing(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(SHAPES[2], tokenizer, tmp_path / "first", ends=[1])
    (tmp_path / "first/generation_config.json").write_text("{")
    assert main(["model", "import", str(tmp_path / "first"), str(tmp_path / "own")]) == 2
    assert "generation_config.json" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["first"]


@pytest.mark.parametrize("command", ["import", "export"])
def test_model_folder_is_renamed_when_complete_and_removed_on_failure(
    command: str, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, own = tmp_path / "first", tmp_path / "own"
    export(SHAPES[2], tokenizer, first, ends=[1])
    assert main(["model", "import", str(first), str(own)]) == 0
    given, new = {"import": first, "export": own}[command], tmp_path / "deep/new"

    def fill_disk(*_: Any) -> None:
        assert not new.exists(), "a process killed here leaves no folder of that name"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fill_disk)
        with pytest.raises(OSError, match="No space left"):
            getattr(huggingface, f"{command}_model")(given, new)
    assert [*new.parent.iterdir()] == []
    assert main(["model", command, str(given), str(new)]) == 0 and len([*new.iterdir()]) > 2


def test_import_and_export_commands_round_trip_a_model(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, own, second = (tmp_path / name for name in ("first", "own", "second"))
    export(SHAPES[2], tokenizer, first, ends=[5, 1, 9])
    for name in ("config.json", "generation_config.json"):
        assert json.loads((first / name).read_text())["eos_token_id"] == [5, 1, 9], "every token that ends a text"
    assert main(["model", "import", str(first), str(own)]) == 0
    assert set(load_file(own / "model.safetensors")) == set(parameter_shapes(SHAPES[2], VOCABULARY))
    assert main(["model", "export", str(own), str(second)]) == 0
    for path in first.iterdir():
        assert (second / path.name).read_bytes() == path.read_bytes()
    assert main(["model", "export", str(own), str(second)]) == 2
    assert "exists: name a new folder" in capsys.readouterr().err
    shutil.rmtree(second)
    (own / "tokenizer.json").unlink()
    assert main(["model", "export", str(own), str(second)]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err and not second.exists()


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([5, 1, 9], 1, [5, 1, 9]),
        (None, [1, 5, 9], [1, 5, 9]),
        (5, [1, 9], [5, 1, 9]),
        ([], -1, []),
        (None, None, []),
        ([7, 7, -1], 7, [7]),
    ],
)
def test_every_end_of_text_token_is_read_and_written(
    generation: Any, config: Any, expected: list[int], tmp_path: Path, tokenizer: Path
) -> None:
    folder = tmp_path / "theirs"
    export(SHAPES[0], tokenizer, folder)
    for name, ids in (("generation_config.json", generation), ("config.json", config)):
        content = json.loads((folder / name).read_text()) | {"eos_token_id": ids}
        (folder / name).write_text(json.dumps(content))
    ends = huggingface.read_end_token_ids(folder)
    assert ends == expected
    export(SHAPES[0], tokenizer, tmp_path / "out", ends=ends)
    written = [1, *expected] if 1 not in expected else expected  # the tokenizer's own is 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.generation_config.eos_token_id == loaded.config.eos_token_id == (written if expected else 1)
    (folder / "generation_config.json").write_text("[")
    with pytest.raises(InputError, match=r"generation_config\.json is no JSON object"):
        huggingface.read_end_token_ids(folder)
