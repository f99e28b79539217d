"""Trains a byte-level tokenizer on a sample of the training documents of a corpus.

Byte-pair encoding: Sennrich et al. 2016, https://aclanthology.org/P16-1162; or a unigram language model of pieces: Kudo
2018, https://aclanthology.org/P18-1007. Both work on bytes (Radford et al. 2019, GPT-2), so every text has an encoding
without unknown tokens. See `document_sample` for the sample.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from pipeline.core.errors import InputError
from pipeline.corpus.documents import is_validation_cluster
from pipeline.tokenizer.document_sample import draw_sample
from pipeline.tokenizer.encoder import decode_byte_level, encode_byte_level
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokenizer.unigram import count_words, train_pieces

LINE_START = re.compile(r"\n(?=\S)")  # no piece crosses such a line break
TEXT_CHARACTERS = 2**16  # the library reads 256 texts at once, so longer ones are split at the next line
SPECIAL_TOKEN_SCORE = -1e6  # so low that no text is encoded with it


def new_tokenizer(special_tokens: list[str], digits: str = "left", pretokenizer: str = "dutch") -> Tokenizer:
    """Return an untrained tokenizer; it encodes a text with the begin token unless `add_special_tokens=False`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = new_pretokenizer(digits, pretokenizer)
    tokenizer.decoder = ByteLevelDecoder()
    begin = special_tokens[0]
    tokenizer.post_processor = TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", f"{begin}:1", "$B:1"], special_tokens=[(begin, 0)]
    )
    return tokenizer


def run(settings: TrainSettings, *, documents: list[Path], tokenizer: Path, configuration: Path) -> dict[str, Any]:
    """Train on `documents`, and write tokenizer.json and tokenizer_config.json for transformers.

    The bytes do not depend on the order of the files and the number of threads. Memory grows with the sample and the
    vocabulary only.

    Raises:
        InputError: a weighted language has no training text, or there is too little text for the vocabulary size.
    """
    weights = {language: weight for language, weight in settings.sample_weights.items() if weight} or None

    def is_wanted(cluster: str, language: str) -> bool:
        return (weights is None or language in weights) and not is_validation_cluster(
            cluster, settings.validation_fraction
        )

    sample = draw_sample(documents, is_wanted, settings.sample_bytes, shares=weights)
    if missing := sorted({*(weights or {})} - {*sample.rows["language"].to_pylist()}):
        raise InputError(f"tokenizer.sample_weights: there is no training text in {missing[0]}: leave it out")
    counts = {"documents": sample.rows.num_rows, "bytes": int(sample.rows["bytes"].to_numpy().sum())}
    markers = [marker for marker in settings.markers if marker not in settings.special_tokens]

    def training_texts() -> Iterator[str]:
        for document in sample.texts(documents):
            yield from split_text_at_line_starts(document["text"], markers)

    trained = new_tokenizer(settings.special_tokens, settings.digits, settings.pretokenizer)
    if settings.algorithm == "bpe":
        trainer = BpeTrainer(
            vocab_size=settings.vocabulary_size - len(markers),
            min_frequency=settings.minimum_frequency,
            special_tokens=settings.special_tokens,
            initial_alphabet=ByteLevel.alphabet(),
            max_token_length=settings.longest_token_bytes + 1,  # exclusive in the library
            show_progress=False,
        )
        trained.train_from_iterator(training_texts(), trainer)
    else:
        words = count_words(trained.pre_tokenizer, training_texts(), training_texts())
        scored_pieces = train_pieces(
            {decode_byte_level(word): count for word, count in words.items()},
            settings.vocabulary_size - len(markers) - len(settings.special_tokens),
            settings.minimum_frequency,
            settings.longest_token_bytes,
        )
        scores = [(token, SPECIAL_TOKEN_SCORE) for token in settings.special_tokens]
        trained.model = Unigram(scores + [(encode_byte_level(piece), score) for piece, score in scored_pieces])
        trained.add_special_tokens(settings.special_tokens)
    # Markers are no special tokens: texts contain them, and decoding keeps them.
    trained.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    reached = trained.get_vocab_size()
    if reached < settings.vocabulary_size:
        raise InputError(
            f"tokenizer.vocabulary_size {settings.vocabulary_size} cannot be reached: the {counts['documents']} "
            f"training documents ({counts['bytes']} bytes) give {reached} tokens at minimum_frequency "
            f"{settings.minimum_frequency}; lower one of the two, or add text or raise sample_bytes"
        )
    trained.save(str(tokenizer))
    begin, end, pad = settings.special_tokens[:3]
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,  # True would change the spaces of a decoded text
        "padding_side": "right",
    }
    configuration.write_text(json.dumps(described, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    print(f"tokenizer: {reached} tokens from {counts['documents']} documents, {counts['bytes']} bytes", flush=True)
    return {**counts, "vocabulary_size": reached, "sample": sample.describe()}


def split_text_at_line_starts(text: str, markers: list[str]) -> Iterator[str]:
    """Yield the text without markers, in parts that give the same pieces as the complete text."""
    for part in re.split("|".join(map(re.escape, markers)), text) if markers else [text]:
        begin = 0
        while len(part) - begin > TEXT_CHARACTERS and (line := LINE_START.search(part, begin + TEXT_CHARACTERS)):
            yield part[begin : line.end()]
            begin = line.end()
        yield part[begin:]


# The pre-tokenization into words, numbers, punctuation and white space.
#
# `llama3` is the exact pattern of Llama 3 (Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783), which other
# programs know by name. `dutch` extends it: combining marks belong to their word, and a clitic after an apostrophe is
# a piece, with the space before it if it is a separate word ('t huis, 's avonds, zo'n, don't). No token crosses a
# piece, and each piece can be one token.
#
# Numbers are split into groups of three digits from the left, as in Llama 3, or from the right, which aligns the places
# of two numbers and makes sums easier (Singh and Strouse 2024, https://arxiv.org/abs/2402.14903).


_CLITIC = r"(?i:['’‘](?:[dkmnst]|ll|re|ve))(?![\p{L}\p{M}])"
DIGITS = {
    "left": r"\p{N}{1,3}",
    # The lookahead over the rest of a number applies only at its start, so a long number is read twice, not per group.
    "right": r"(?<!\p{N})\p{N}{1,2}(?=(?>(?:\p{N}{3})+)(?!\p{N}))|\p{N}{3}|\p{N}{1,2}",
    "single": r"\p{N}",
}
_PIECES = {
    "dutch": (
        rf" ?{_CLITIC}",  # clitics: 's, 't, 'll, with the space before a separate one
        r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+",  # a word with the space or sign before it
        rf" ?(?:(?!{_CLITIC})[^\s\p{{L}}\p{{M}}\p{{N}}])+[\r\n]*",  # punctuation with the line end after it
    ),
    "llama3": (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
}


def pretoken_pattern(digits: str, pretokenizer: str = "dutch") -> str:
    """Return the regular expression of one piece; `digits` is a key of DIGITS."""
    clitic, word, punctuation = _PIECES[pretokenizer]
    return "|".join(
        (
            clitic,
            word,
            DIGITS[digits],
            punctuation,
            r"\s*[\r\n]+",  # line ends with the white space before them
            r"\s+(?!\S)",  # white space, except one space for the next word
            r"\s+",
        )
    )


def new_pretokenizer(digits: str, pretokenizer: str = "dutch") -> Sequence:
    """Return a pre-tokenizer that splits a text by the pattern and encodes the pieces byte-level."""
    split, spell = (
        Split(Regex(pretoken_pattern(digits, pretokenizer)), behavior="isolated"),
        ByteLevel(add_prefix_space=False, use_regex=False),
    )
    return Sequence([split, spell])
