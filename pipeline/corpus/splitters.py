"""The words of other tokenizers, of one stretch between white space at a time: those of spaCy and of NLTK."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.errors import InputError

Tokenize = Callable[[str], list[str]]

# What a tokenizer splits in the same way unless it is one of its exceptions: digits, or Latin letters, and the mark
# behind them. A full stop is one only behind a small letter or two capitals: an initial keeps its own.
_LATIN_WORD = re.compile(r"(?P<word>[0-9]+|[A-Za-zÀ-ÖØ-öø-ÿ]+)(?P<mark>[,;:?!]|(?<=[a-zß-öø-ÿ0-9])\.|(?<=[A-Z]{2})\.)?")
_QUICK_LANGUAGES = {"nl", "en"}
_CONTRACTIONS = {"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"}


def _quick(exact: Tokenize, excepted: Callable[[str], bool]) -> Tokenize:
    """Return what splits as `exact` does, without asking it about plain words."""

    def quick(chunk: str) -> list[str]:
        match = _LATIN_WORD.fullmatch(chunk)
        if match is None or excepted(chunk) or excepted(match["word"]):
            return exact(chunk)
        return [chunk] if match["mark"] is None else [match["word"], match["mark"]]

    return quick


@cache
def spacy_words(language: str) -> Tokenize:
    """Return what splits a chunk as spaCy's tokenizer for the language does, which also begins with white space.

    Raises:
        InputError: spaCy does not know the language.
    """
    import spacy

    try:
        tokenizer: Any = spacy.blank(language).tokenizer
    except ImportError:
        raise InputError(
            f"corpus.languages.{language}.words: spaCy has no words for {language!r}: write words: plain"
        ) from None

    def exact(chunk: str) -> list[str]:
        return [token.text for token in tokenizer(chunk)]

    return _quick(exact, tokenizer.rules.__contains__) if language in _QUICK_LANGUAGES else exact


@cache
def nltk_words() -> Tokenize:
    """Return what splits a chunk as NLTK's word_tokenize does at the end of a sentence.

    Inside a sentence NLTK leaves the full stop of an abbreviation with it; where sentences end, a model says that has
    to be downloaded.
    """
    from nltk.tokenize import NLTKWordTokenizer

    return _quick(NLTKWordTokenizer().tokenize, lambda word: word.lower() in _CONTRACTIONS)
