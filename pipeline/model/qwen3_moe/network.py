"""What training and exchange with Transformers know of a Qwen3 with experts."""

from __future__ import annotations

from dataclasses import replace

from pipeline.model.networks import Network
from pipeline.model.qwen3.network import NETWORK as QWEN3
from pipeline.model.qwen3_moe.huggingface import configuration, read_configuration, their_name
from pipeline.model.qwen3_moe.model import Qwen3Moe

NETWORK: Network = replace(
    QWEN3,
    model=Qwen3Moe,
    splits={
        **QWEN3.splits,
        **dict.fromkeys([f"feed_forward.{part}" for part in ("router", "gate", "up", "down")], "whole"),
    },
    model_types=("qwen3_moe",),
    their_name=their_name,
    configuration=configuration,
    read_configuration=read_configuration,
)
