"""Quality classifiers: trained on the seeds of each language, and compared with baselines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.corpus import quality
from pipeline.corpus.classifier.linear_classifier import LinearClassifier, load_classifiers
from pipeline.corpus.settings import Normalization, QualitySettings
from tests.corpus.classifier.conftest import menus, seeds, sentences

Write = Callable[..., Any]
__all__ = ["seeds"]


def trained(folder: Path, **languages: list[Any]) -> dict[str, Any]:
    """Train, and return the evaluation file and the step's counts."""
    settings = QualitySettings(
        normalization=Normalization(), languages={code: [one for one, _ in sets] for code, sets in languages.items()}
    )
    counts = quality.run(
        settings,
        files=[path for sets in languages.values() for _, path in sets],
        model=folder / "quality.safetensors",
        evaluation=folder / "quality.json",
    )
    return {**json.loads((folder / "quality.json").read_text()), "counts": counts}


def test_each_language_has_its_own_classifier_and_metrics(seeds: Write, tmp_path: Path) -> None:
    good, bad = seeds("good", "good", sentences(100, 1)), seeds("bad", "bad", menus(60, 2))
    report = trained(
        tmp_path,
        en=[seeds("en", "good", menus(60, 5)), seeds("un", "bad", sentences(60, 6))],
        nl=[good, bad, seeds("c", "good", sentences(9, 3), True), seeds("d", "bad", menus(7, 4), True)],
    )
    nl = report["languages"]["nl"]
    assert [(one["name"], one["label"], one["license"], one["texts"]) for one in nl["seeds"]] == [
        ("good.jsonl", "good", "CC0-1.0", 100),
        ("bad.jsonl", "bad", "CC0-1.0", 60),
        ("c.jsonl", "good", "CC0-1.0", 9),
        ("d.jsonl", "bad", "CC0-1.0", 7),
    ]
    assert nl["training"] == {"good": 70, "bad": 42} and nl["calibration"] == {"good": 10, "bad": 6}
    assert report["counts"]["nl"] == {key: nl[key] for key in ("training", "calibration")}
    assert (nl["held_out"]["good"], nl["held_out"]["bad"]) == (20, 12)
    assert (nl["other_files"]["good"], nl["other_files"]["bad"]) == (9, 7)
    assert report["languages"]["en"]["other_files"] is None
    for place in ("held_out", "other_files"):
        methods = nl[place]["methods"]
        assert [*methods] == ["classifier", "majority", "length", "stop_words"]
        assert methods["classifier"]["auc"]["value"] == methods["classifier"]["f1"]["value"] == 1
        assert methods["majority"]["auc"]["value"] == 0.5 and methods["majority"]["recall"]["value"] == 1
        assert methods["majority"]["precision"]["value"] == nl[place]["good"] / (nl[place]["good"] + nl[place]["bad"])
    classifiers = load_classifiers(tmp_path / "quality.safetensors")
    prose, menu = sentences(1, 9), menus(1, 9)
    assert classifiers["nl"].score_texts(prose)[0] > 0.8 > 0.2 > classifiers["nl"].score_texts(menu)[0]
    assert classifiers["en"].score_texts(menu)[0] > 0.8 > 0.2 > classifiers["en"].score_texts(prose)[0]


def test_baseline_metrics_are_those_of_length_and_stop_words(seeds: Write, tmp_path: Path) -> None:
    """Good texts are longer here and have the same words."""
    short = [text[: len(text) // 9] for text in sentences(80, 7)]
    report = trained(tmp_path, nl=[seeds("g", "good", sentences(80, 1)), seeds("b", "bad", short)])
    methods = report["languages"]["nl"]["held_out"]["methods"]
    assert methods["length"]["auc"]["value"] > 0.98 and methods["stop_words"]["auc"]["value"] < 0.9
    report = trained(tmp_path, fy=[seeds("g", "good", sentences(80, 1)), seeds("b", "bad", short)])
    assert [*report["languages"]["fy"]["held_out"]["methods"]] == ["classifier", "majority", "length"]


def test_classifier_bytes_do_not_depend_on_threads_or_text_order(seeds: Write, tmp_path: Path) -> None:
    good, bad = sentences(70, 1), menus(60, 2)
    script = (
        "import sys; from pathlib import Path; from pipeline.corpus import quality; "
        "from pipeline.corpus.settings import QualitySettings; "
        "quality.run(QualitySettings.model_validate_json(sys.argv[1]), files=[*map(Path, sys.argv[2:4])], "
        "model=Path(sys.argv[4]), evaluation=Path(sys.argv[5]))"
    )
    written = set()
    for threads, order in (("1", 1), ("4", -1)):
        sets = [seeds("good", "good", good[::order]), seeds("bad", "bad", bad[::order])]
        settings = QualitySettings(normalization=Normalization(), languages={"nl": [one for one, _ in sets]})
        out = [str(tmp_path / f"model{threads}"), str(tmp_path / f"report{threads}")]
        variables = {f"{name}_NUM_THREADS": threads for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
        command = [sys.executable, "-c", script, settings.model_dump_json(), *(str(path) for _, path in sets), *out]
        subprocess.run(command, check=True, env={**os.environ, **variables})
        written.add(Path(out[0]).read_bytes())
    assert len(written) == 1


def test_score_is_a_logistic_function_of_the_mean_ngram_weight() -> None:
    from pipeline.corpus.classifier.linear_classifier import BUCKETS, ngram_buckets

    weights = np.random.default_rng(1).normal(size=BUCKETS).astype(np.float32)
    texts = ["De boot ligt bij de brug.", "", "x" * 9]
    expected = [
        1 / (1 + np.exp(-(3 * (np.mean([float(weights[one]) for one in ngram_buckets(text)]) if text else 0) - 0.5)))
        for text in texts
    ]
    assert LinearClassifier(weights, 3.0, -0.5).score_texts(texts) == pytest.approx(expected)
