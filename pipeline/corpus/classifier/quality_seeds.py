"""Reads the texts that a classifier is trained and measured on, and divides them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.core.errors import InputError
from pipeline.corpus.classifier.classifier_training import Booleans, Shares, shares
from pipeline.corpus.classifier.linear_classifier import Floats
from pipeline.corpus.classifier.settings import Seeds
from pipeline.corpus.copies.minhash import MinhashSignature
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.corpus.settings import Normalisation, Signatures
from pipeline.corpus.text.normalise import Normalise
from pipeline.corpus.text.word_hashes import hash_texts
from pipeline.sources.raw_documents import Keys, raw_documents
from pipeline.sources.record_formats import read_records

LEAST_TEXTS = 50
HELD_OUT, CALIBRATION = 0.2, 0.1
LARGEST_BYTES = 20_000_000

Places = npt.NDArray[np.int64]


class Texts(NamedTuple):
    """What is kept of N texts, no two of which are near copies, in the order of their hashes.

    Attributes:
        sets_N: the number of the file that each is from.
        stop_words_N: the share of stop words; all 0 where none are known for the language.
    """

    shares: Shares
    good_N: Booleans
    held_out_N: Booleans
    sets_N: Places
    characters_N: Places
    stop_words_N: Floats


class Parts(NamedTuple):
    """The places of the texts that are trained on, calibrated with, held out of the same files, and of other files."""

    training: Places
    calibration: Places
    held_out: Places
    other_files: Places


def _texts(seeds: Seeds, path: Path, normalise: Normalise) -> Iterator[str]:
    """Yield the texts of a file as documents are written; records without one are left out."""
    keys = Keys(text=seeds.text_key, id="", url="", holder="")  # they are not read
    for found, _ in raw_documents(read_records(path, path.name, keys, LARGEST_BYTES), path.name, keys):
        if found.text is not None and (text := normalise.format(found.text)):
            yield text


def read(language: str, sets: Sequence[Seeds], files: Sequence[Path], normalisation: Normalisation) -> Texts:
    """Return what the texts of some files are known by; near copies are one text.

    Of near copies the one with the least hash stays, but one of a file with `held_out` before all others, so that
    nothing like it is trained on.

    Raises:
        InputError: a file has no text, a text is good and bad, or a class has too few different texts.
    """
    normalise, stop_words = Normalise(normalisation), hash_texts(FUNCTION_WORDS.get(language, []))[0]
    seen: dict[bytes, int] = {}
    signatures: list[list[int]] = []
    numbers: list[int] = []
    characters: list[int] = []
    common: list[float] = []

    def new_texts(folder: str) -> Iterator[str]:
        minhash = MinhashSignature(Path(folder), Signatures())
        for number, (seeds, path) in enumerate(zip(sets, files, strict=True)):
            is_empty = True
            for text in _texts(seeds, path, normalise):
                is_empty = False
                place = seen.setdefault(hashlib.sha256(text.encode()).digest(), len(numbers))
                if place < len(numbers):
                    first = numbers[place]
                    if sets[first].label != seeds.label:
                        raise InputError(
                            f"quality.{language}: {path} calls a text {seeds.label} that {files[first]} calls "
                            f"{sets[first].label} ({text[:40]!r}): take it out of one of them"
                        )
                    if seeds.held_out:
                        numbers[place] = number
                    continue
                numbers.append(number)
                signatures.append(minhash.keys(text)[1])
                characters.append(len(text))
                words = hash_texts([text])[0]
                common.append(float(np.isin(words, stop_words).sum()) / max(len(words), 1))
                yield text
            if is_empty:
                raise InputError(
                    f"quality.{language}: {path} has no text in the field {seeds.text_key!r}: set its text_key, or "
                    "leave the file out"
                )

    with tempfile.TemporaryDirectory() as folder:
        found = shares(new_texts(folder))
    sets_N = np.array(numbers)
    held_out = np.array([seeds.held_out for seeds in sets])
    ranks = np.empty(len(seen), dtype=np.int64)
    ranks[np.array(sorted(range(len(seen)), key=[*seen].__getitem__))] = np.arange(len(seen))
    order = np.lexsort((ranks, ~held_out[sets_N]))
    clusters = _clusters(np.array(signatures, dtype=np.uint64))
    _, first = np.unique(clusters[order], return_index=True)
    kept = order[first]
    kept = kept[np.argsort(ranks[kept])]
    good = np.array([seeds.label == "good" for seeds in sets])
    for label, wanted in (("good", good), ("bad", ~good)):
        number = int((wanted & ~held_out)[sets_N[kept]].sum())
        if number < LEAST_TEXTS:
            raise InputError(
                f"quality.{language}: there are {number} different {label} texts to train on (near copies count "
                f"once) and {LEAST_TEXTS} are needed: add files to {label}"
            )
    return Texts(
        found.of(kept),
        good[sets_N[kept]],
        held_out[sets_N[kept]],
        sets_N[kept],
        np.array(characters)[kept],
        np.array(common)[kept],
    )


def _clusters(keys_NB: npt.NDArray[np.uint64]) -> Places:
    """Return for each text the number of its cluster: texts that agree in a band are in one, as in deduplication."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for keys in keys_NB.T:
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero((keys[order][1:] == keys[order][:-1]) & (keys[order][1:] != 0))
        pairs.append(np.stack([order[same], order[same + 1]], axis=1))
    one, other = np.concatenate(pairs).T
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(len(keys_NB), len(keys_NB)))
    numbers: Places = connected_components(graph, directed=False)[1].astype(np.int64)
    return numbers


def divide(texts: Texts) -> Parts:
    """Return which texts are for what: of each class those of least hash are held out, the next ones calibrate."""
    parts: tuple[list[Places], list[Places], list[Places]] = ([], [], [])
    for wanted in (texts.good_N, ~texts.good_N):
        places = np.flatnonzero(wanted & ~texts.held_out_N)
        first = round(HELD_OUT * len(places))
        second = first + round(CALIBRATION * len(places))
        for part, chosen in zip(parts, (places[second:], places[first:second], places[:first]), strict=True):
            part.append(chosen)
    training, calibration, held_out = (np.sort(np.concatenate(part)) for part in parts)
    return Parts(training, calibration, held_out, np.flatnonzero(texts.held_out_N))
