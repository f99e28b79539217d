"""Word tokenizers of spaCy and NLTK, applied to one pretoken at a time, with fast paths."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

from pipeline.core.errors import InputError

Splitter = Literal["plain", "lexical", "spacy", "nltk"]
Tokenize = Callable[[list[str]], list[list[str]]]  # the words of each pretoken

# Pretokens with a fixed split in NLTK: digits, or Latin letters, and the mark after them.
_NLTK_PLAIN = re.compile(r"(?P<word>[0-9]+|[A-Za-zÀ-ÖØ-öø-ÿ]+)(?P<mark>[,;:?!]|(?<=[a-zß-öø-ÿ0-9])\.|(?<=[A-Z]{2})\.)?")
# Pretokens with a fixed split in spaCy for Dutch and English: a word with a mark before it, and one or two after it.
_SPACY_PLAIN = re.compile(
    r"([(\[\"'“‘„«]?)([A-Za-zÀ-ÖØ-öø-ÿ]+[a-zß-öø-ÿ])([.,!?](?=[)\"”]?\Z)|[;:)\]\"”’'…](?=\Z)|)([)\"”]?)"
)
_QUICK_LANGUAGES = {"nl", "en"}
# Characters at the ends of a word that spaCy's rules of these languages check for prefixes and suffixes, except runs of
# dots; more at the end of words with digits, because of units.
_EDGE, _EDGE_WITH_DIGITS = 3, 6
_DIGIT = re.compile("[0-9]")
_CACHED_EDGES, _MOST_PARTS = 2**14, 16
_CONTRACTIONS = {"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"}


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Prevent spaCy from importing torch, which takes seconds and 260 MB and is not needed for splitting."""
    hidden = "torch" not in sys.modules  # None marks a module that cannot be imported
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]


@cache
def spacy_tokenizer(language: str) -> Tokenize:
    """Return a function that splits pretokens as spaCy's tokenizer for the language.

    Raises:
        InputError: spaCy does not know the language.
    """
    with _without_torch():
        import spacy

    try:
        blank: Any = spacy.blank(language)
    except ImportError:
        raise InputError(
            f"corpus.languages.{language}.words: spaCy has no words for {language!r}: write words: plain"
        ) from None
    tokenizer = blank.tokenizer
    blank.vocab.lex_attr_getters = {}  # computing attributes of words takes longer than splitting
    exceptions, is_quick = {rule for rule in tokenizer.rules if len(rule) > 1}, language in _QUICK_LANGUAGES
    find_prefix, find_suffix = (
        lru_cache(_CACHED_EDGES)(find) for find in (tokenizer.find_prefix, tokenizer.find_suffix)
    )

    def middle(core: str) -> list[str]:
        """Return the parts of a pretoken without its prefixes and suffixes."""
        if core.isalpha() or ("." in core and tokenizer.url_match(core)):
            return [core]
        bounds = [place for infix in tokenizer.infix_finditer(core) if infix.start() for place in infix.span()]
        return [core[start:end] for start, end in pairwise([0, *bounds, len(core)])]

    def affixed(pretoken: str) -> list[str]:
        """Return the words of a pretoken by spaCy's rules, without its exceptions."""
        first: list[str] = []
        last: list[str] = []
        core, edge = pretoken, _EDGE_WITH_DIGITS if _DIGIT.search(pretoken) else _EDGE
        while not core.isalpha():
            prefix = find_prefix(core[:_EDGE])
            end = len(core) - find_suffix(core[prefix:][-edge:])
            if end - prefix == len(core):
                break
            first.append(core[:prefix])
            last.append(core[end:])
            core = core[prefix:end]
        return [part for part in (*first, *middle(core), *reversed(last)) if part]

    def split_plain_pretoken(pretoken: str) -> list[str]:
        """Return the words of a pretoken without exceptions; an empty list if spaCy's tokenizer is needed."""
        if pretoken.isalpha():
            return [] if pretoken in exceptions else [pretoken]
        if not is_quick or ".." in pretoken:
            return []
        if match := _SPACY_PLAIN.fullmatch(pretoken):
            before, word, stop, behind = match.groups("")
            combinations = {pretoken, word, before + word, word + stop, before + word + stop}
            return [] if exceptions & combinations else [part for part in (before, word, stop, behind) if part]
        parts = affixed(pretoken)
        if len(parts) > _MOST_PARTS:
            return []
        runs = chain.from_iterable(accumulate(parts[start:]) for start in range(len(parts)))
        return parts if exceptions.isdisjoint(runs) else []

    def words(pretokens: list[str]) -> list[list[str]]:
        with blank.memory_zone():  # frees the words again
            return [
                split_plain_pretoken(pretoken) or [token.text for token in tokenizer(pretoken)]
                for pretoken in pretokens
            ]

    return words


@cache
def nltk_tokenizer() -> Tokenize:
    """Return a function that splits pretokens as NLTK's word_tokenize does at the end of a sentence.

    Inside a sentence NLTK keeps the full stop of an abbreviation; detecting sentence ends needs a model to download.
    """
    from nltk.tokenize import NLTKWordTokenizer

    tokenizer = NLTKWordTokenizer()

    def split_plain_pretoken(pretoken: str) -> list[str]:
        match = _NLTK_PLAIN.fullmatch(pretoken)
        if match is None or match["word"].lower() in _CONTRACTIONS:
            return list(tokenizer.tokenize(pretoken))
        return [part for part in match.groups() if part]

    return lambda pretokens: list(map(split_plain_pretoken, pretokens))
