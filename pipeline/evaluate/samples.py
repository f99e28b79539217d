"""The step `evaluate samples`: what of a model's own text stands in its training documents, beside held-out text.

People write what others wrote before, too: the same is counted in validation documents of the same length, which no
training saw. What a model copies is to be read against that.
"""

from __future__ import annotations

import json
import os
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluate.settings import SamplesSettings
from pipeline.ground.errors import InputError
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.search import Search, covered

PROMPTS = (
    ("nl", "In de winter is het water van de sloot"),
    ("nl", "De burgemeester vertelde gisteren dat"),
    ("nl", "Wie een fiets koopt, moet eerst"),
    ("nl", "Lang geleden woonde er in een klein dorp"),
    ("nl", "Uit het onderzoek bleek onlangs dat"),
    ("en", "In the morning the baker opens"),
    ("en", "The history of the city begins with"),
    ("en", "To repair a leaking tap, you first"),
    ("en", "She looked out of the window and saw"),
    ("en", "The researchers found last year that"),
)
SHOWN_DOCUMENTS = 3


def run(
    settings: SamplesSettings, *, index: Path, tokenizer: Path, suffixes: list[Path], final: Path, samples: Path
) -> dict[str, Any]:
    """Write the most likely text of a model after each prompt, and its parts that stand in the training documents.

    Computed on a CPU in fp32, the most likely token each time: the same text whenever the step is run.

    Returns:
        The number of samples, their characters and how many of them are copied, and the same of held-out text.

    Raises:
        InputError: the model does not load, or tokens, suffix arrays and tokenizer do not belong together.
    """
    search = Search(index, tokenizer, suffixes)
    rows = []
    for (language, prompt), text in zip(PROMPTS, _written(final, settings.tokens), strict=True):
        rows.append({"language": language, "prompt": prompt, "continuation": text} | _copied(search, text, settings))
    characters = [len(row["continuation"]) for row in rows]
    held_out = [
        _copied(search, text, settings) | {"continuation": text}
        for text in _held_out(search, index, int(statistics.median(characters)), settings.held_out)
    ]
    content = {
        "model": settings.model,
        "minimum_characters": settings.minimum_characters,
        "samples": rows,
        "written": _together(rows),
        "held_out": _together(held_out),
    }
    samples.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"samples: {content['written']}, held out: {content['held_out']}", flush=True)
    return {"written": content["written"], "held_out": content["held_out"]}


def _written(folder: Path, tokens: int) -> list[str]:
    """What a model writes after each prompt, by itself, until it ends or its sequence is full."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        encoder = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:300]
        raise InputError(f"the model in {folder} does not load ({problem}); export it again") from None
    torch.use_deterministic_algorithms(True)
    found = []
    with torch.inference_mode():
        for _, prompt in PROMPTS:
            given = encoder(prompt, return_tensors="pt")["input_ids"]
            room = model.config.max_position_embeddings - given.shape[1]
            if room < 1:
                found.append("")
                continue
            written = model.generate(  # type: ignore[misc]  # its own type is wrong
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=min(tokens, room),
                do_sample=False,
                eos_token_id=encoder.eos_token_id,
                pad_token_id=encoder.pad_token_id,
            )
            found.append(str(encoder.decode(written[0, given.shape[1] :], skip_special_tokens=True)))
    return found


def _copied(search: Search, text: str, settings: SamplesSettings) -> dict[str, Any]:
    """The characters of a text that stand in training documents, and the parts that they are."""
    parts = search.parts(text, settings.minimum_characters)
    listed = [
        {
            "start": part.start,
            "end": part.end,
            "occurrences": part.occurrences,
            "documents": search.count_documents(part),
            "first": list(islice(search.documents(part), SHOWN_DOCUMENTS)),
        }
        for part in parts
    ]
    return {"copied_characters": covered(parts), "parts": listed}


def _held_out(search: Search, index: Path, characters: int, most: int) -> list[str]:
    """So many characters from the middle of validation documents, which are taken from the whole split."""
    reader = TokenReader(index, "validation")
    ends = [*reader.borders[1:].tolist(), reader.tokens]
    found = []
    for number in np.unique(np.linspace(0, len(ends) - 1, most).astype(int)) if reader.documents else ():
        text = search.text(reader, int(reader.borders[number]), ends[number])
        start = max((len(text) - characters) // 2, 0)
        found.append(text[start : start + characters])
    return found


def _together(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "texts": len(rows),
        "characters": sum(len(row["continuation"]) for row in rows),
        "copied_characters": sum(row["copied_characters"] for row in rows),
    }
