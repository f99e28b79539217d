"""The words of other tokenizers, of one stretch between white space at a time: those of spaCy and of NLTK."""

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

# What NLTK always splits alike: digits, or Latin letters, and the mark behind them.
_NLTK_PLAIN = re.compile(r"(?P<word>[0-9]+|[A-Za-zÀ-ÖØ-öø-ÿ]+)(?P<mark>[,;:?!]|(?<=[a-zß-öø-ÿ0-9])\.|(?<=[A-Z]{2})\.)?")
# What spaCy always splits alike, in Dutch and English: a word with a mark before it, and one or two behind it.
_SPACY_PLAIN = re.compile(
    r"([(\[\"'“‘„«]?)([A-Za-zÀ-ÖØ-öø-ÿ]+[a-zß-öø-ÿ])([.,!?](?=[)\"”]?\Z)|[;:)\]\"”’'…](?=\Z)|)([)\"”]?)"
)
_QUICK_LANGUAGES = {"nl", "en"}
# How many characters of a word's ends spaCy's rules of these languages look at to cut something off, dots in a row
# apart; where there are digits more of its end, for units are cut off behind them.
_EDGE, _EDGE_WITH_DIGITS = 3, 6
_DIGIT = re.compile("[0-9]")
_CACHED_EDGES, _MOST_PARTS = 2**14, 16
_CONTRACTIONS = {"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"}


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Let spaCy not load torch, which takes it most of its start and 260 MB, and which splitting has no use for."""
    hidden = "torch" not in sys.modules  # None stands for what cannot be imported
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]


@cache
def spacy_tokenizer(language: str) -> Tokenize:
    """Return what splits pretokens as spaCy's tokenizer for the language does, which also begins with white space.

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
    blank.vocab.lex_attr_getters = {}  # what else there is to know of a word takes longer than splitting it
    exceptions, is_quick = {rule for rule in tokenizer.rules if len(rule) > 1}, language in _QUICK_LANGUAGES
    find_prefix, find_suffix = (
        lru_cache(_CACHED_EDGES)(find) for find in (tokenizer.find_prefix, tokenizer.find_suffix)
    )

    def middle(core: str) -> list[str]:
        """Return the parts of what is left of a pretoken without what is cut off at its ends."""
        if core.isalpha() or ("." in core and tokenizer.url_match(core)):
            return [core]
        bounds = [place for found in tokenizer.infix_finditer(core) if found.start() for place in found.span()]
        return [core[start:end] for start, end in pairwise([0, *bounds, len(core)])]

    def affixed(pretoken: str) -> list[str]:
        """Return the words of a pretoken by spaCy's rules but for its exceptions."""
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

    def plain(pretoken: str) -> list[str]:
        """Return the words of a pretoken that holds no exception; none where spaCy has to be asked."""
        if pretoken.isalpha():
            return [] if pretoken in exceptions else [pretoken]
        if not is_quick or ".." in pretoken:
            return []
        if found := _SPACY_PLAIN.fullmatch(pretoken):
            before, word, stop, behind = found.groups("")
            whole = {pretoken, word, before + word, word + stop, before + word + stop}
            return [] if exceptions & whole else [part for part in (before, word, stop, behind) if part]
        parts = affixed(pretoken)
        if len(parts) > _MOST_PARTS:
            return []
        runs = chain.from_iterable(accumulate(parts[start:]) for start in range(len(parts)))
        return parts if exceptions.isdisjoint(runs) else []

    def words(pretokens: list[str]) -> list[list[str]]:
        with blank.memory_zone():  # spaCy forgets the words again
            return [plain(pretoken) or [token.text for token in tokenizer(pretoken)] for pretoken in pretokens]

    return words


@cache
def nltk_tokenizer() -> Tokenize:
    """Return what splits pretokens as NLTK's word_tokenize does at the end of a sentence.

    Inside a sentence NLTK leaves the full stop of an abbreviation with it; where sentences end, a model says that has
    to be downloaded.
    """
    from nltk.tokenize import NLTKWordTokenizer

    tokenizer = NLTKWordTokenizer()

    def plain(pretoken: str) -> list[str]:
        found = _NLTK_PLAIN.fullmatch(pretoken)
        if found is None or found["word"].lower() in _CONTRACTIONS:
            return list(tokenizer.tokenize(pretoken))
        return [part for part in found.groups() if part]

    return lambda pretokens: list(map(plain, pretokens))
