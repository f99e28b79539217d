"""The page shows the accuracy of a corpus's classifiers, and the scores of its documents."""

from __future__ import annotations

from typing import Any

from tests.report.test_page import made, outline


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.05, "high": value + 0.04}


def test_classifiers_are_next_to_baselines_and_sources_have_quartiles(run_folder: Any) -> None:
    content = run_folder.read("corpus/main/statistics.json")
    assert "Quality of texts" not in outline(made(run_folder)["page"]).text
    names = ("precision", "recall", "f1", "auc")
    methods = {
        "classifier": {name: figure(0.9) for name in names},
        "majority": {**{name: figure(0.5) for name in names}, "precision": None},
        "length": {name: figure(0.6) for name in names},
        "stop_words": {name: figure(0.7) for name in names},
    }
    metrics = {"held_out": {"good": 1200, "bad": 70, "methods": methods}, "other_files": None}
    content["quality"] = {"threshold": 0.5, "languages": {"nl": metrics, "<b>": metrics}}
    first = sorted(content["sources"])[0]
    content["sources"][first]["scores"] = {"quality": {"documents": 1027, "quartiles": [0.25, 0.5, 0.81239]}}
    run_folder.write("corpus/main/statistics.json", content)
    text = outline(made(run_folder)["page"]).text
    row = "Dutch (nl) of the same files 1,200 70 "
    interval = "0.9000 (0.8500 to 0.9400)"
    assert f"{row}the classifier {interval} {interval} {interval} {interval}" in text
    assert f"{row}the more frequent class – 0.5000 (0.4500 to 0.5400)" in text
    assert f"{row}the share of stop words 0.7000" in text and f"{row}the length 0.6000" in text
    assert "<b> of the same files" in text and "of other files 1" not in text
    assert f"{first} quality 1,027 0.2500 0.5000 0.8124" in text
    dutch = outline(made(run_folder, language="nl")["page"]).text
    assert "uit dezelfde bestanden 1.200 70 de classificator" in dutch and f"{first} kwaliteit 1.027" in dutch


def test_scores_of_other_classifiers_have_their_model_and_license(run_folder: Any) -> None:
    content = run_folder.read("corpus/main/statistics.json")
    first = sorted(content["sources"])[0]
    content["sources"][first]["scores"] = {"edu": {"documents": 7, "quartiles": [-1.5, 2.0, 3.25]}}
    content["classifiers"] = {"edu": CLASSIFIER}
    run_folder.write("corpus/main/statistics.json", content)
    text = outline(made(run_folder)["page"]).text
    assert f"{first} edu 7 −1.5000 2.0000 3.2500" in text
    assert "The score edu is by a pretrained classifier (a model that rates texts): <b>.onnx, sha256 " in text
    assert f"{'ab' * 8}…, license Apache-2.0." in text
    dutch = outline(made(run_folder, language="nl")["page"]).text
    assert "De score edu komt van een eerder getrainde classificator" in dutch


CLASSIFIER = {
    "files": [{"name": "<b>.onnx", "sha256": "ab" * 32}, {"name": "tokenizer.json", "sha256": "cd" * 32}],
    "license": "Apache-2.0",
    "url": "https://example.org/edu",
    "label": None,
}
