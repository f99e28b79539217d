"""What training and exchange with Transformers know of a Llama."""

from __future__ import annotations

from pipeline.model.llama.huggingface import WINDOWED, configuration, read_configuration, their_name
from pipeline.model.llama.model import Llama, initial_weight
from pipeline.model.networks import Network

NETWORK = Network(
    model=Llama,
    initial_weight=initial_weight,
    splits={
        "attention_norm": "positions",
        "attention.query": "columns",
        "attention.key": "columns",
        "attention.value": "columns",
        "attention.output": "rows",
        "feed_forward_norm": "positions",
        "feed_forward.gate": "columns",
        "feed_forward.up": "columns",
        "feed_forward.down": "rows",
    },
    model_types=("llama", *WINDOWED),
    their_name=their_name,
    configuration=configuration,
    read_configuration=read_configuration,
)
