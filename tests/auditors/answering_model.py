"""A tiny model whose answers differ between prompts: labels and entities in JSON, phrases and the end of a text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from tests.tokens.conftest import build, make_rows, write_documents

LABELS = ("ja", "nee", "yes", "no", "positive", "neutral", "negative", *"abcd")
LONG_LABELS = ("positief", "neutraal", "negatief")
NAMES = {
    "nl": ("persoon", "locatie", "organisatie", "diversen"),
    "en": ("person", "location", "organization", "miscellaneous"),
}
JSON_START = ('{"', "label", '":', ' "')
"""The tokens before a label, each after the one before it."""


def answers() -> list[str]:
    """Return what the model writes: entities, words of the right answers, and the end of an answer."""
    written = []
    for names in NAMES.values():
        for name, entity in itertools.product(names, ("Boot", "Boot 3", '"de"', "Gisteren op")):
            lists: dict[str, list[str]] = {one: [] for one in names}
            lists[name].append(entity)
            lists[names[1]].append("Rijn")
            written.append(json.dumps(lists))
    written += [f"{start} boot{end}" for start in (" De", " de", " een", " the") for end in ("", ".", " van 3 uur")]
    return [*written, *(f" Regels {n}." for n in range(8)), " Nog een regel.", " It's 3.5 regels", "\n", "\n\n"]


def write_milestone(folder: Path, seed: int = 162) -> Path:
    """Write the model in the layout of Hugging Face, and tokens that its baselines count.

    Each head reads one place before the last token, and random weights turn what it finds, digits above all, into the
    next token. Element 0 of the hidden state is constant and gives each token a bias, element 1 fills the state up to
    an equal length, and one element for each token of JSON_START makes the next one likely. With this seed the answers
    differ in each task.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def spelled(text: str) -> str:
        return level.pre_tokenize_str(text)[0][0]

    special, letters = ["<s>", "</s>", "<pad>"], sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*LABELS, *LONG_LABELS, *itertools.chain(*NAMES.values())]
    words = [spelled(f" {name}") for name in names] + [spelled(label) for label in LABELS if len(label) > 1]
    pieces = [*special, *letters, *words, *map(spelled, [*JSON_START, '"}']), *map(spelled, answers())]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("{", '"')], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    torch.manual_seed(seed)
    heads, width, theta = 32, 8, 100.0
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=64,
            head_dim=width,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=heads,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    reserved = 2 + len(JSON_START)
    before_VD = torch.nn.functional.normalize(torch.randn(len(vocabulary), 64), dim=1) * 0.1
    before_VD[[vocabulary[digit] for digit in "0123456789"]] *= 8
    before_VD[:, :reserved] = 0
    after_VD = 0.5 * torch.randn(len(vocabulary), 64)
    after_VD[:, :reserved] = 0
    before_VD[:, 0], after_VD[:, 0] = 0.6, -9.0
    after_VD[[vocabulary[spelled(text)] for text in (*answers(), *LABELS)], 0] = 0
    after_VD[[vocabulary['{"'], vocabulary['"}']], 0] = -3
    after_VD[vocabulary[spelled("\n\n")], 0] = 1.5
    for place, (text, following) in enumerate(itertools.pairwise(JSON_START), start=2):
        before_VD[vocabulary[spelled(text)], place] = 0.7
        after_VD[vocabulary[spelled(following)], place] = 12
    before_VD[:, 1] = (1 - before_VD.square().sum(dim=1)).sqrt()
    layer = model.model.layers[0]
    angle_HF = -torch.arange(1, heads + 1)[:, None] * 2 * theta ** -(torch.arange(0, width, 2) / width)
    query_HP = torch.cat([angle_HF.cos(), angle_HF.sin()], dim=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(before_VD)
        model.lm_head.weight.copy_(after_VD)
        layer.self_attn.q_proj.weight[:, 0] = query_HP.flatten()
        layer.self_attn.k_proj.weight[:, 0] = torch.cat([torch.ones(width // 2), torch.zeros(width // 2)]).repeat(heads)
        layer.self_attn.v_proj.weight[:, reserved:] = torch.randn(heads * width, 64 - reserved)
        layer.self_attn.o_proj.weight[reserved:] = 0.01 * torch.randn(64 - reserved, heads * width)
    model.save_pretrained(folder / "huggingface")
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder / "huggingface")
    documents = [write_documents(folder / f"{name}.parquet", make_rows(60, name)) for name in ("nl", "en")]
    build(folder / "tokens", documents, folder / "huggingface/tokenizer.json", 2)
    return folder


def encode_json_start(tokenizer: Any) -> list[int]:
    """Return the tokens that EuroEval's decoder puts before a label."""
    return [tokenizer.encode(text, add_special_tokens=False)[0] for text in JSON_START]
