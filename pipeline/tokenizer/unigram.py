"""Trains the pieces of a unigram tokenizer with compiled, deterministic code.

The algorithm is Kudo 2018, https://aclanthology.org/P18-1007, as in SentencePiece. The seed pieces are the most
frequent substrings, weighted by length. Expectation maximization estimates their probabilities. The pieces whose
removal costs the least likelihood are removed, a quarter at a time, down to the vocabulary size. The trainer of the
library `tokenizers` is not deterministic: it reads words in an order that differs between processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydivsufsort import divsufsort
from scipy.special import digamma
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer

from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.tokenizer.settings import BYTE_ALPHABET

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

SEPARATOR = 0xFF  # a byte that is invalid in UTF-8
MAXIMUM_SEED_PIECES = 1_000_000
MINIMUM_EXPECTED = 0.5  # expected occurrences of a kept piece


class WordCounts(NamedTuple):
    """The concatenated words, each followed by SEPARATOR, with their ends and occurrences."""

    letters: Bytes
    ends: Integers
    counts: Integers


def find_seed_pieces(words: WordCounts, minimum_frequency: int, longest_bytes: int) -> tuple[Bytes, Integers, Reals]:
    """Return letters, starts and frequencies of the seed pieces: all bytes and the best substrings.

    Candidates are substrings that are not always followed by the same letter, and the words. The MAXIMUM_SEED_PIECES
    with the largest frequency times length are chosen; ties are in alphabetical order.
    """
    text, ends, counts = words
    order = divsufsort(text).astype(np.int64)
    word_of = np.searchsorted(ends, np.arange(len(text)))
    common = _longest_common_prefixes(text, order, np.minimum(ends[word_of] - np.arange(len(text)), longest_bytes))
    weights = counts[word_of]
    summed = np.append(0, np.cumsum(weights[order]))
    places, lengths, substring_counts = _find_repeated_substrings(order, common, summed, minimum_frequency)
    begins = np.append(0, ends[:-1] + 1)
    words_whole = (counts >= minimum_frequency) & (ends - begins > 1) & (ends - begins <= longest_bytes)
    places = np.append(places, begins[words_whole])
    lengths = np.append(lengths, (ends - begins)[words_whole])
    substring_counts = np.append(substring_counts, counts[words_whole])
    best = np.sort(np.argsort(-(substring_counts * lengths), kind="stable")[:MAXIMUM_SEED_PIECES])
    of_bytes = np.bincount(text, weights=weights.astype(np.float64), minlength=BYTE_ALPHABET)
    of_bytes[SEPARATOR] = 0
    frequency_of = dict(
        zip((bytes([byte]) for byte in range(BYTE_ALPHABET)), np.maximum(of_bytes, MINIMUM_EXPECTED), strict=True)
    )
    for place, length, frequency in zip(places[best], lengths[best], substring_counts[best], strict=True):
        frequency_of.setdefault(text[place : place + length].tobytes(), frequency)  # a substring before an equal word
    starts = np.append(0, np.cumsum([len(piece) for piece in frequency_of]))
    frequencies = np.array([*frequency_of.values()], dtype=np.float64)
    return np.frombuffer(bytearray(b"".join(frequency_of)), dtype=np.uint8), starts, frequencies


@cached_njit
def _longest_common_prefixes(text: Bytes, order: Integers, limits: Integers) -> Integers:
    """Return the longest common prefix of each suffix and the one before it, limited to the word and piece length.

    Kasai et al. 2001, https://doi.org/10.1007/3-540-48194-X_17.

    Args:
        limits: the maximum prefix length at each position.
    """
    rank = np.empty(len(order), dtype=np.int64)
    for place in range(len(order)):
        rank[order[place]] = place
    common = np.zeros(len(order), dtype=np.int64)
    length = 0
    for start in range(len(order)):
        if rank[start] == 0:
            length = 0
            continue
        other = order[rank[start] - 1]
        while (
            start + length < len(text) and other + length < len(text) and text[start + length] == text[other + length]
        ):
            length += 1
        common[rank[start]] = min(length, limits[start], limits[other])
        length = max(length - 1, 0)
    return common


@cached_njit
def _find_repeated_substrings(
    order: Integers, common: Integers, summed: Integers, minimum_frequency: int
) -> tuple[Integers, Integers, Integers]:
    """Return position, length and frequency of substrings of at least two bytes that different letters follow.

    They are the LCP intervals of the suffix array, found with a stack: Abouelhoda et al. 2004,
    https://doi.org/10.1016/S1570-8667(03)00065-0.
    """
    places = np.empty(len(order), dtype=np.int64)
    lengths = np.empty(len(order), dtype=np.int64)
    frequencies = np.empty(len(order), dtype=np.int64)
    many = 0
    begin = np.empty(len(order) + 1, dtype=np.int64)
    depth = np.empty(len(order) + 1, dtype=np.int64)
    top = 0
    begin[0], depth[0] = 0, 0
    for place in range(1, len(order) + 1):
        now = common[place] if place < len(order) else 0
        first = place - 1
        while depth[top] > now:
            frequency = summed[place] - summed[begin[top]]
            if depth[top] > 1 and frequency >= minimum_frequency:
                places[many], lengths[many], frequencies[many] = order[begin[top]], depth[top], frequency
                many += 1
            first = begin[top]
            top -= 1
        if depth[top] < now:
            top += 1
            begin[top], depth[top] = first, now
    return places[:many], lengths[:many], frequencies[:many]


KEPT_SHARE = 0.75  # of the pieces in each pruning
SPARE_FACTOR = 1.1  # pruning stops at this multiple of the vocabulary; the rest is chosen by probability
ROUNDS = 2  # of expectation maximization per pruning
TEXTS_PER_BATCH = 256
_LOSS_OF_UNUSED = -np.inf  # the loss of a piece that no best segmentation uses


def count_words(pretokenizer: Any, texts: Iterable[str], second_pass: Iterable[str]) -> dict[str, int]:
    """Return the occurrences of each word of the texts, in the byte-level alphabet, sorted.

    Args:
        second_pass: the same texts again.
    """
    counter = Tokenizer(WordLevel())
    counter.pre_tokenizer = pretokenizer
    trainer = WordLevelTrainer(vocab_size=2**31, min_frequency=0, show_progress=False)
    counter.train_from_iterator(texts, trainer)
    counts = np.zeros(counter.get_vocab_size(), dtype=np.int64)
    rest = iter(second_pass)
    while batch := list(islice(rest, TEXTS_PER_BATCH)):
        for encoding in counter.encode_batch_fast(batch, add_special_tokens=False):
            numbers, times = np.unique(np.array(encoding.ids, dtype=np.int64), return_counts=True)
            counts[numbers] += times
    return {word: int(counts[number]) for word, number in sorted(counter.get_vocab().items())}


class _Trie(NamedTuple):
    """A trie of pieces: its edges in a hash table, and the number of the piece that ends at each node, or -1."""

    keys: Integers
    children: Integers
    piece_at: Integers


def train_pieces(
    words: dict[bytes, int], size: int, minimum_frequency: int, longest_bytes: int
) -> list[tuple[bytes, float]]:
    """Return at most `size` pieces with their log-probabilities, the most probable first, including all bytes.

    Args:
        words: occurrences of each word.
        size: the number of pieces, at least 256.
        minimum_frequency: minimum occurrences of a seed piece of more than one byte.
        longest_bytes: maximum length of a piece.
    """
    ordered = sorted(words)
    text = np.frombuffer(bytearray(b"".join(word + bytes([SEPARATOR]) for word in ordered)), dtype=np.uint8)
    counts = np.array([words[word] for word in ordered], dtype=np.int64)
    table = WordCounts(text, np.flatnonzero(text == SEPARATOR).astype(np.int64), counts)
    letters, starts, frequencies = find_seed_pieces(table, minimum_frequency, longest_bytes)
    scores = np.log(frequencies / frequencies.sum())
    while True:
        for _ in range(ROUNDS):
            expected = _expected_counts(table, _build_trie(letters, starts), scores)
            is_kept = (np.diff(starts) == 1) | (expected >= MINIMUM_EXPECTED)
            letters, starts = _select_pieces(letters, starts, is_kept)
            expected = np.maximum(expected[is_kept], MINIMUM_EXPECTED)
            scores = digamma(expected) - digamma(expected.sum())
        wanted = max(int(size * SPARE_FACTOR), BYTE_ALPHABET)
        if len(scores) <= wanted:
            break
        trie = _build_trie(letters, starts)
        losses = _piece_losses(letters, starts, trie, scores, _viterbi_counts(table, trie, scores, np.diff(starts)))
        is_kept = np.zeros(len(scores), dtype=np.bool_)
        is_kept[np.argsort(-losses, kind="stable")[: max(wanted, int(len(scores) * KEPT_SHARE))]] = True
        letters, starts = _select_pieces(letters, starts, is_kept)
        scores = scores[is_kept]
    spelled = [letters[begin:end].tobytes() for begin, end in pairwise(starts.tolist())]
    ranked = sorted(zip(spelled, scores.tolist(), strict=True), key=lambda piece: (-piece[1], piece[0]))
    longer = [piece for piece, _ in ranked if len(piece) > 1][: size - BYTE_ALPHABET]
    chosen = {*longer, *(piece for piece, _ in ranked if len(piece) == 1)}
    return [(piece, score) for piece, score in ranked if piece in chosen]


def _select_pieces(letters: Bytes, starts: Integers, stays: npt.NDArray[np.bool_]) -> tuple[Bytes, Integers]:
    lengths = np.diff(starts)
    return letters[np.repeat(stays, lengths)], np.append(0, np.cumsum(lengths[stays]))


def _build_trie(letters: Bytes, starts: Integers) -> _Trie:
    slots = 1 << int(2 * len(letters)).bit_length()
    keys, children = np.full(slots, -1, dtype=np.int64), np.empty(slots, dtype=np.int64)
    trie = _Trie(keys, children, np.full(len(letters) + 1, -1, dtype=np.int64))
    _insert_pieces(letters, starts, trie)
    return trie


@cached_njit
def _find_slot(keys: Integers, key: Any) -> int:
    mask = len(keys) - 1
    slot: int = ((key * 0x9E3779B97F4A7C1) >> 17) & mask
    while keys[slot] != key and keys[slot] != -1:
        slot = (slot + 1) & mask
    return slot


@cached_njit
def _insert_pieces(letters: Bytes, starts: Integers, trie: _Trie) -> None:
    nodes = 1
    for piece in range(len(starts) - 1):
        node = 0
        for place in range(starts[piece], starts[piece + 1]):
            key = node * 256 + np.int64(letters[place])
            slot = _find_slot(trie.keys, key)
            if trie.keys[slot] == -1:
                trie.keys[slot], trie.children[slot] = key, nodes
                nodes += 1
            node = trie.children[slot]
        trie.piece_at[node] = piece


@cached_njit
def _expected_counts(words: WordCounts, trie: _Trie, scores: Reals) -> Reals:
    """Return the expected occurrences of each piece over all segmentations of the words (forward-backward)."""
    expected = np.zeros(len(scores))
    longest = 0
    begin = 0
    for end in words.ends:
        longest = max(longest, end - begin)
        begin = end + 1
    ahead = np.empty(longest + 1)
    behind = np.empty(longest + 1)
    begin = 0
    for word in range(len(words.ends)):
        length = words.ends[word] - begin
        ahead[: length + 1] = -np.inf
        ahead[0] = 0.0
        for start in range(length):
            node = 0
            for place in range(start, length):
                slot = _find_slot(trie.keys, node * 256 + np.int64(words.letters[begin + place]))
                if trie.keys[slot] == -1:
                    break
                node = trie.children[slot]
                piece = trie.piece_at[node]
                if piece >= 0:
                    ahead[place + 1] = np.logaddexp(ahead[place + 1], ahead[start] + scores[piece])
        behind[: length + 1] = -np.inf
        behind[length] = 0.0
        for start in range(length - 1, -1, -1):
            node = 0
            for place in range(start, length):
                slot = _find_slot(trie.keys, node * 256 + np.int64(words.letters[begin + place]))
                if trie.keys[slot] == -1:
                    break
                node = trie.children[slot]
                piece = trie.piece_at[node]
                if piece >= 0:
                    path = scores[piece] + behind[place + 1]
                    behind[start] = np.logaddexp(behind[start], path)
                    expected[piece] += words.counts[word] * np.exp(ahead[start] + path - ahead[length])
        begin = words.ends[word] + 1
    return expected


@cached_njit
def _viterbi(letters: Bytes, trie: _Trie, scores: Reals, without: int, best: Reals, last: Integers) -> None:
    """Find the best segmentation of letters without one piece (Viterbi): write score and last piece of each prefix."""
    best[: len(letters) + 1] = -np.inf
    best[0] = 0.0
    for start in range(len(letters)):
        node = 0
        for place in range(start, len(letters)):
            slot = _find_slot(trie.keys, node * 256 + np.int64(letters[place]))
            if trie.keys[slot] == -1:
                break
            node = trie.children[slot]
            piece = trie.piece_at[node]
            if piece >= 0 and piece != without and best[start] + scores[piece] > best[place + 1]:
                best[place + 1], last[place + 1] = best[start] + scores[piece], piece


@cached_njit
def _viterbi_counts(words: WordCounts, trie: _Trie, scores: Reals, lengths: Integers) -> Reals:
    piece_counts = np.zeros(len(scores))
    best = np.empty(len(words.letters) + 1)
    last = np.empty(len(words.letters) + 1, dtype=np.int64)
    begin = 0
    for word in range(len(words.ends)):
        end = words.ends[word]
        _viterbi(words.letters[begin:end], trie, scores, -1, best, last)
        place = end - begin
        while place > 0:
            piece_counts[last[place]] += words.counts[word]
            place -= lengths[last[place]]
        begin = end + 1
    return piece_counts


@cached_njit
def _piece_losses(letters: Bytes, starts: Integers, trie: _Trie, scores: Reals, counts: Reals) -> Reals:
    """Return the loss of log-likelihood without each piece, if its best segmentation replaces it."""
    losses = np.empty(len(scores))
    total = counts.sum()
    best = np.empty(len(letters) + 1)
    last = np.empty(len(letters) + 1, dtype=np.int64)
    for piece in range(len(scores)):
        begin, end = starts[piece], starts[piece + 1]
        if end - begin == 1:
            losses[piece] = np.inf
            continue
        _viterbi(letters[begin:end], trie, scores, piece, best, last)
        if counts[piece] == 0 or best[end - begin] >= scores[piece]:
            losses[piece] = _LOSS_OF_UNUSED
            continue
        place, parts, log_parts = end - begin, 0, 0.0
        while place > 0:
            log_parts += np.log(counts[last[place]] + counts[piece])
            parts += 1
            place -= starts[last[place] + 1] - starts[last[place]]
        log_parts -= parts * np.log(total + counts[piece] * (parts - 1))
        losses[piece] = counts[piece] / total * (np.log(counts[piece]) - np.log(total) - log_parts)
    return losses
