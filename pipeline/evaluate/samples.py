"""The step `evaluate samples`: the parts of a model's own text that are copied from its training documents.

People repeat what others wrote, too. The same is therefore counted in validation documents of the same length, which no
training has seen, as a baseline.
"""

from __future__ import annotations

import json
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluate.export_check import load_checked_generator
from pipeline.evaluate.memorization import count_letters, measure_memorization
from pipeline.evaluate.settings import SamplesSettings
from pipeline.evaluate.text_generator import enable_offline_deterministic_mode
from pipeline.evaluate.vllm_check import compare_continuation, request_continuation
from pipeline.pretrain import failed_training_milestone
from pipeline.tokens.text_search import TextSearch, count_covered_characters
from pipeline.tokens.token_reader import TokenReader

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
    settings: SamplesSettings,
    *,
    index: Path,
    tokenizer: Path,
    suffixes: list[Path],
    final: Path,
    harmful: list[Path],
    samples: Path,
) -> dict[str, Any]:
    """Write the most likely text of a model after each prompt, and its parts that occur in training documents.

    Greedy decoding on a CPU in fp32 gives the same text in every run. First the logits of Transformers are compared
    with those of Polder's network, and the tokens of vLLM, where it is installed, with those of Transformers. A problem
    of vLLM is recorded and does not fail the step. If the settings ask for it, the file also counts memorized texts,
    harmful texts and personal data.

    Args:
        index: of the tokens that the model was trained on.
        tokenizer: that of these tokens.
        suffixes: the suffix array of each of their shards.
        final: the model.
        harmful: the files of the lists and classifiers of harmful content, in their order.
        samples: the file to write.

    Returns:
        The number of samples, of their characters and of the copied ones, the same of held-out text, and the results of
        `load_checked_generator` and `compare_continuation`.

    Raises:
        InputError: the model does not load, or tokens, suffix arrays and tokenizer do not belong together, or no
            document is long enough to measure memorization.
        RuntimeError: Transformers computes other logits than the network that was trained.
    """
    if ended := failed_training_milestone.read_failure(final):
        content = _samples_content(settings, [], []) | {"outcome": ended._asdict()}
        samples.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return {"written": content["written"], "held_out": content["held_out"]}
    enable_offline_deterministic_mode()
    answer = request_continuation(final, PROMPTS[0][1])  # first: one model is in memory at a time
    search = TextSearch(index, tokenizer, suffixes)
    generator, checked = load_checked_generator(final, search)
    if answer is not None:
        checked["vllm"] = compare_continuation(answer, PROMPTS[0][1], generator)
    rows = []
    for language, prompt in PROMPTS:
        (written,) = generator.generate([generator.request_tokenizer.encode_prompt(prompt)], settings.tokens)
        text = generator.decode(written)
        rows.append(
            {"language": language, "prompt": prompt, "continuation": text} | _find_copied_parts(search, text, settings)
        )
    characters = [len(row["continuation"]) for row in rows]
    held_out = [
        _find_copied_parts(search, text, settings) | {"continuation": text}
        for text in _take_held_out_excerpts(search, index, int(statistics.median(characters)), settings.held_out)
    ]
    content = _samples_content(settings, rows, held_out)
    if settings.memorization is not None:
        content["memorization"] = measure_memorization(settings.memorization, search, generator, harmful)
    samples.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"samples: {content['written']}, held out: {content['held_out']}", flush=True)
    return {"written": content["written"], "held_out": content["held_out"], "export": checked}


def _samples_content(
    settings: SamplesSettings, rows: list[dict[str, Any]], held_out: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "model": settings.model,
        "minimum_characters": settings.minimum_characters,
        "minimum_letters": _minimum_letters(settings),
        "samples": rows,
        "written": _sum_character_counts(rows),
        "held_out": _sum_character_counts(held_out),
    }


def _minimum_letters(settings: SamplesSettings) -> int:
    """Return the least number of letters and digits in a copied part: a row of dashes occurs in many documents."""
    return (settings.minimum_characters + 1) // 2


def _find_copied_parts(search: TextSearch, text: str, settings: SamplesSettings) -> dict[str, Any]:
    """Return the number of copied characters of a text, and the parts that occur in training documents."""
    parts = [
        part
        for part in search.find_parts(text, settings.minimum_characters)
        if count_letters(text[part.start : part.end]) >= _minimum_letters(settings)
    ]
    listed = [
        {
            "start": part.start,
            "end": part.end,
            "occurrences": part.occurrence_count,
            "documents": search.count_documents(part),
            "first": list(islice(search.documents(part), SHOWN_DOCUMENTS)),
        }
        for part in parts
    ]
    return {"copied_characters": count_covered_characters(parts), "parts": listed}


def _take_held_out_excerpts(search: TextSearch, index: Path, characters: int, most: int) -> list[str]:
    """Return texts of so many characters from the middle of validation documents, spread over the whole split."""
    reader = TokenReader(index, "validation")
    ends = [*reader.document_starts[1:].tolist(), reader.tokens]
    excerpts = []
    for number in np.unique(np.linspace(0, len(ends) - 1, most).astype(int)) if reader.documents else ():
        text = search.decode_row(reader, int(reader.document_starts[number]), ends[number])
        start = max((len(text) - characters) // 2, 0)
        excerpts.append(text[start : start + characters])
    return excerpts


def _sum_character_counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "texts": len(rows),
        "characters": sum(len(row["continuation"]) for row in rows),
        "copied_characters": sum(row["copied_characters"] for row in rows),
    }
