"""Computes the perplexity of each document of one unit under a model of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline.core.errors import InputError
from pipeline.corpus.document_streams import write_scores
from pipeline.corpus.settings import PerplexitySettings

MAXIMUM_LOGITS = 1 << 24  # computed at a time: 64 MB


class PerplexityModel:
    """A model with its tokenizer, as written by `pretrain.export`, in fp32 on the CPU."""

    def __init__(self, folder: Path, tokens: int) -> None:
        try:
            self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the libraries raise many kinds, and a bare Exception for a broken tokenizer
            raise InputError(f"{folder} is no complete model ({error}): export it again") from None
        self._tokenizer.encode_special_tokens = True  # the name of a special token in a text is text
        self._tokens = tokens
        self._rows = max(1, MAXIMUM_LOGITS // self._model.config.vocab_size)

    def compute(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """Return exp of the mean negative log-likelihood of the first tokens of each text, (N,); NaN without tokens.

        Each text begins with begin-of-text, as in training.
        """
        begin = self._model.config.bos_token_id
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        token_rows = [[begin, *one.ids[: self._tokens]] for one in encoded]
        perplexities = np.full(len(texts), np.nan)
        for batch in _length_batches([len(tokens) - 1 for tokens in token_rows], self._rows):
            longest = max(len(token_rows[place]) for place in batch)
            padded = torch.tensor([token_rows[place] + [begin] * (longest - len(token_rows[place])) for place in batch])
            with torch.inference_mode():  # the model is causal, so padding at the end changes nothing
                logits = self._model(padded[:, :-1], use_cache=False).logits
                losses = cross_entropy(logits.transpose(1, 2), padded[:, 1:], reduction="none").double()
            for row, place in enumerate(batch):
                perplexities[place] = float(losses[row, : len(token_rows[place]) - 1].mean().exp())
        return perplexities


def _length_batches(lengths: list[int], most: int) -> Iterator[list[int]]:
    """Yield indices of texts of similar length, each batch of at most `most` padded tokens; skip empty texts."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if lengths[place] == 0:
            break
        if batch and (len(batch) + 1) * lengths[batch[0]] > most:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def run(settings: PerplexitySettings, *, documents: Path, final: Path, perplexity: Path) -> dict[str, Any]:
    """Write the perplexity of each document, in order; return the number of documents.

    Args:
        final: the folder of the model, as written by `pretrain.export`.

    Raises:
        InputError: the model is incomplete.
    """
    surprise = PerplexityModel(final, settings.tokens)

    def compute(table: pa.Table) -> npt.NDArray[np.float64]:
        return surprise.compute(table["text"].to_pylist())

    unit = write_scores(documents, perplexity, "perplexity", ["text"], compute)
    print(f"{unit['source']}.{unit['unit']}: {unit['documents']} documents read", flush=True)
    return {"documents": unit["documents"]}
