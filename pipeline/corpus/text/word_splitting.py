"""Splits a text into words once, for all blocks that use words.

Words do not cross white space, so each different pretoken (a string between white space) is split once. A text is then
an array of word numbers, and rules are computed with array operations.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import numpy as np
import numpy.typing as npt
from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION

from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.pretoken_ids import GrowingArray, Integers, Numbers, PretokenTable
from pipeline.corpus.text.word_tokenizers import Splitter, Tokenize, nltk_tokenizer, spacy_tokenizer

# Splits pretokens, each ended by a line feed, into words; also returns the number of words of each pretoken.
TokenizePretokens = Callable[[str], tuple[list[str], Numbers]]

# A word with inner apostrophes and hyphens and the mark after it, or a run of marks. If every comma were a word, the
# rule on words without a letter would remove dialogue, verse and two in five articles of an encyclopedia.
_LEXICAL = r"\w+(?:['’-]\w+)*[^\w\s]?"
_WORD = re.compile(rf"{_LEXICAL}|[^\w\s]+")
_PUNCTUATION = "".join(sorted(PUNCTUATION_SET))
_PRETOKENS_KEPT = 2**18

# Properties of a word, as bits.
MARKS = 1  # consists of datatrove's punctuation marks
LETTER = 2  # contains a letter
STOP = 4  # ends a sentence
CLOSING = 8  # consists of Unicode punctuation: after a stop it still belongs to the sentence


def word_tokenize(text: str) -> list[str]:
    """Return the words and runs of punctuation of a text, in order."""
    return _WORD.findall(text)


def _tokenize_plain(pretokens: str) -> tuple[list[str], Numbers]:
    words = word_tokenize(pretokens)
    ends_W = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))
    ends_P = np.cumsum([len(pretoken) for pretoken in pretokens.split("\n")[:-1]])
    # The words of a pretoken have no gaps.
    return words, np.diff(np.searchsorted(ends_W, ends_P) + 1, prepend=0)


def _with_word_counts(tokenize: Tokenize) -> TokenizePretokens:
    def tokenize_with_word_counts(pretokens: str) -> tuple[list[str], Numbers]:
        word_lists = tokenize(pretokens.split("\n")[:-1])
        return list(chain.from_iterable(word_lists)), np.array(list(map(len, word_lists)), dtype=np.int64)

    return tokenize_with_word_counts


@cached_njit
def _expand_pretokens(
    numbers_P: Integers, pretokens_L: Numbers, ends: Numbers, flat: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the words of pretokens, `flat[ends[i]:ends[i + 1]]` for pretoken i, and the number of words per line."""
    size = 0
    for pretoken in numbers_P:
        size += ends[pretoken + 1] - ends[pretoken]
    numbers_W, words_L = np.empty(size, dtype=np.int64), np.zeros_like(pretokens_L)
    place = at = 0
    for line in range(len(pretokens_L)):
        before = at
        for pretoken in numbers_P[place : place + pretokens_L[line]]:
            for word in range(ends[pretoken], ends[pretoken + 1]):
                numbers_W[at] = flat[word]
                at += 1
        place += pretokens_L[line]
        words_L[line] = at - before
    return numbers_W, words_L


class WordVocabulary:
    """The different pretokens and words of texts, with the words of each pretoken, and lengths and kinds of words."""

    def __init__(self, tokenize: TokenizePretokens, stops: Callable[[str], bool]) -> None:
        self._tokenize = tokenize
        self._stops = stops
        self._pretokens, self._words = PretokenTable(), PretokenTable()
        self._ends, self._flat = GrowingArray([0]), GrowingArray()
        # By the number of a word: its characters, and its property bits.
        self.lengths, self.kinds = GrowingArray(), GrowingArray()
        self._wanted: dict[frozenset[str], Integers] = {}

    def __len__(self) -> int:
        return len(self._pretokens)

    @property
    def size(self) -> int:
        """The number of different words."""
        return len(self._words)

    def _number_words(self, words: list[str]) -> Integers:
        numbers_W, _, new = self._words.encode("\n".join(words))
        different = new.split("\n")[:-1]
        self.lengths.extend(np.array([len(word) for word in different], dtype=np.int64))
        self.kinds.extend(
            np.array([LETTER if word.isalpha() else self._word_kind(word) for word in different], dtype=np.int64)
        )
        return numbers_W

    def word_numbers(self, words: Iterable[str]) -> Integers:
        """Return the numbers of different words, in any order; strings with white space are ignored."""
        wanted = frozenset(words)
        if wanted not in self._wanted:
            self._wanted[wanted] = self._number_words([word for word in sorted(wanted) if word.split() == [word]])
        return self._wanted[wanted]

    def _word_kind(self, word: str) -> int:
        if word[:-1].isalpha():
            return LETTER | STOP if self._stops(word) else LETTER
        has_letter = any(map(str.isalpha, word))
        is_closing = not has_letter and all(unicodedata.category(mark)[0] == "P" for mark in word)
        is_marks = not word.strip(_PUNCTUATION)
        return LETTER * has_letter | STOP * self._stops(word) | MARKS * is_marks | CLOSING * is_closing

    def encode(self, text: str, lines: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the numbers of a text's words, and the numbers of pretokens and words per line."""
        numbers_P, pretokens_L, new = self._pretokens.encode(text, lines)
        if new:
            words, count_P = self._tokenize(new)
            self._ends.extend(np.cumsum(count_P) + len(self._flat))
            self._flat.extend(self._number_words(words))
        numbers_W, words_L = _expand_pretokens(
            numbers_P, pretokens_L, self._ends.backing_array(), self._flat.backing_array()
        )
        return numbers_W, pretokens_L, words_L


@dataclass(frozen=True)
class WordSequence:
    """The W words of a text of L lines: equal words have equal numbers.

    `pretokens_L` and `words_L` are the numbers of pretokens and words per line.
    """

    lines: list[str]
    pretokens_L: Numbers
    words_L: Numbers
    numbers_W: Numbers
    vocabulary: WordVocabulary

    @property
    def lengths_W(self) -> Numbers:
        return self.vocabulary.lengths.backing_array()[self.numbers_W]

    @property
    def word_property_bits_W(self) -> Numbers:
        """The property bits of each word: MARKS, LETTER, STOP, CLOSING."""
        return self.vocabulary.kinds.backing_array()[self.numbers_W]

    def count_distinct_matches(self, words: Iterable[str]) -> int:
        """Return how many different ones of the given words are in the text."""
        return len(set(self._find_occurrences(words).tolist()))

    def count_occurrences(self, words: Iterable[str]) -> int:
        """Return how often the given words occur in the text."""
        return len(self._find_occurrences(words))

    def _find_occurrences(self, words: Iterable[str]) -> Numbers:
        numbers = self.vocabulary.word_numbers(words)
        wanted = np.zeros(self.vocabulary.size, dtype=bool)
        wanted[numbers] = True
        return self.numbers_W[wanted[self.numbers_W]]

    def count_sentences_L(self) -> Numbers:
        """Return the number of sentences per line: a stop ends a sentence if a word follows in the line."""
        line_W = np.repeat(np.arange(len(self.lines)), self.words_L)
        start_W = np.repeat(np.cumsum(self.words_L) - self.words_L, self.words_L)
        word_kinds_W = self.word_property_bits_W
        stops_W = np.concatenate([[0], np.cumsum(word_kinds_W & STOP != 0)])  # the stops before each word
        places = np.flatnonzero(word_kinds_W & CLOSING == 0)
        earlier = np.maximum(np.concatenate([[0], places[:-1]]), start_W[places])
        begins = stops_W[places] > stops_W[earlier]
        return 1 + np.bincount(line_W[places[begins]], minlength=len(self.lines))

    def select_lines(self, lines: list[str], kept_L: npt.NDArray[np.bool_]) -> WordSequence:
        numbers_W = self.numbers_W[np.repeat(kept_L, self.words_L)]
        return WordSequence(lines, self.pretokens_L[kept_L], self.words_L[kept_L], numbers_W, self.vocabulary)


class _CachedSplitter:
    """A splitter with its vocabulary and the words of the last text."""

    def __init__(self, splitter: Splitter, language: str) -> None:
        if splitter in ("plain", "lexical"):
            lexical: Tokenize = lambda pretokens: list(map(re.compile(_LEXICAL).findall, pretokens))  # noqa: E731
            tokenize = _tokenize_plain if splitter == "plain" else _with_word_counts(lexical)
            stops: Callable[[str], bool] = lambda word: word[-1] in TERMINAL_PUNCTUATION or word[-1] == "…"  # noqa: E731
        else:
            tokenize = _with_word_counts(spacy_tokenizer(language) if splitter == "spacy" else nltk_tokenizer())
            stops = TERMINAL_PUNCTUATION.__contains__
        self._new = partial(WordVocabulary, tokenize, stops)
        self._vocabulary = self._new()
        self._text: str | None = None
        self._words: WordSequence | None = None

    def split(self, text: str) -> WordSequence:
        if self._words is None or text != self._text:
            if len(self._vocabulary) > _PRETOKENS_KEPT:
                self._vocabulary = self._new()
            lines = text.splitlines()
            numbers_W, pretokens_L, words_L = self._vocabulary.encode(text, len(lines))
            self.store_given_words(text, WordSequence(lines, pretokens_L, words_L, numbers_W, self._vocabulary))
        assert self._words is not None
        return self._words

    def store_given_words(self, text: str, words: WordSequence) -> None:
        self._text, self._words = text, words


_cached_splitter = cache(_CachedSplitter)


def split_words(text: str, splitter: Splitter = "plain", language: str = "") -> WordSequence:
    """Return the words of a text; the result for the last text is cached.

    Args:
        splitter: `plain`: the words of `word_tokenize`; `lexical`: these without words of marks only, such as the bars
            of tables; `spacy`: the words of spaCy's tokenizer for the language; `nltk`: the words of NLTK.

    Raises:
        InputError: spaCy does not know the language.
    """
    return _cached_splitter(splitter, language if splitter == "spacy" else "").split(text)


def store_words_in_cache(text: str, words: WordSequence, splitter: Splitter = "plain", language: str = "") -> None:
    """Cache the words of a text that consists of lines of the last one, for `split_words`."""
    _cached_splitter(splitter, language if splitter == "spacy" else "").store_given_words(text, words)
