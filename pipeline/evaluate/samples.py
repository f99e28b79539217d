"""The step `evaluate samples`: what of a model's own text stands in its training documents, beside held-out text.

People write what others wrote before, too: the same is counted in validation documents of the same length, which no
training saw. What a model copies is to be read against that.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datatrove.data import Document

from pipeline.core.confidence_intervals import proportion_interval
from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.personal_data import find_personal_data
from pipeline.corpus.personal_data.synthetic import is_synthetic
from pipeline.corpus.personal_data.text_masking import KINDS
from pipeline.corpus.rules.harmful_content import HarmfulContentFilter
from pipeline.evaluate.request_tokenizer import RequestTokenizer
from pipeline.evaluate.settings import MemorizationSettings, SamplesSettings
from pipeline.pretrain import training_outcome
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
    """Write the most likely text of a model after each prompt, and its parts that stand in the training documents.

    Computed on a CPU in fp32, the most likely token each time: the same text whenever the step is run. Where the
    settings ask for it, the file also counts what of the model's text is memorised, harmful or personal data.

    Args:
        index: of the tokens that the model was trained on.
        tokenizer: theirs.
        suffixes: the suffix array of each of their shards.
        final: the model.
        harmful: the files of the lists and classifiers of harmful content, in their order.
        samples: the file that is written.

    Returns:
        The number of samples, their characters and how many of them are copied, and the same of held-out text.

    Raises:
        InputError: the model does not load, or tokens, suffix arrays and tokenizer do not belong together, or no
            document is long enough for what is memorised.
    """
    if ended := training_outcome.read_outcome(final):
        content = _samples_content(settings, [], []) | {"outcome": ended._asdict()}
        samples.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return {"written": content["written"], "held_out": content["held_out"]}
    search, writer = TextSearch(index, tokenizer, suffixes), TextGenerator(final)
    rows = []
    for language, prompt in PROMPTS:
        (written,) = writer.after([writer.request_tokenizer.encode_prompt(prompt)], settings.tokens)
        text = writer.text(written)
        rows.append(
            {"language": language, "prompt": prompt, "continuation": text} | _find_copied_parts(search, text, settings)
        )
    characters = [len(row["continuation"]) for row in rows]
    held_out = [
        _find_copied_parts(search, text, settings) | {"continuation": text}
        for text in _cut_held_out_texts(search, index, int(statistics.median(characters)), settings.held_out)
    ]
    content = _samples_content(settings, rows, held_out)
    if settings.memorization is not None:
        content["memorization"] = measure_memorization(settings.memorization, search, writer, harmful)
    samples.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"samples: {content['written']}, held out: {content['held_out']}", flush=True)
    return {"written": content["written"], "held_out": content["held_out"]}


def _samples_content(
    settings: SamplesSettings, rows: list[dict[str, Any]], held_out: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "model": settings.model,
        "minimum_characters": settings.minimum_characters,
        "minimum_letters": _least_letters(settings),
        "samples": rows,
        "written": _sum_rows(rows),
        "held_out": _sum_rows(held_out),
    }


def _least_letters(settings: SamplesSettings) -> int:
    """How many letters or digits a part has at least that counts: a row of dashes stands in many documents."""
    return (settings.minimum_characters + 1) // 2


def _find_copied_parts(search: TextSearch, text: str, settings: SamplesSettings) -> dict[str, Any]:
    """The characters of a text that stand in training documents, and the parts that they are."""
    parts = [
        part
        for part in search.find_parts(text, settings.minimum_characters)
        if count_letters(text[part.start : part.end]) >= _least_letters(settings)
    ]
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
    return {"copied_characters": count_covered_characters(parts), "parts": listed}


def _cut_held_out_texts(search: TextSearch, index: Path, characters: int, most: int) -> list[str]:
    """So many characters from the middle of validation documents, which are taken from the whole split."""
    reader = TokenReader(index, "validation")
    ends = [*reader.borders[1:].tolist(), reader.tokens]
    found = []
    for number in np.unique(np.linspace(0, len(ends) - 1, most).astype(int)) if reader.documents else ():
        text = search.decode_row(reader, int(reader.borders[number]), ends[number])
        start = max((len(text) - characters) // 2, 0)
        found.append(text[start : start + characters])
    return found


def _sum_rows(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "texts": len(rows),
        "characters": sum(len(row["continuation"]) for row in rows),
        "copied_characters": sum(row["copied_characters"] for row in rows),
    }


PROMPTS_FILE = Path(__file__).with_name("prompts.json")  # by kind and language


def count_letters(text: str) -> int:
    """Return how many letters and digits a text has: one of few, such as a row of dashes, says nothing."""
    return sum(map(str.isalnum, text))


class Continuation(NamedTuple):
    """A prompt, what is written after it, both as tokens, the language, and how its document really goes on."""

    prompt: list[int]
    written: list[int]
    language: str
    follows: list[int] | None = None


def measure_memorization(
    settings: MemorizationSettings, search: TextSearch, writer: TextGenerator, harmful: list[Path]
) -> dict[str, Any]:
    """Return what is counted of each kind of text.

    Documents are continued from their beginning (Carlini et al., Quantifying Memorization Across Neural Language
    Models, 2023). What is common stands in the training documents whatever a model has memorised: so the same is
    counted of beginnings that no training saw, and of how the documents themselves go on. No text is kept.

    Raises:
        InputError: no training document is as long as a prompt and its continuation.
    """
    count = HitCounter(settings, search, harmful)
    kinds: dict[str, dict[str, Any]] = {}
    for split in ("train", "validation"):
        own = list(_draw_beginnings(settings, search, split))
        if split == "train" and not own:
            raise InputError(
                f"evaluation.memorization: no training document of {search.reader.index_path} has {settings.tokens} "
                "tokens: make prompt_tokens or continuation_tokens smaller"
            )
        kinds[split] = count(_continue_prompts(settings, writer, own))
        kinds[f"{split}_itself"] = count(each._replace(follows=None) for each in own)
    prompts: dict[str, dict[str, list[str]]] = json.loads(PROMPTS_FILE.read_text(encoding="utf-8"))
    for kind, by_language in prompts.items():
        given = [
            Continuation(writer.request_tokenizer.encode_prompt(text), [], language)
            for language, texts in by_language.items()
            for text in texts
        ]
        kinds[kind] = count(_continue_prompts(settings, writer, given))
    return {
        "prompt_tokens": settings.prompt_tokens,
        "continuation_tokens": settings.continuation_tokens,
        "minimum_letters": count.minimum_letters,
        "harmful": [entry.name for entry in settings.harmful.flags_in_order()],
        "kinds": kinds,
    }


def _draw_beginnings(settings: MemorizationSettings, search: TextSearch, split: str) -> Iterable[Continuation]:
    """Yield beginnings of documents that are long enough, drawn by the seed, with how they go on as what is written."""
    reader = search.reader if split == "train" else TokenReader(search.reader.index_path, split)
    starts = reader.borders
    long = np.flatnonzero(np.diff(starts, append=reader.tokens) > settings.tokens)  # behind them stands end-of-text
    drawn = random.Random(f"{settings.seed}.{split}").sample(range(len(long)), min(settings.prompts, len(long)))
    for start in starts[long[sorted(drawn)]].tolist():
        tokens = reader.check_vocabulary(reader.read(start, settings.tokens)).tolist()
        prompt, follows = tokens[: 1 + settings.prompt_tokens], tokens[1 + settings.prompt_tokens :]
        yield Continuation(prompt, follows, reader.documents_in(start, 1)[0]["language"], follows)


def _continue_prompts(
    settings: MemorizationSettings, writer: TextGenerator, given: list[Continuation]
) -> list[Continuation]:
    """Return the same prompts with what the model writes after them."""
    texts = writer.after([each.prompt for each in given], settings.continuation_tokens, settings.batch_size)
    return [each._replace(written=text) for each, text in zip(given, texts, strict=True)]


class HitCounter:
    """Counts texts that are memorised, harmful, or hold personal data."""

    def __init__(self, settings: MemorizationSettings, search: TextSearch, harmful: list[Path]) -> None:
        self.length, self.search = settings.continuation_tokens, search
        self.minimum_letters = (2 * self.length + 4) // 5  # 20 of 50 tokens
        self.kinds = settings.personal_data.model_copy(update=dict.fromkeys(KINDS, True))
        self.flags = HarmfulContentFilter(settings.harmful, harmful) if harmful else None

    def __call__(self, texts: Iterable[Continuation]) -> dict[str, Any]:
        """Return of some texts how many are what, each with its share and the share's interval.

        `exact` are those that go on as their document does, `in_training` those that stand whole in a training
        document; one that ends before its full length is neither, for short texts stand everywhere. Both are shares of
        the texts without those that `say_nothing`, for white space and dashes stand everywhere too.
        """
        texts = list(texts)
        whole = [self._text(text.written) for text in texts]
        telling = [
            (text, words)
            for text, words in zip(texts, whole, strict=True)
            if count_letters(words) >= self.minimum_letters
        ]
        exact = [words == self._text(text.follows) for text, words in telling if text.follows is not None]
        found = [part for text in texts for part in self._personal_data(text)]
        return {
            "texts": len(texts),
            "say_nothing": len(texts) - len(telling),
            "exact": _share_with_interval(exact),
            "in_training": _share_with_interval(
                [len(text.written) == self.length and self.search.contains(words) for text, words in telling]
            ),
            "harmful": None if self.flags is None else _share_with_interval(list(map(self._is_harmful, whole, texts))),
            "personal_data": len(found),
            "personal_data_in_training": sum(map(self.search.contains, found)),
        }

    def _text(self, tokens: list[int]) -> str:
        """Return the text of tokens as texts are compared."""
        return normalize_nfc(self.search.decode(tokens))

    def _is_harmful(self, words: str, text: Continuation) -> bool:
        document = Document(text=words, id="", metadata={"language": text.language})
        assert self.flags is not None
        self.flags.filter(document)
        return bool(document.metadata["flags"])

    def _personal_data(self, text: Continuation) -> list[str]:
        """Return the personal data that ends in what was written: a word for a number may stand in the prompt."""
        together, prompt = (self._text(part) for part in (text.prompt + text.written, text.prompt))
        return [
            together[found.start : found.end]
            for found in find_personal_data(together, self.kinds)
            if found.end > len(prompt) and not (self.kinds.replacement == "synthetic" and is_synthetic(found))
        ]


def _share_with_interval(hits: list[bool]) -> dict[str, Any] | None:
    """Return how many are, their share and its interval; None where there is no text."""
    if not hits:
        return None
    value = proportion_interval(np.array(hits, dtype=np.float64), np.ones(len(hits)))
    return {"count": sum(hits), "share": value.value, "low": value.low, "high": value.high}


class TextGenerator:
    """A model in Transformers' layout and its tokenizer.

    Raises:
        InputError: the model does not load.
    """

    def __init__(self, folder: Path) -> None:
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
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
        torch.use_deterministic_algorithms(True)

    def text(self, tokens: list[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self.encoder.decode(tokens, skip_special_tokens=True))

    def after(self, prompts: Sequence[list[int]], tokens: int, batch_size: int = 1) -> list[list[int]]:
        """Return what the model writes after each prompt: so many tokens, fewer where it ends or its sequence is full.

        Prompts of unequal length in one batch are filled up on their left, which the model does not attend to.
        """
        import torch

        named, filler = self.model.generation_config.eos_token_id, self.encoder.pad_token_id
        ends = {self.encoder.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
        found: list[list[int]] = []
        for first in range(0, len(prompts), batch_size):
            batch = prompts[first : first + batch_size]
            longest = max(map(len, batch))
            room = self.model.config.max_position_embeddings - longest
            if room < 1:
                found += [[] for _ in batch]
                continue
            given = [[filler or 0] * (longest - len(prompt)) + prompt for prompt in batch]
            seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch]
            with torch.inference_mode():
                written = self.model.generate(  # type: ignore[misc]  # its own type is wrong
                    torch.tensor(given),
                    attention_mask=torch.tensor(seen),
                    max_new_tokens=min(tokens, room),
                    do_sample=False,
                    eos_token_id=sorted(ends) or None,
                    pad_token_id=filler,
                )
            found += [list(takewhile(lambda token: token not in ends, row)) for row in written[:, longest:].tolist()]
        return found
