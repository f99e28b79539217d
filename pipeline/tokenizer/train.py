"""Trains a byte-level BPE tokenizer on the training documents of a corpus.

Byte-pair encoding: Sennrich et al. 2016, https://aclanthology.org/P16-1162; on bytes, so that every text has an
encoding and no token is unknown: Radford et al. 2019 (GPT-2). Text is first cut into words, numbers, punctuation and
white space by a pattern in the manner of Llama 3 (Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783), here also
for Dutch: combining marks belong to their word, and a clitic after either apostrophe ('s, 't, 'n) stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from pipeline.corpus.documents import is_validation
from pipeline.corpus.merging import merge_documents
from pipeline.ground.errors import InputError
from pipeline.tokenizer.settings import TrainSettings

PATTERN = "|".join(
    (
        r"(?i:['’](?:[dmnst]|ll|re|ve))(?![\p{L}\p{M}])",  # clitics: 's, 't, 'll
        r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+",  # a word with the space or sign before it
        r"\p{N}{1,3}",  # numbers, in groups of at most three digits
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",  # punctuation with the line end after it
        r"\s*[\r\n]+",  # line ends with the white space before them
        r"\s+(?!\S)",  # white space, but for the one space that belongs to the next word
        r"\s+",
    )
)


def new_tokenizer(special_tokens: list[str]) -> Tokenizer:
    """An untrained tokenizer whose special tokens get the identifiers 0, 1, 2, …

    Encoding puts the begin token before a text unless `add_special_tokens=False`; the end token is never added.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(PATTERN), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    begin = special_tokens[0]
    tokenizer.post_processor = TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", f"{begin}:1", "$B:1"], special_tokens=[(begin, 0)]
    )
    return tokenizer


def run(settings: TrainSettings, *, documents: list[Path], tokenizer: Path, configuration: Path) -> dict[str, Any]:
    """Trains on `documents` and writes tokenizer.json and tokenizer_config.json, which transformers loads together.

    Raises InputError when the text is too little for the vocabulary. The bytes do not depend on the order of the files
    nor on the number of threads.
    """
    counts = {"documents": 0, "bytes": 0}

    def training_texts() -> Iterator[str]:
        for _, _, text, cluster in merge_documents(documents, ["text", "cluster"]):
            if not is_validation(cluster, settings.validation_fraction):
                counts["documents"] += 1
                counts["bytes"] += len(text.encode())
                yield text

    trained = new_tokenizer(settings.special_tokens)
    trainer = BpeTrainer(
        vocab_size=settings.vocabulary_size,
        min_frequency=settings.minimum_frequency,
        special_tokens=settings.special_tokens,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(training_texts(), trainer)
    reached = trained.get_vocab_size()
    if reached < settings.vocabulary_size:
        raise InputError(
            f"tokenizer.vocabulary_size {settings.vocabulary_size} cannot be reached: the {counts['documents']} "
            f"training documents ({counts['bytes']} bytes) give {reached} tokens at minimum_frequency "
            f"{settings.minimum_frequency}; lower one of the two or add text"
        )
    trained.save(str(tokenizer))
    begin, end, pad = settings.special_tokens[:3]
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,  # would change the spaces of a decoded text
        "padding_side": "right",
    }
    configuration.write_text(json.dumps(described, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    print(f"tokenizer: {reached} tokens from {counts['documents']} documents, {counts['bytes']} bytes", flush=True)
    return {**counts, "vocabulary_size": reached}
