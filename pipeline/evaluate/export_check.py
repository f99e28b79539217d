"""Compare an exported model in Transformers with the network and the tokens of its training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.evaluate.text_generator import TextGenerator
from pipeline.tokens.text_search import TextSearch

if TYPE_CHECKING:
    from torch import Tensor

COMPARED_TOKENS = 256
LARGEST_DIFFERENCE = 1e-3
"""Of the median token, in standard deviations of the logits: far above rounding in fp32. A median, because rounding may
send a token to another expert."""


def load_checked_generator(final: Path, search: TextSearch) -> tuple[TextGenerator, dict[str, Any]]:
    """Load a model in Transformers; return it with versions, compared tokens and the largest difference of logits.

    The compared tokens are the first ones of the training split. One model is in memory at a time.

    Raises:
        InputError: the model does not load.
        RuntimeError: Transformers computes other logits, or encodes the first training document otherwise.
    """
    import torch
    import transformers

    from pipeline.model.huggingface import read_architecture

    reader = search.reader
    tokens_T = torch.from_numpy(reader.read(0, min(reader.tokens, read_architecture(final)[2], COMPARED_TOKENS)))
    own_TV = _compute_own_logits(final, tokens_T)
    generator = TextGenerator(final)
    with torch.inference_mode():
        apart_T = (generator.model(tokens_T[None]).logits[0] - own_TV).abs().amax(dim=1)
    median, deviation = apart_T.median(), own_TV.std()
    problem = ""
    if not median <= LARGEST_DIFFERENCE * deviation:
        problem = f"computes logits that differ by {median:.2g}, where their standard deviation is {deviation:.2g}"
    end = next(iter(reader.document_starts[1:].tolist()), reader.tokens)
    text, (_, *stored, _) = search.decode_row(reader, 0, end), reader.read(0, end).tolist()
    if generator.request_tokenizer.encode(text) != stored:
        problem = "encodes the first training document with other tokens than the training read"
    if problem:
        raise RuntimeError(
            f"{final}: Transformers {transformers.__version__} {problem}: install the lock's, or report a bug"
        )
    return generator, {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "tokens": len(tokens_T),
        "largest_logit_difference": float(apart_T.max()),
        "logit_deviation": float(deviation),
    }


def _compute_own_logits(final: Path, tokens_T: Tensor) -> Tensor:
    """Return the logits of the network that was trained, with the exported weights, (T, V), fp32 on the CPU."""
    import torch

    from pipeline.model.huggingface import load_pretrained
    from pipeline.model.networks import get_network

    architecture, vocabulary_size, weights = load_pretrained(final)
    with torch.device("meta"):
        network = get_network(architecture.name).model(architecture, vocabulary_size)
    network.load_state_dict(dict(weights), strict=not architecture.tie_embeddings, assign=True)
    if architecture.tie_embeddings:
        network.output.weight = network.embedding.weight
    with torch.inference_mode():
        logits_BTV: Tensor = network(tokens_T[None])
    return logits_BTV[0]
