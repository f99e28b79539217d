"""Trains the quality classifiers of a corpus, one per language, and evaluates them on held-out texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.corpus.classifier.classifier_training import (
    THRESHOLD,
    Places,
    SeedTexts,
    TextSplits,
    calibrate,
    classification_metrics,
    read_labeled_training_texts,
    score_texts_by_ngrams,
    split_texts,
    train,
)
from pipeline.corpus.classifier.linear_classifier import Floats, LinearClassifier, save_classifiers
from pipeline.corpus.settings import QualitySettings


def run(settings: QualitySettings, *, files: list[Path], model: Path, evaluation: Path) -> dict[str, Any]:
    """Write the classifiers and their evaluation; return the numbers of texts for training and calibration.

    Args:
        files: the seed files, in the order of `settings.languages`.

    Raises:
        InputError: a file has no text, a text is both good and bad, or a class has too few texts.
    """
    classifiers: dict[str, LinearClassifier] = {}
    content: dict[str, Any] = {}
    for language, sets in settings.languages.items():
        own_files, files = files[: len(sets)], files[len(sets) :]
        texts = read_labeled_training_texts(language, sets, own_files, settings.normalization)
        parts = split_texts(texts)
        weights, gap = train(texts.shares.select_texts(parts.training), texts.good_N[parts.training])
        slope, constant = calibrate(_score_texts(texts, parts.calibration, weights), texts.good_N[parts.calibration])
        classifiers[language] = LinearClassifier(weights, slope, constant)
        content[language] = {
            "seeds": [
                {**seeds.model_dump(), "texts": int((texts.sets_N == number).sum())}
                for number, seeds in enumerate(sets)
            ],
            "gap": gap,
            "training": _count_labels(texts, parts.training),
            "calibration": _count_labels(texts, parts.calibration),
            "held_out": _evaluate(texts, parts, parts.held_out, classifiers[language]),
            "other_files": _evaluate(texts, parts, parts.other_files, classifiers[language]),
        }
        print(f"{language}: trained on {len(parts.training)} texts", flush=True)
    save_classifiers(classifiers, model)
    written = {"threshold": THRESHOLD, "languages": content}
    evaluation.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {
        language: {part: counts[part] for part in ("training", "calibration")} for language, counts in content.items()
    }


def _score_texts(texts: SeedTexts, places: Places, weights: Any) -> Floats:
    return score_texts_by_ngrams(*texts.shares.select_texts(places), weights)


def _count_labels(texts: SeedTexts, places: Places) -> dict[str, int]:
    good = int(texts.good_N[places].sum())
    return {"good": good, "bad": len(places) - good}


def _evaluate(
    texts: SeedTexts, parts: TextSplits, places: Places, classifier: LinearClassifier
) -> dict[str, Any] | None:
    """Return the metrics of the classifier and of baselines on some texts; None without texts.

    The baselines are the majority class of the training texts, and logistic regressions on text length and on the
    share of stop words.
    """
    if len(places) == 0:
        return None
    good, trained = texts.good_N[places], texts.good_N[parts.training]
    scores = {
        "classifier": classifier.probabilities(_score_texts(texts, places, classifier.weights_B)),
        "majority": np.full(len(places), float(2 * trained.sum() >= len(trained))),
    }
    trivial = {"length": np.log(texts.characters_N), "stop_words": texts.stop_words_N}
    for name, values in trivial.items():
        if values.any():
            one = LinearClassifier(classifier.weights_B, *calibrate(values[parts.training], trained))
            scores[name] = one.probabilities(values[places])
    return {
        **_count_labels(texts, places),
        "methods": {name: classification_metrics(values, good) for name, values in scores.items()},
    }
