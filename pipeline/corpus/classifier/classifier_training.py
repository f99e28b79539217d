"""Trains a logistic regression on the shares that n-grams have in texts, and measures it with intervals."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import ndtri

from pipeline.core.confidence_intervals import CONFIDENCE_LEVEL, ConfidenceInterval, proportion_interval
from pipeline.core.errors import InputError
from pipeline.corpus.classifier.linear_classifier import BUCKETS, Floats, ngram_buckets
from pipeline.corpus.duplicates.minhash import MinhashSigner
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.corpus.settings import Normalization, SeedFile, SignatureSettings
from pipeline.corpus.text.numba_cache import cached_njit
from pipeline.corpus.text.text_normalizer import TextNormalizer
from pipeline.corpus.text.word_hashes import hash_texts
from pipeline.sources.raw_documents import FieldNames, make_raw_documents
from pipeline.sources.record_formats import read_records

Booleans = npt.NDArray[np.bool_]

REGULARIZATION = 1e-5
MAXIMUM_GAP = 1e-3  # nats of a text
MAXIMUM_ROUNDS = 200
THRESHOLD = 0.5  # of the score from which on a text is told to be good


class NgramShares(NamedTuple):
    """Of each text which share of its n-grams is in which bucket: N texts, M shares that are not 0.

    Attributes:
        buckets_M: the buckets of the first text in order, then of the second, ….
        bounds: where each text's begin and the last one's end, shape (N + 1,).
    """

    buckets_M: npt.NDArray[np.int32]
    shares_M: npt.NDArray[np.float32]
    bounds: npt.NDArray[np.int64]

    def select(self, texts: npt.NDArray[np.int64]) -> NgramShares:
        """Return the shares of some of the texts, which are given by their places."""
        sizes = np.diff(self.bounds)[texts]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1][texts] - bounds[:-1], sizes)
        return NgramShares(self.buckets_M[places], self.shares_M[places], bounds)


def ngram_shares(texts: Iterable[str]) -> NgramShares:
    """Return the shares of the n-grams of texts, none of which is held."""
    found, parts, sizes = [], [], [0]
    for text in texts:
        all_of_text = ngram_buckets(text)
        different, counts = np.unique(all_of_text, return_counts=True)
        found.append(different)
        parts.append((counts / max(len(all_of_text), 1)).astype(np.float32))
        sizes.append(len(different))
    return NgramShares(
        np.concatenate([np.empty(0, np.int32), *found]),
        np.concatenate([np.empty(0, np.float32), *parts]),
        np.cumsum(sizes),
    )


def class_weights(good: Booleans) -> Floats:
    """Return the weight of each text, (N,): good ones and bad ones together weigh half each."""
    return np.asarray(np.where(good, 0.5 / max(good.sum(), 1), 0.5 / max((~good).sum(), 1)))


@cached_njit
def _update_duals(
    buckets_M: npt.NDArray[np.int32],
    shares_M: npt.NDArray[np.float32],
    bounds: npt.NDArray[np.int64],
    order_N: npt.NDArray[np.int64],
    signs_N: Floats,
    weights_N: Floats,
    duals_N: Floats,
    model_B: Floats,
) -> None:
    """Move the dual of each text, in this order, towards what the loss asks for, and the model with it."""
    for text in order_N:
        value = norm = 0.0
        for place in range(bounds[text], bounds[text + 1]):
            value += shares_M[place] * model_B[buckets_M[place]]
            norm += shares_M[place] * shares_M[place]
        wanted = 1.0 / (1.0 + np.exp(signs_N[text] * value))
        step = (wanted - duals_N[text]) / (1.0 + weights_N[text] * norm / (4.0 * REGULARIZATION))
        duals_N[text] += step
        change = step * signs_N[text] * weights_N[text] / REGULARIZATION
        for place in range(bounds[text], bounds[text + 1]):
            model_B[buckets_M[place]] += change * shares_M[place]


@cached_njit
def mean_weights(
    buckets_M: npt.NDArray[np.int32],
    shares_M: npt.NDArray[np.float32],
    bounds: npt.NDArray[np.int64],
    model_B: npt.NDArray[np.floating],
) -> Floats:
    """Return of each text the mean of the model over its n-grams, shape (N,)."""
    values = np.zeros(len(bounds) - 1)
    for text in range(len(values)):
        for place in range(bounds[text], bounds[text + 1]):
            values[text] += shares_M[place] * model_B[buckets_M[place]]
    return values


def _entropy(duals: Floats) -> Floats:
    inside = np.clip(duals, 1e-300, 1 - 1e-16)
    return -(inside * np.log(inside) + (1 - inside) * np.log1p(-inside))


def train(seeds: NgramShares, good: Booleans) -> tuple[npt.NDArray[np.float32], float]:
    """Return the weight of each bucket, (BUCKETS,), by which a text's mean weight tells whether it is good.

    Least is the mean of log(1 + exp(-mean weight)) of good texts, with + of bad ones, both classes weighing half, plus
    REGULARISATION / 2 times the sum of squares. It is found by stochastic dual coordinate ascent (Shalev-Shwartz and
    Zhang, J. Mach. Learn. Res. 14, 2013, section 6.2), one text after another in an order of a fixed seed: the same
    numbers whatever the number of threads. The constant of the regression is in the weights, for shares add up to 1.

    Returns:
        The weights, and by how much the sum can still be above the least one: the gap between primal and dual.
    """
    signs, weights = np.where(good, 1.0, -1.0), class_weights(good)
    duals, model = np.zeros(len(good)), np.zeros(BUCKETS)
    generator = np.random.Generator(np.random.PCG64(1))
    gap = np.inf
    for _ in range(MAXIMUM_ROUNDS):
        _update_duals(*seeds, generator.permutation(len(good)), signs, weights, duals, model)
        losses = np.logaddexp(0, -signs * mean_weights(*seeds, model))
        gap = float((weights * (losses - _entropy(duals))).sum() + REGULARIZATION * (model * model).sum())
        if gap < MAXIMUM_GAP:
            break
    return model.astype(np.float32), gap


def calibrate(values: Floats, good: Booleans) -> tuple[float, float]:
    """Return slope and constant by which a logistic function of the values tells the probability of a good text.

    Both classes weigh half. Each label counts as a little less than sure (Platt 1999), so that the slope is finite
    where the values part the classes; Newton's method.
    """
    number_good, number_bad = int(good.sum()), int((~good).sum())
    wanted = np.where(good, (number_good + 1) / (number_good + 2), 1 / (number_bad + 2))
    weights = class_weights(good)
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    rows = np.stack([(values - centre) / scale, np.ones(len(values))])
    found = np.zeros(2)
    for _ in range(50):
        told = 1 / (1 + np.exp(-np.clip(found @ rows, -500, 500)))
        gradient = (rows * (weights * (told - wanted))).sum(axis=1)
        curvature = weights * told * (1 - told)
        hessian = np.array([[(curvature * a * b).sum() for a in rows] for b in rows]) + 1e-9 * np.eye(2)
        change = np.linalg.solve(hessian, gradient)
        found -= change * min(1.0, 4.0 / float(np.abs(change).max() or 1.0))
        if np.abs(change).max() < 1e-10:
            break
    slope = float(found[0]) / scale
    return slope, float(found[1]) - slope * centre


def area_under_curve(scores: Floats, good: Booleans) -> ConfidenceInterval:
    """Return the probability that a good text has a higher score than a bad one (equal ones count half).

    Its 95 % interval has the values from which it is not further than their standard error allows (Hanley and McNeil,
    Radiology 143, 1982), as Wilson's of a share; so it has a width where no pair is wrong, too.
    """
    ordered, above = np.sort(scores[~good]), scores[good]
    below = np.searchsorted(ordered, above, "left") + np.searchsorted(ordered, above, "right")
    value = float(below.sum()) / 2 / (len(above) * len(ordered))
    ones, others, z = len(above) - 1, len(ordered) - 1, float(ndtri((1 + CONFIDENCE_LEVEL) / 2))

    def beyond(sign: int) -> Callable[[float], float]:
        def reach(a: float) -> float:
            variance = a * (1 - a) + ones * (a / (2 - a) - a * a) + others * (2 * a * a / (1 + a) - a * a)
            return z * math.sqrt(variance / ((ones + 1) * (others + 1))) - sign * (value - a)

        return reach

    least, most = 1e-9, 1 - 1e-9
    low = 0.0 if value <= least else float(brentq(beyond(1), 0.0, min(value, most)))
    high = 1.0 if value >= most else float(brentq(beyond(-1), max(value, least), 1.0))
    return ConfidenceInterval(value, low, high)


def _share_with_interval(hits: Booleans) -> dict[str, Any] | None:
    return proportion_interval(hits, np.ones(len(hits)))._asdict() if len(hits) else None


def classification_figures(scores: Floats, good: Booleans) -> dict[str, Any]:
    """Return precision and recall of the good texts, F1 and area, each with its interval; none where nothing is told.

    A text is told to be good from THRESHOLD on.
    """
    told = scores >= THRESHOLD
    either = told | good
    overlap = proportion_interval((told & good)[either], np.ones(int(either.sum())))
    return {
        "precision": _share_with_interval(good[told]),
        "recall": _share_with_interval(told[good]),
        "f1": overlap.of(lambda shared: 2 * shared / (1 + shared))._asdict(),
        "auc": area_under_curve(scores, good)._asdict(),
    }


MINIMUM_TEXTS = 50
HELD_OUT, CALIBRATION = 0.2, 0.1
MAXIMUM_RECORD_BYTES = 20_000_000

Places = npt.NDArray[np.int64]


class SeedTexts(NamedTuple):
    """What is kept of N texts, no two of which are near copies, in the order of their hashes.

    Attributes:
        sets_N: the number of the file that each is from.
        stop_words_N: the share of stop words; all 0 where none are known for the language.
    """

    shares: NgramShares
    good_N: Booleans
    held_out_N: Booleans
    sets_N: Places
    characters_N: Places
    stop_words_N: Floats


class TextSplits(NamedTuple):
    """The places of the texts that are trained on, calibrated with, held out of the same files, and of other files."""

    training: Places
    calibration: Places
    held_out: Places
    other_files: Places


def _read_texts(seeds: SeedFile, path: Path, normalise: TextNormalizer) -> Iterator[str]:
    """Yield the texts of a file as documents are written; records without one are left out."""
    keys = FieldNames(text=seeds.text_key, id="", url="", holder="")  # they are not read
    for found, _ in make_raw_documents(read_records(path, path.name, keys, MAXIMUM_RECORD_BYTES), path.name, keys):
        if found.text is not None and (text := normalise.format(found.text)):
            yield text


def read_seed_texts(
    language: str, sets: Sequence[SeedFile], files: Sequence[Path], normalization: Normalization
) -> SeedTexts:
    """Return what the texts of some files are known by; near copies are one text.

    Of near copies the one with the least hash stays, but one of a file with `held_out` before all others, so that
    nothing like it is trained on.

    Raises:
        InputError: a file has no text, a text is good and bad, or a class has too few different texts.
    """
    normalise, stop_words = TextNormalizer(normalization), hash_texts(FUNCTION_WORDS.get(language, []))[0]
    seen: dict[bytes, int] = {}
    signatures: list[list[int]] = []
    numbers: list[int] = []
    characters: list[int] = []
    common: list[float] = []

    def new_texts() -> Iterator[str]:
        minhash = MinhashSigner(SignatureSettings())
        for number, (seeds, path) in enumerate(zip(sets, files, strict=True)):
            is_empty = True
            for text in _read_texts(seeds, path, normalise):
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
                signatures.append(minhash.band_keys(text)[1])
                characters.append(len(text))
                words = hash_texts([text])[0]
                common.append(float(np.isin(words, stop_words).sum()) / max(len(words), 1))
                yield text
            if is_empty:
                raise InputError(
                    f"quality.{language}: {path} has no text in the field {seeds.text_key!r}: set its text_key, or "
                    "leave the file out"
                )

    found = ngram_shares(new_texts())
    sets_N = np.array(numbers)
    held_out = np.array([seeds.held_out for seeds in sets])
    ranks = np.empty(len(seen), dtype=np.int64)
    ranks[np.array(sorted(range(len(seen)), key=[*seen].__getitem__))] = np.arange(len(seen))
    order = np.lexsort((ranks, ~held_out[sets_N]))
    clusters = _cluster_near_duplicates(np.array(signatures, dtype=np.uint64))
    _, first = np.unique(clusters[order], return_index=True)
    kept = order[first]
    kept = kept[np.argsort(ranks[kept])]
    good = np.array([seeds.label == "good" for seeds in sets])
    for label, wanted in (("good", good), ("bad", ~good)):
        number = int((wanted & ~held_out)[sets_N[kept]].sum())
        if number < MINIMUM_TEXTS:
            raise InputError(
                f"quality.{language}: there are {number} different {label} texts to train on (near copies count "
                f"once) and {MINIMUM_TEXTS} are needed: add files to {label}"
            )
    return SeedTexts(
        found.select(kept),
        good[sets_N[kept]],
        held_out[sets_N[kept]],
        sets_N[kept],
        np.array(characters)[kept],
        np.array(common)[kept],
    )


def _cluster_near_duplicates(keys_NB: npt.NDArray[np.uint64]) -> Places:
    """Return for each text the number of its cluster: texts that agree in a band are in one, as in deduplication."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for keys in keys_NB.T:
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero((keys[order][1:] == keys[order][:-1]) & (keys[order][1:] != 0))
        pairs.append(np.stack([order[same], order[same + 1]], axis=1))
    one, other = np.concatenate(pairs).T
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(len(keys_NB), len(keys_NB)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def split_texts(texts: SeedTexts) -> TextSplits:
    """Return which texts are for what: of each class those of least hash are held out, the next ones calibrate."""
    parts: tuple[list[Places], list[Places], list[Places]] = ([], [], [])
    for wanted in (texts.good_N, ~texts.good_N):
        places = np.flatnonzero(wanted & ~texts.held_out_N)
        first = round(HELD_OUT * len(places))
        second = first + round(CALIBRATION * len(places))
        for part, chosen in zip(parts, (places[second:], places[first:second], places[:first]), strict=True):
            part.append(chosen)
    training, calibration, held_out = (np.sort(np.concatenate(part)) for part in parts)
    return TextSplits(training, calibration, held_out, np.flatnonzero(texts.held_out_N))
