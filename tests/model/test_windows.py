"""Window attention equals Transformers' models, also within documents."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM

from pipeline.core.errors import InputError
from pipeline.model import huggingface
from pipeline.model.attention import make_attention_mask
from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.networks import get_network, initial_state
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token
from tests.model.documents import limits_of

VOCABULARY, LENGTH, WINDOW = 96, 50, 7
SHAPE: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "key_value_heads": 2, "window": WINDOW}
KINDS: dict[str, dict[str, Any]] = {
    "mistral": {"preset": "llama3"},
    "ministral": {"preset": "llama3", "full_attention_layers": [1]},
    "qwen3": {"preset": "qwen3", "head_width": 16},
    "qwen3, some layers": {"preset": "qwen3", "full_attention_layers": [0, 2], "tie_embeddings": True},
}
ARCHITECTURES = [Architecture.model_validate({**SHAPE, **changes}) for changes in KINDS.values()]


def state_of(architecture: Architecture) -> dict[str, Tensor]:
    state = initial_state(architecture, VOCABULARY, seed=3)
    return {name: 4 * weight if weight.dim() > 1 else weight for name, weight in state.items()}


def native(architecture: Architecture, **switches: Any) -> Any:
    model = get_network(architecture.name).model(architecture, VOCABULARY)
    model.load_state_dict(state_of(architecture), strict=not architecture.tie_embeddings)
    set_execution_options(model, torch.device("cpu"), **switches)
    return model


def export(architecture: Architecture, tokenizer: Path, folder: Path) -> None:
    places = {"tokenizer": tokenizer, "tokenizer_configuration": tokenizer.with_name("tokenizer_config.json")}
    huggingface.save_pretrained(state_of(architecture), architecture, VOCABULARY, 64, **places, folder=folder)


def drawn_tokens(rows: int = 3) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", KINDS)
def test_transformers_loads_the_model_and_computes_the_same(name: str, tmp_path: Path, tokenizer: Path) -> None:
    architecture = Architecture.model_validate({**SHAPE, **KINDS[name]})
    export(architecture, tokenizer, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert theirs.config.model_type == name.partition(",")[0]
    own, tokens = native(architecture), drawn_tokens()
    read, target = tokens[:, :-1], tokens[:, 1:]
    logits = theirs(read).logits
    torch.testing.assert_close(own(read), logits, atol=1e-5, rtol=1e-5)
    everything = native(architecture.model_copy(update={"window": None, "full_attention_layers": ()}))
    assert not torch.allclose(everything(read), logits, atol=1e-2)
    own(read, target).backward()
    F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in own.named_parameters():
        theirs_of_it = expected[get_network(architecture.name).huggingface_name(name)]
        torch.testing.assert_close(parameter.grad, theirs_of_it, atol=1e-4, rtol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")  # as Transformers writes it
    for folder in ("out", "theirs"):
        result, _, weights = huggingface.load_pretrained(tmp_path / folder)
        expected_shape = {"feed_forward_width": architecture.intermediate_width, "head_width": result.head_width}
        assert result == architecture.model_copy(update=expected_shape)
        assert result.head_dimension == architecture.head_dimension
        assert all(torch.equal(weights[name], tensor) for name, tensor in state_of(architecture).items())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mistral", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types, which a mistral does not"),
        ("ministral", {"layer_types": ["chunked_attention"] * 3}, "layer_types 'chunked_attention': only full_att"),
        ("ministral", {"sliding_window": None}, "layer_types 'sliding_attention' and no window"),
        ("qwen3, some layers", {"use_sliding_window": False}, "layer_types 'sliding_attention' and no window"),
    ],
)
def test_unsupported_configuration_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path, tokenizer: Path
) -> None:
    export(Architecture.model_validate({**SHAPE, **KINDS[name]}), tokenizer, tmp_path / "out")
    file = tmp_path / "out/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        huggingface.read_architecture(tmp_path / "out")


def test_missing_config_json_keys_use_the_transformers_defaults(tmp_path: Path, tokenizer: Path) -> None:
    """Qwen3's first 28 layers have full attention; a Mistral's window is 4,096, and one without is a Llama."""
    cases: list[tuple[str, dict[str, Any], tuple[str, ...], int | None, list[int]]] = [
        ("qwen3", {"num_hidden_layers": 30}, ("max_window_layers",), WINDOW, [*range(28)]),
        ("qwen3", {}, ("max_window_layers",), None, []),
        ("mistral", {}, ("sliding_window",), 4096, []),
        ("mistral", {"sliding_window": None}, (), None, []),
    ]
    for number, (name, change, removed, window, full) in enumerate(cases):
        folder = tmp_path / str(number)
        export(Architecture.model_validate({**SHAPE, **KINDS[name]}), tokenizer, folder)
        config = {**json.loads((folder / "config.json").read_text()), **change}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))
        result, _, _ = huggingface.read_architecture(folder)
        assert (result.window, list(result.full_attention_layers)) == (window, full), name


@pytest.mark.parametrize("switches", [{}, {"recomputation": "selective"}, {"recomputation": "full"}])
def test_packed_row_equals_its_documents_one_by_one(switches: dict[str, Any]) -> None:
    model, tokens = native(ARCHITECTURES[1], **switches), drawn_tokens(2)[:, :-1]
    document = torch.tensor([[0] * 20 + [1] * 30, [0] * 5 + [1] * 45])
    packed = model(tokens, documents=limits_of(document))
    for row in range(2):
        for number in (0, 1):
            inside = document[row] == number
            alone = model(tokens[row, inside][None])[0]
            torch.testing.assert_close(packed[row, inside], alone, atol=1e-5, rtol=1e-5)


def test_window_limits() -> None:
    tokens = torch.zeros(1, 4, dtype=torch.long)
    document = torch.tensor([0, 3, 4])
    for window, given, expected in (
        (2, None, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
        (2, document, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]),
    ):
        mask = make_attention_mask(tokens, given, window, torch.float32)
        assert mask is not None and mask[0, 0].tolist() == expected
    assert make_attention_mask(tokens, None, 4, torch.float32) is None  # the usual kernel
    assert make_attention_mask(tokens, None, None, torch.float32) is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_count_only_attended_positions(architecture: Architecture) -> None:
    tokens, saved = torch.zeros(1, LENGTH, dtype=torch.long), 0
    for window in architecture.windows():
        mask = make_attention_mask(tokens, None, window, torch.float32)
        most = LENGTH if mask is None else int(mask.sum(-1).max())
        saved += 12 * architecture.heads * architecture.head_dimension * (LENGTH - most)
    everything = architecture.model_copy(update={"window": None, "full_attention_layers": ()})
    counts = [flops_per_token(shape, VOCABULARY, LENGTH) for shape in (architecture, everything)]
    assert saved > 0 and counts[1] - counts[0] == saved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": None, "full_attention_layers": [1]}, "exceptions to a window: set window or remove them"),
        ({"full_attention_layers": [3]}, r"full_attention_layers \[3\] must be some of the layers 0 to 2"),
        ({"full_attention_layers": [1, 0]}, "in order"),
        ({"full_attention_layers": [0, 1, 2]}, "leave one with the window"),
        ({"window": 0}, "window"),
    ],
)
def test_invalid_window_pattern_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Architecture.model_validate({**SHAPE, **change})


def test_settings_without_a_window_are_unchanged() -> None:
    assert not {"window", "full_attention_layers"} & Architecture(layers=2, width=32, heads=4).model_dump().keys()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("masked", [False, True])
def test_gpu_attention_in_half_precision_equals_the_reference(masked: bool) -> None:
    device, tokens = torch.device("cuda"), drawn_tokens()[:, :-1]
    documents = limits_of(torch.tensor([[0] * 20 + [1] * 30] * 3)) if masked else None
    model = native(ARCHITECTURES[1])
    with torch.no_grad():
        expected = model(tokens, documents=documents)
        half = model.to(device, torch.bfloat16)
        set_execution_options(half, device)
        result = half(tokens.to(device), documents=None if documents is None else documents.to(device))
    assert (result.cpu().float() - expected).abs().max() < 0.05 * expected.abs().max()
