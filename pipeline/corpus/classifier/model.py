"""Classifiers as a file, and the scores that they give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from pipeline.core import atomic_files
from pipeline.corpus.classifier.ngrams import Buckets, buckets
from pipeline.corpus.classifier.training import Floats
from pipeline.corpus.text.compiled import compiled


@compiled
def _mean(buckets_M: Buckets, weights_B: npt.NDArray[np.float32]) -> float:
    total = 0.0
    for bucket in buckets_M:
        total += weights_B[bucket]
    return total / max(len(buckets_M), 1)


@dataclass(frozen=True)
class Classifier:
    """The weight of each bucket of n-grams, (BUCKETS,), and what makes a probability of a text's mean weight."""

    weights_B: npt.NDArray[np.float32]
    slope: float
    constant: float

    def probabilities(self, means_N: Floats) -> Floats:
        """Return the scores, from 0 to 1, of texts with these mean weights."""
        exponents = np.clip(self.slope * means_N + self.constant, -700, 700)
        scores: Floats = 1 / (1 + np.exp(-exponents))
        return scores

    def scores(self, texts: Iterable[str]) -> Floats:
        """Return how likely each text is a good one, if good and bad ones are equally frequent, shape (N,)."""
        return self.probabilities(np.array([_mean(buckets(text), self.weights_B) for text in texts], dtype=np.float64))


def save(classifiers: dict[str, Classifier], path: Path) -> None:
    """Write classifiers, by language."""
    tensors = {}
    for language, classifier in sorted(classifiers.items()):
        tensors[f"{language}.weights"] = classifier.weights_B
        tensors[f"{language}.calibration"] = np.array([classifier.slope, classifier.constant])
    with atomic_files.mode_of_umask(path):
        save_file(tensors, path)


def load(path: Path) -> dict[str, Classifier]:
    """Return the classifiers of a file, by language."""
    tensors = load_file(path)
    found = {}
    for name in sorted(tensors):
        language, _, kind = name.rpartition(".")
        if kind == "weights":
            slope, constant = map(float, tensors[f"{language}.calibration"])
            found[language] = Classifier(tensors[name], slope, constant)
    return found
