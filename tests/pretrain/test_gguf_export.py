"""A GGUF file has the logits of the model and the tokens of its tokenizer, or is not written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.cli.entry_point import main
from pipeline.model.huggingface import save_pretrained
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from pipeline.tokenizer import train
from pipeline.tokenizer.settings import TrainSettings

VOCABULARY = 296
LENGTH = 64
MARKERS = ["<EMAIL>", "<BSN>"]
TINY = {"layers": 2, "width": 64, "heads": 4, "key_value_heads": 2, "initial_deviation": 0.2}
SCALING = {"factor": 8, "original_context_length": 300}
Write = Callable[..., Path]


@pytest.fixture
def write_model(tmp_path: Path, tokens: dict[str, Path]) -> Write:
    """Return a function that writes a model with random weights as Transformers loads it."""

    def write(architecture: dict[str, object], **tokenizer: object) -> Path:
        settings = {"vocabulary_size": VOCABULARY, "markers": MARKERS, "pretokenizer": "llama3", **tokenizer}
        places = [tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"]
        documents = [tokens["index"].with_name("documents.parquet")]
        chosen = TrainSettings(validation_fraction=0.0, **settings)
        train.run(chosen, documents=documents, tokenizer=places[0], configuration=places[1])
        shape = Architecture(**{**TINY, **architecture})
        folder = tmp_path / "base"
        state = initial_state(shape, VOCABULARY, 1)
        save_pretrained(
            *(state, shape, VOCABULARY, LENGTH), tokenizer=places[0], tokenizer_configuration=places[1], folder=folder
        )
        return folder

    return write


def convert(folder: Path, *options: str) -> Path:
    out = folder.with_suffix(".gguf")
    out.unlink(missing_ok=True)
    assert main(["model", "gguf", str(folder), str(out), *options]) == 0
    return out


@pytest.mark.parametrize(
    "architecture",
    [
        {},
        {"tie_embeddings": True, "head_width": 32, "rope_theta": 10_000.0, "feed_forward_width": 96},
        {"preset": "qwen3", "head_width": 128},
        {"preset": "qwen3-moe", "experts": 4, "experts_per_token": 2, "feed_forward_width": 768},
        {"window": LENGTH},
    ],
)
def test_transformers_reads_the_same_logits_from_the_file(architecture: dict[str, object], write_model: Write) -> None:
    folder = write_model(architecture)
    out = convert(folder, "--type", "f32")
    tokens = torch.arange(3, 63).reshape(2, 30)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        result = AutoModelForCausalLM.from_pretrained(out.parent, gguf_file=out.name)(tokens).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("digits", "name"), [("left", "llama-bpe"), ("single", "qwen2")])
def test_gguf_file_contains_the_tokenizer(digits: str, name: str, write_model: Write) -> None:
    folder = write_model({}, digits=digits)
    fields = {key: field.contents() for key, field in gguf.GGUFReader(convert(folder)).fields.items()}
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    entries = {**written["model"]["vocab"], **{token["content"]: token["id"] for token in written["added_tokens"]}}
    assert fields["tokenizer.ggml.tokens"] == sorted(entries, key=entries.__getitem__)
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in written["model"]["merges"]]
    assert fields["tokenizer.ggml.token_type"] == [3, 3, 3, *[1] * (VOCABULARY - 5), 4, 4]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", name)
    roles = [fields[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos", "padding")]
    assert roles == [0, 1, 2] and fields["tokenizer.ggml.add_bos_token"] is True


def test_scaled_rotary_frequencies_are_divided(write_model: Write) -> None:
    folder = write_model({"rope_scaling": SCALING})
    (divisors,) = [t.data for t in gguf.GGUFReader(convert(folder)).tensors if t.name == "rope_freqs.weight"]
    expected = []
    for pair in range(8):  # as in Llama 3.1's model code
        wavelength = 2 * math.pi * 500_000 ** (2 * pair / 16)
        smooth = (300 / wavelength - 1) / (4 - 1)
        expected.append(8 if smooth < 0 else 1 if smooth > 1 else 1 / ((1 - smooth) / 8 + smooth))
    np.testing.assert_allclose(divisors, expected, rtol=1e-5)
    assert 1 < divisors[3] < 8, "one of the frequencies is between both"


@pytest.mark.parametrize(("kind", "precision"), [("bf16", 2**-8), ("f16", 2**-11), ("q8_0", 2**-6)])
def test_matrices_are_rounded_and_vectors_are_not(kind: str, precision: float, write_model: Write) -> None:
    folder = write_model({"preset": "qwen3-moe", "experts": 4, "experts_per_token": 2, "feed_forward_width": 48})
    exact = {t.name: np.array(t.data) for t in gguf.GGUFReader(convert(folder, "--type", "f32")).tensors}
    for tensor in gguf.GGUFReader(convert(folder, "--type", kind)).tensors:
        result, expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type), exact[tensor.name]
        kept = result.ndim == 1 or "ffn_gate_inp" in tensor.name
        assert tensor.tensor_type.name == (
            "F32" if kept else "F16" if kind == "q8_0" and expected.shape[-1] == 48 else kind.upper()
        )
        assert np.abs(result - expected).max() <= (0 if kept else precision * np.abs(expected).max())


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "message"),
    [
        ({"window": 16}, {}, "config.json has a window of 16 tokens, which llama.cpp ignores"),
        ({}, {"pretokenizer": "dutch"}, "tokenizer.json splits text in a way for which llama.cpp has no name"),
        ({}, {"digits": "right"}, "tokenizer.json splits text in a way for which llama.cpp has no name"),
        (
            {},
            {"algorithm": "unigram"},
            "tokenizer.json splits text in a way for which llama.cpp has no name",
        ),
    ],
)
def test_models_unsupported_by_llama_cpp_are_refused(
    architecture: dict[str, object],
    tokenizer: dict[str, object],
    message: str,
    write_model: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_model(architecture, **tokenizer)
    assert main(["model", "gguf", str(folder), str(folder.with_suffix(".gguf"))]) == 2
    assert message in capsys.readouterr().err
    assert not list(folder.parent.glob("*.gguf*"))


def test_normalizer_is_exported(write_model: Write, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model({})
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "normalizer": {"type": "NFC"}}), "utf-8")
    assert main(["model", "gguf", str(folder), str(folder.with_suffix(".gguf"))]) == 2
    assert "no name here" in capsys.readouterr().err


def test_existing_file_is_not_overwritten(write_model: Write, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model({})
    before = convert(folder).read_bytes()
    assert main(["model", "gguf", str(folder), str(folder.with_suffix(".gguf"))]) == 2
    assert "exists: name a new file" in capsys.readouterr().err
    assert folder.with_suffix(".gguf").read_bytes() == before
