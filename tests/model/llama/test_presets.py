"""Every named shape: its published size, and the logits of Transformers' model of that shape."""

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.model.architectures import presets
from pipeline.model.llama.huggingface import configuration, their_name
from pipeline.model.llama.model import Llama
from pipeline.model.llama.presets import PRESETS
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from pipeline.model.size import parameter_count

LLAMA3_VOCABULARY = 128_256
PUBLISHED = {
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "gptnl-8b": 8_030_261_248,
    "gptnl-30b": 29.82e9,
    "opengptx-13b6": 13.6e9,
    "mistral-7b": 8_030_261_248,  # 7,241,732,096 with its own 32,000 tokens
    "demo": None,
}


def test_every_preset_has_a_name() -> None:
    assert set(PRESETS) == {"llama3", *PUBLISHED}
    assert Architecture.model_json_schema()["properties"]["preset"]["enum"] == list(presets())


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_is_the_published_one(name: str) -> None:
    architecture = Architecture(preset=name)
    with torch.device("meta"):
        model = Llama(architecture, LLAMA3_VOCABULARY)
    count = parameter_count(architecture, LLAMA3_VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters())
    published = PUBLISHED[name]
    if isinstance(published, int):
        assert count == published
    elif published is not None:
        assert count == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_equal_those_of_transformers_at_two_layers(name: str) -> None:
    """One group of heads wide; the head, its share of keys and values and the feed-forward ratio are the preset's."""
    full = Architecture(preset=name)
    heads, groups = full.heads // full.groups, 1
    reduced = {"layers": 2, "heads": heads, "key_value_heads": groups, "width": heads * full.head_dimension}
    hidden = reduced["width"] * full.hidden // full.width
    architecture = Architecture(preset=name, **reduced, feed_forward_width=hidden)
    assert architecture.rope_scaling == full.rope_scaling and architecture.tie_embeddings == full.tie_embeddings
    vocabulary, length = 200, 150
    own = Llama(architecture, vocabulary)
    own.load_state_dict(initial_state(architecture, vocabulary, seed=3), strict=not architecture.tie_embeddings)
    theirs = LlamaForCausalLM(LlamaConfig(**configuration(architecture, vocabulary, 131_072)))
    renamed = {their_name(n): p for n, p in own.named_parameters()}
    theirs.load_state_dict(renamed, strict=not architecture.tie_embeddings)
    tokens = torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, expected = own(tokens), theirs(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_single_fields_override_a_preset() -> None:
    small = Architecture.model_validate({"preset": "llama3-1b", "layers": 2, "rope_scaling": None})
    assert (small.layers, small.width, small.rope_scaling, small.tie_embeddings) == (2, 2048, None, True)
    assert Architecture.model_validate(small.model_dump()) == small
    assert Architecture.model_validate(Architecture(preset="llama3-3b").model_dump(mode="json")).rope_scaling


def test_what_no_preset_fills_must_be_written() -> None:
    with pytest.raises(ValidationError, match="layers"):
        Architecture(preset="llama3", width=32, heads=4)
    with pytest.raises(ValidationError, match="preset"):
        Architecture(preset="llama4")
    assert "required" not in Architecture.model_json_schema()


def test_a_scaling_without_a_band_is_refused() -> None:
    with pytest.raises(ValidationError, match="low_frequency_factor"):
        Architecture(preset="llama3-1b", rope_scaling={"factor": 8, "high_frequency_factor": 1})
