"""A tiny random Llama with a byte-level tokenizer, in the layout of a milestone, and tokens to train it on.

The tokenizer adds begin-of-text to a text, as those of `tokenizer.train` do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tokens.conftest import build, make_rows, write_documents


@pytest.fixture(scope="session")
def milestone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("milestone"), sequence_length=512)


@pytest.fixture(scope="session")
def long_milestone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a context for the longest prompt of the shipped tasks."""
    return made(tmp_path_factory.mktemp("long-milestone"), sequence_length=8192)


def made(folder: Path, sequence_length: int) -> Path:
    """Write such a milestone into a folder and return it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(["<s>", "</s>", "<pad>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    torch.manual_seed(1)
    configuration = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=sequence_length,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(configuration).save_pretrained(folder / "huggingface")
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "huggingface")
    documents = [write_documents(folder / f"{name}.parquet", make_rows(60, name)) for name in ("nl", "en")]
    build(folder / "tokens", documents, folder / "huggingface/tokenizer.json", 2)
    return folder
