"""What training and exchange with Transformers know of a Qwen3."""

from __future__ import annotations

from dataclasses import replace

from pipeline.model.llama.network import NETWORK as LLAMA
from pipeline.model.networks import Network
from pipeline.model.qwen3.huggingface import configuration, read_configuration, their_name
from pipeline.model.qwen3.model import Qwen3

NETWORK: Network = replace(
    LLAMA,
    model=Qwen3,
    splits={**LLAMA.splits, "attention.query_norm": "heads", "attention.key_norm": "heads"},
    model_types=("qwen3",),
    their_name=their_name,
    configuration=configuration,
    read_configuration=read_configuration,
)
