"""Generate the most likely text of a model on a CPU in fp32."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.evaluate.request_tokenizer import RequestTokenizer


def enable_offline_deterministic_mode() -> None:
    """Make the libraries of this process work offline and deterministically; call it before they are imported."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch

    torch.use_deterministic_algorithms(True)


class TextGenerator:
    """A model in the layout of Transformers, and its tokenizer.

    Raises:
        InputError: the model does not load.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            self.encoder = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            problem = " ".join(str(error).split())[:300]
            raise InputError(f"the model in {folder} does not load ({problem}); export it again") from None
        self.request_tokenizer = RequestTokenizer(self.encoder)

    def decode(self, tokens: list[int]) -> str:
        """Decode tokens, without special ones."""
        return str(self.encoder.decode(tokens, skip_special_tokens=True))

    def generate(self, prompts: Sequence[list[int]], tokens: int, batch_size: int = 1) -> list[list[int]]:
        """Generate tokens after each prompt, fewer where the text ends or the model's sequence is full.

        Prompts of unequal length in one batch are padded on their left, which the attention mask hides.
        """
        import torch

        named, filler = self.model.generation_config.eos_token_id, self.encoder.pad_token_id
        ends = {self.encoder.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
        continuations: list[list[int]] = []
        for first in range(0, len(prompts), batch_size):
            batch = prompts[first : first + batch_size]
            longest = max(map(len, batch))
            most = self.model.config.max_position_embeddings - longest
            if most < 1:
                continuations += [[] for _ in batch]
                continue
            given = [[filler or 0] * (longest - len(prompt)) + prompt for prompt in batch]
            seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch]
            with torch.inference_mode():
                written = self.model.generate(
                    torch.tensor(given),
                    attention_mask=torch.tensor(seen),
                    max_new_tokens=min(tokens, most),
                    do_sample=False,
                    eos_token_id=sorted(ends) or None,
                    pad_token_id=filler,
                )
            continuations += [
                list(takewhile(lambda token: token not in ends, row)) for row in written[:, longest:].tolist()
            ]
        return continuations
