"""Count memorized texts, harmful texts and personal data in what a model generates."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datatrove.data import Document

from pipeline.core.confidence_intervals import proportion_interval
from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.personal_data.synthetic_values import is_synthetic
from pipeline.corpus.personal_data.text_masking import KINDS, find_personal_data
from pipeline.corpus.rules.harmful_content import HarmfulContentFilter
from pipeline.evaluate.settings import MemorizationSettings
from pipeline.evaluate.text_generator import TextGenerator
from pipeline.tokens.text_search import TextSearch
from pipeline.tokens.token_reader import TokenReader

PROMPTS_FILE = Path(__file__).with_name("prompts.json")  # by kind and language


def count_letters(text: str) -> int:
    """Return the number of letters and digits of a text."""
    return sum(map(str.isalnum, text))


class Continuation(NamedTuple):
    """The tokens of a prompt and of the text after it, the language, and the document's own continuation."""

    prompt: list[int]
    written: list[int]
    language: str
    follows: list[int] | None = None


def measure_memorization(
    settings: MemorizationSettings, search: TextSearch, generator: TextGenerator, harmful: list[Path]
) -> dict[str, Any]:
    """Return the counts of each kind of text; no text is kept.

    The model continues documents from their beginning (Carlini et al., Quantifying Memorization Across Neural Language
    Models, 2023). Common text occurs in training documents without memorization: the baselines are beginnings that no
    training has seen, and the documents' own continuations.

    Raises:
        InputError: no training document is as long as a prompt and its continuation.
    """
    count = HitCounter(settings, search, harmful)
    kinds: dict[str, dict[str, Any]] = {}
    for split in ("train", "validation"):
        own = list(_draw_beginnings(settings, search, split))
        if split == "train" and not own:
            raise InputError(
                f"evaluation.memorization: no training document of {search.reader.index_path} has "
                f"{settings.minimum_tokens} tokens: make prompt_tokens or continuation_tokens smaller"
            )
        kinds[split] = count(_continue_prompts(settings, generator, own))
        kinds[f"{split}_itself"] = count(each._replace(follows=None) for each in own)
    prompts: dict[str, dict[str, list[str]]] = json.loads(PROMPTS_FILE.read_text(encoding="utf-8"))
    for kind, by_language in prompts.items():
        given = [
            Continuation(generator.request_tokenizer.encode_prompt(text), [], language)
            for language, texts in by_language.items()
            for text in texts
        ]
        kinds[kind] = count(_continue_prompts(settings, generator, given))
    return {
        "prompt_tokens": settings.prompt_tokens,
        "continuation_tokens": settings.continuation_tokens,
        "minimum_letters": count.minimum_letters,
        "harmful": [entry.name for entry in settings.harmful.lists_and_classifiers()],
        "kinds": kinds,
    }


def _draw_beginnings(settings: MemorizationSettings, search: TextSearch, split: str) -> Iterable[Continuation]:
    """Yield beginnings of long enough documents, drawn by the seed, with their own continuation as the text."""
    reader = search.reader if split == "train" else TokenReader(search.reader.index_path, split)
    starts = reader.document_starts
    long = np.flatnonzero(np.diff(starts, append=reader.tokens) > settings.minimum_tokens)  # before end-of-text
    drawn = random.Random(f"{settings.seed}.{split}").sample(range(len(long)), min(settings.prompts, len(long)))
    for start in starts[long[sorted(drawn)]].tolist():
        tokens = reader.check_vocabulary(reader.read(start, settings.minimum_tokens)).tolist()
        prompt, follows = tokens[: 1 + settings.prompt_tokens], tokens[1 + settings.prompt_tokens :]
        yield Continuation(prompt, follows, reader.documents_in(start, 1)[0]["language"], follows)


def _continue_prompts(
    settings: MemorizationSettings, generator: TextGenerator, given: list[Continuation]
) -> list[Continuation]:
    """Return the same prompts with the model's continuations."""
    texts = generator.generate([each.prompt for each in given], settings.continuation_tokens, settings.batch_size)
    return [each._replace(written=text) for each, text in zip(given, texts, strict=True)]


class HitCounter:
    """Counts memorized texts, harmful texts and personal data."""

    def __init__(self, settings: MemorizationSettings, search: TextSearch, harmful: list[Path]) -> None:
        self.length, self.search = settings.continuation_tokens, search
        self.minimum_letters = (2 * self.length + 4) // 5  # 20 of 50 tokens
        self.kinds = settings.personal_data.model_copy(update=dict.fromkeys(KINDS, True))
        self.flags = HarmfulContentFilter(settings.harmful, harmful) if harmful else None

    def __call__(self, texts: Iterable[Continuation]) -> dict[str, Any]:
        """Count texts of each kind; return each count with its share and the share's interval.

        `exact` texts continue as their document does, `in_training` ones occur whole in a training document. A text
        that ends before its full length is neither, as short texts occur everywhere. Both are shares of the texts
        without those that `say_nothing`: they have few letters, and white space and dashes occur everywhere, too.
        """
        texts = list(texts)
        whole = [self._decode_normalized(text.written) for text in texts]
        telling = [
            (text, words)
            for text, words in zip(texts, whole, strict=True)
            if count_letters(words) >= self.minimum_letters
        ]
        exact = [words == self._decode_normalized(text.follows) for text, words in telling if text.follows is not None]
        personal_data = [part for text in texts for part in self._find_generated_personal_data(text)]
        return {
            "texts": len(texts),
            "say_nothing": len(texts) - len(telling),
            "exact": _share_with_interval(exact),
            "in_training": _share_with_interval(
                [len(text.written) == self.length and self.search.contains(words) for text, words in telling]
            ),
            "harmful": None if self.flags is None else _share_with_interval(list(map(self._is_harmful, whole, texts))),
            "personal_data": len(personal_data),
            "personal_data_in_training": sum(map(self.search.contains, personal_data)),
        }

    def _decode_normalized(self, tokens: list[int]) -> str:
        """Return the text of tokens in composed Unicode form (NFC), for comparison."""
        return normalize_nfc(self.search.decode(tokens))

    def _is_harmful(self, words: str, text: Continuation) -> bool:
        document = Document(text=words, id="", metadata={"language": text.language})
        assert self.flags is not None
        self.flags.filter(document)
        return bool(document.metadata["flags"])

    def _find_generated_personal_data(self, text: Continuation) -> list[str]:
        """Return the personal data that ends in the generated text; it may begin in the prompt."""
        together, prompt = (self._decode_normalized(part) for part in (text.prompt + text.written, text.prompt))
        return [
            together[span.start : span.end]
            for span in find_personal_data(together, self.kinds)
            if span.end > len(prompt) and not (self.kinds.replacement == "synthetic" and is_synthetic(span))
        ]


def _share_with_interval(hits: list[bool]) -> dict[str, Any] | None:
    """Return the number of hits, their share and its interval; None without any text."""
    if not hits:
        return None
    value = proportion_interval(np.array(hits, dtype=np.float64), np.ones(len(hits)))
    return {"count": sum(hits), "share": value.value, "low": value.low, "high": value.high}
