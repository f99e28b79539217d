"""Trains a logistic regression on n-gram frequencies of texts, and evaluates it with confidence intervals."""

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
from pipeline.corpus.classifier.settings import SeedFile
from pipeline.corpus.duplicates.minhash import MinhashSigner
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.corpus.settings import Normalization, SignatureSettings
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.text_cleaning import TextCleaner
from pipeline.corpus.text.word_hashes import hash_text_words
from pipeline.sources.raw_documents import FieldNames, make_raw_documents
from pipeline.sources.record_formats import read_records

Booleans = npt.NDArray[np.bool_]

REGULARIZATION = 1e-5
MAXIMUM_GAP = 1e-3  # nats per text
MAXIMUM_ROUNDS = 200
THRESHOLD = 0.5  # a text with at least this score is classified as good


class NgramFrequencies(NamedTuple):
    """The relative frequency of each hash bucket among the n-grams of N texts: M nonzero values, as in a CSR matrix.

    Attributes:
        buckets_M: the buckets of the first text in order, then of the second, ….
        bounds: the start of each text and the end of the last one, shape (N + 1,).
    """

    buckets_M: npt.NDArray[np.int32]
    shares_M: npt.NDArray[np.float32]
    bounds: npt.NDArray[np.int64]

    def select_texts(self, texts: npt.NDArray[np.int64]) -> NgramFrequencies:
        """Return the shares of the texts with these indices."""
        sizes = np.diff(self.bounds)[texts]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1][texts] - bounds[:-1], sizes)
        return NgramFrequencies(self.buckets_M[places], self.shares_M[places], bounds)


def text_ngram_shares(texts: Iterable[str]) -> NgramFrequencies:
    """Return the n-gram shares of texts; texts are not kept in memory."""
    text_buckets, parts, sizes = [], [], [0]
    for text in texts:
        all_of_text = ngram_buckets(text)
        different, counts = np.unique(all_of_text, return_counts=True)
        text_buckets.append(different)
        parts.append((counts / max(len(all_of_text), 1)).astype(np.float32))
        sizes.append(len(different))
    return NgramFrequencies(
        np.concatenate([np.empty(0, np.int32), *text_buckets]),
        np.concatenate([np.empty(0, np.float32), *parts]),
        np.cumsum(sizes),
    )


def balanced_sample_weights(good: Booleans) -> Floats:
    """Return the weight of each text, (N,); both classes sum to one half."""
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
    """Update the dual variable of each text, in this order, and the model, in place: one epoch of coordinate ascent."""
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
def score_texts_by_ngrams(
    buckets_M: npt.NDArray[np.int32],
    shares_M: npt.NDArray[np.float32],
    bounds: npt.NDArray[np.int64],
    model_B: npt.NDArray[np.floating],
) -> Floats:
    """Return the mean model weight of each text over its n-grams, shape (N,)."""
    values = np.zeros(len(bounds) - 1)
    for text in range(len(values)):
        for place in range(bounds[text], bounds[text + 1]):
            values[text] += shares_M[place] * model_B[buckets_M[place]]
    return values


def _entropy(duals: Floats) -> Floats:
    inside = np.clip(duals, 1e-300, 1 - 1e-16)
    return -(inside * np.log(inside) + (1 - inside) * np.log1p(-inside))


def train(seeds: NgramFrequencies, good: Booleans) -> tuple[npt.NDArray[np.float32], float]:
    """Train a logistic regression on the mean weight of a text's n-grams.

    Minimizes the mean of log(1 + exp(-mean weight)) over good texts, with + over bad texts, both classes weighted by
    one half, plus REGULARIZATION / 2 times the sum of squares. The method is stochastic dual coordinate ascent
    (Shalev-Shwartz and Zhang, J. Mach. Learn. Res. 14, 2013, section 6.2). The order of texts has a fixed seed, so the
    result does not depend on the number of threads. Shares add up to 1, so the weights include the intercept.

    Returns:
        The weight of each bucket, (BUCKETS,), and the duality gap, an upper bound of the suboptimality.
    """
    signs, weights = np.where(good, 1.0, -1.0), balanced_sample_weights(good)
    duals, model = np.zeros(len(good)), np.zeros(BUCKETS)
    generator = np.random.Generator(np.random.PCG64(1))
    gap = np.inf
    for _ in range(MAXIMUM_ROUNDS):
        _update_duals(*seeds, generator.permutation(len(good)), signs, weights, duals, model)
        losses = np.logaddexp(0, -signs * score_texts_by_ngrams(*seeds, model))
        gap = float((weights * (losses - _entropy(duals))).sum() + REGULARIZATION * (model * model).sum())
        if gap < MAXIMUM_GAP:
            break
    return model.astype(np.float32), gap


def calibrate(values: Floats, good: Booleans) -> tuple[float, float]:
    """Return slope and intercept of a logistic function from values to the probability of a good text.

    Both classes weigh one half. Labels are smoothed (Platt 1999), so that the slope is finite for separable classes.
    Fitted with Newton's method.
    """
    number_good, number_bad = int(good.sum()), int((~good).sum())
    wanted = np.where(good, (number_good + 1) / (number_good + 2), 1 / (number_bad + 2))
    weights = balanced_sample_weights(good)
    center, scale = float(values.mean()), float(values.std()) or 1.0
    rows = np.stack([(values - center) / scale, np.ones(len(values))])
    parameters = np.zeros(2)
    for _ in range(50):
        predicted = 1 / (1 + np.exp(-np.clip(parameters @ rows, -500, 500)))
        gradient = (rows * (weights * (predicted - wanted))).sum(axis=1)
        curvature = weights * predicted * (1 - predicted)
        hessian = np.array([[(curvature * a * b).sum() for a in rows] for b in rows]) + 1e-9 * np.eye(2)
        change = np.linalg.solve(hessian, gradient)
        parameters -= change * min(1.0, 4.0 / float(np.abs(change).max() or 1.0))
        if np.abs(change).max() < 1e-10:
            break
    slope = float(parameters[0]) / scale
    return slope, float(parameters[1]) - slope * center


def area_under_curve(scores: Floats, good: Booleans) -> ConfidenceInterval:
    """Return the area under the ROC curve: the probability that a good text scores above a bad one (ties count half).

    The 95 % interval inverts the test with the standard error of Hanley and McNeil (Radiology 143, 1982), as Wilson's
    interval does for a proportion. So it has a positive width even without a wrong pair.
    """
    ordered, above = np.sort(scores[~good]), scores[good]
    below = np.searchsorted(ordered, above, "left") + np.searchsorted(ordered, above, "right")
    value = float(below.sum()) / 2 / (len(above) * len(ordered))
    ones, others, z = len(above) - 1, len(ordered) - 1, float(ndtri((1 + CONFIDENCE_LEVEL) / 2))

    def make_auc_interval_bound_function(sign: int) -> Callable[[float], float]:
        def interval_bound_equation(a: float) -> float:
            variance = a * (1 - a) + ones * (a / (2 - a) - a * a) + others * (2 * a * a / (1 + a) - a * a)
            return z * math.sqrt(variance / ((ones + 1) * (others + 1))) - sign * (value - a)

        return interval_bound_equation

    least, most = 1e-9, 1 - 1e-9
    low = 0.0 if value <= least else float(brentq(make_auc_interval_bound_function(1), 0.0, min(value, most)))
    high = 1.0 if value >= most else float(brentq(make_auc_interval_bound_function(-1), max(value, least), 1.0))
    return ConfidenceInterval(value, low, high)


def _share_with_interval(hits: Booleans) -> dict[str, Any] | None:
    return proportion_interval(hits, np.ones(len(hits)))._asdict() if len(hits) else None


def classification_metrics(scores: Floats, good: Booleans) -> dict[str, Any]:
    """Return precision and recall of good texts, F1 and AUC, each with its interval; None where undefined.

    A text is classified as good from THRESHOLD on.
    """
    is_positive = scores >= THRESHOLD
    either = is_positive | good
    overlap = proportion_interval((is_positive & good)[either], np.ones(int(either.sum())))
    return {
        "precision": _share_with_interval(good[is_positive]),
        "recall": _share_with_interval(is_positive[good]),
        "f1": overlap.apply_increasing_function(lambda shared: 2 * shared / (1 + shared))._asdict(),
        "auc": area_under_curve(scores, good)._asdict(),
    }


MINIMUM_TEXTS = 50
HELD_OUT, CALIBRATION = 0.2, 0.1
MAXIMUM_RECORD_BYTES = 20_000_000

Places = npt.NDArray[np.int64]


class SeedTexts(NamedTuple):
    """Features of N texts without near duplicates, in the order of their hashes.

    Attributes:
        sets_N: the number of the file of each text.
        stop_words_N: the share of stop words; 0 if none are known for the language.
    """

    shares: NgramFrequencies
    good_N: Booleans
    held_out_N: Booleans
    sets_N: Places
    characters_N: Places
    stop_words_N: Floats


class TextSplits(NamedTuple):
    """Indices of texts for training, for calibration, held out of the same files, and of held-out files."""

    training: Places
    calibration: Places
    held_out: Places
    other_files: Places


def _read_texts(seeds: SeedFile, path: Path, normalizer: TextCleaner) -> Iterator[str]:
    keys = FieldNames(text=seeds.text_key, id="", url="", holder="")  # empty names are not read
    for document, _ in make_raw_documents(read_records(path, path.name, keys, MAXIMUM_RECORD_BYTES), path.name, keys):
        if document.text is not None and (text := normalizer.format(document.text)):
            yield text


def read_labeled_training_texts(
    language: str, sets: Sequence[SeedFile], files: Sequence[Path], normalization: Normalization
) -> SeedTexts:
    """Return the features of the texts of some files, without near duplicates.

    Of near duplicates, the one with the smallest hash is kept. One of a `held_out` file has priority, so that no
    similar text is trained on.

    Raises:
        InputError: a file has no text, a text is both good and bad, or a class has too few different texts.
    """
    normalizer, stop_words = TextCleaner(normalization), hash_text_words(FUNCTION_WORDS.get(language, []))[0]
    seen: dict[bytes, int] = {}
    signatures: list[list[int]] = []
    numbers: list[int] = []
    characters: list[int] = []
    common: list[float] = []

    def yield_distinct_texts() -> Iterator[str]:
        minhash = MinhashSigner(SignatureSettings())
        for number, (seeds, path) in enumerate(zip(sets, files, strict=True)):
            is_empty = True
            for text in _read_texts(seeds, path, normalizer):
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
                words = hash_text_words([text])[0]
                common.append(float(np.isin(words, stop_words).sum()) / max(len(words), 1))
                yield text
            if is_empty:
                raise InputError(
                    f"quality.{language}: {path} has no text in the field {seeds.text_key!r}: set its text_key, or "
                    "leave the file out"
                )

    all_shares = text_ngram_shares(yield_distinct_texts())
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
        all_shares.select_texts(kept),
        good[sets_N[kept]],
        held_out[sets_N[kept]],
        sets_N[kept],
        np.array(characters)[kept],
        np.array(common)[kept],
    )


def _cluster_near_duplicates(keys_NB: npt.NDArray[np.uint64]) -> Places:
    """Return the cluster of each text: texts that agree in a MinHash band share one, as in deduplication."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for keys in keys_NB.T:
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero((keys[order][1:] == keys[order][:-1]) & (keys[order][1:] != 0))
        pairs.append(np.stack([order[same], order[same + 1]], axis=1))
    one, other = np.concatenate(pairs).T
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(len(keys_NB), len(keys_NB)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def split_texts(texts: SeedTexts) -> TextSplits:
    """Split the texts: in each class, those with the smallest hashes are held out, and the next ones calibrate."""
    parts: tuple[list[Places], list[Places], list[Places]] = ([], [], [])
    for wanted in (texts.good_N, ~texts.good_N):
        places = np.flatnonzero(wanted & ~texts.held_out_N)
        first = round(HELD_OUT * len(places))
        second = first + round(CALIBRATION * len(places))
        for part, chosen in zip(parts, (places[second:], places[first:second], places[:first]), strict=True):
            part.append(chosen)
    training, calibration, held_out = (np.sort(np.concatenate(part)) for part in parts)
    return TextSplits(training, calibration, held_out, np.flatnonzero(texts.held_out_N))
