"""A score with a target shows its distance and is never praised; an unevaluated task is named."""

from __future__ import annotations

import re

import pytest
from huggingface_hub import ModelCard

from tests.report.example import Run, task
from tests.report.test_page import made, outline

BIAS = {"aim": 0.5, "low": 0.795, "high": 0.9624, "higher_is_better": None}


@pytest.mark.parametrize(
    ("language", "distance", "named"),
    [
        (
            "en",
            "0.4000 from the target of 0.5000",
            "Task long was not run: each example needs 310 tokens or more, and the model reads 128.",
        ),
        (
            "nl",
            "0,4000 van de streefwaarde 0,5000",
            "Opgave long is niet afgenomen: elk voorbeeld vraagt 310 tokens of meer, en het model leest er 128.",
        ),
    ],
)
def test_large_bias_is_not_praised_and_unevaluated_tasks_are_listed(
    run_folder: Run, language: str, distance: str, named: str
) -> None:
    left_out = {"suite": "open", "task": "long", "tokens_needed": 310, "sequence_length": 128}
    bad = {"suite": "open", "task": "mirrored", "reason": "<b>a.parquet</b> is not as listed"}
    run_folder.write(
        "evaluation/base/500/results.json",
        {"model": "base", "step": 500, "tasks": [task("bias", 0.9, 0.05, None, **BIAS)], "not_asked": [left_out, bad]},
    )
    arguments = made(run_folder, language=language)
    page, card = outline(arguments["page"]).text, arguments["model_card"].read_text(encoding="utf-8")
    assert page.count(distance) == 1, "each score is on the page once"
    assert page.count("acc →") == 1 and named in page
    assert "0.4000 from the target of 0.5000 |" in card
    assert ": <b>a.parquet</b> is not as listed." in page, "text is text"
    not_given = {
        "en": "Tasks that base was not given: long, mirrored.",
        "nl": "Opgaven die base niet kreeg: long, mirrored.",
    }
    assert not_given[language] in page
    assert "Task long was not run: each of its examples needs 310 tokens or more" in card
    assert "0 of 0 tested scores are better than every trivial baseline" in card


def test_scores_with_different_baselines_are_in_one_table(run_folder: Run) -> None:
    peer, counted = {"chance": 0.5, "peer": 0.6}, {"unigram": 4.2}
    with_peer = task("completion", 0.62, 0.03, 0.5, baselines=peer, hardest_baseline="chance")
    bits = task("tales", 1.31, 0.02, None, metric="bits_per_byte", baselines=counted, hardest_baseline="unigram")
    results = {"model": "base", "step": 500, "tasks": [with_peer, bits], "not_asked": []}
    run_folder.write("evaluation/base/500/results.json", results)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    assert "not tested 0.0809 200 unigram 4.2000" in text and "| not tested |" in arguments["model_card"].read_text()
    assert "nl 0.6200 (0.5600 to 0.6800) ✓ yes 0.1213 200 chance 0.5000" in text
    assert "nl 1.3100 (1.2700 to 1.3500) not tested" in text


def test_non_finite_score_is_a_dash(run_folder: Run) -> None:
    nothing = task("empty", 0.5, None, 0.5, verdict=None, baselines=None) | {"value": None}
    run_folder.write("evaluation/base/500/results.json", {"model": "base", "step": 500, "tasks": [nothing]})
    arguments = made(run_folder)
    assert "empty right answers (acc ↑), nl – no baseline – 200 –" in outline(arguments["page"]).text
    assert "| empty | nl | acc | – |" in arguments["model_card"].read_text(encoding="utf-8")


def test_score_without_a_direction_has_no_arrow_or_hardest_baseline(run_folder: Run) -> None:
    baselines = {"copy": 52.0, "reference": 31.0}
    fields = {"metric": "lix", "higher_is_better": None, "baselines": baselines, "hardest_baseline": None}
    few = task("easy", 44.0, 2.0, None, **fields, examples=6, examples_without_value=24)
    for model in ("base", "other"):
        content = {"model": model, "step": 500, "tasks": [few], "not_asked": []}
        run_folder.write(f"evaluation/{model}/500/results.json", content)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    scores = (
        "44.0000 (40.0000 to 48.0000) not tested 8.0859 6 (24 more without a value) copy 52.0000, reference 31.0000"
    )
    assert f"easy readability by lengths of words and sentences (lix), nl base {scores}" in text
    assert text.count("readability by lengths of words") == text.count("copy 52.0000, reference") == 1, "of both models"
    assert not re.search("lix [↑↓→]", text)
    card = arguments["model_card"].read_text(encoding="utf-8")
    assert (
        "| easy | nl | lix | 44.0000 | 40.0000 to 48.0000 | – | copy 52.0000, reference 31.0000 | not tested |" in card
    )
    assert "(nog 24 zonder waarde)" in outline(made(run_folder, language="nl")["page"]).text


def test_insignificant_distance_from_the_target_is_labelled(run_folder: Run) -> None:
    near = task("bias", 0.55, 0.05, None, aim=0.5, low=0.43, high=0.67, higher_is_better=None)
    run_folder.write(
        "evaluation/base/500/results.json", {"model": "base", "step": 500, "tasks": [near], "not_asked": []}
    )
    arguments = made(run_folder)
    for text in (outline(arguments["page"]).text, arguments["model_card"].read_text(encoding="utf-8")):
        assert "not distinguishable from the target of 0.5000" in text and "0.0500 from" not in text


@pytest.mark.parametrize(
    ("language", "flag", "verdict"),
    [
        ("en", "prompt truncated in {} of 200 examples", "not tested: most prompts are truncated"),
        ("nl", "prompt afgekapt bij {} van 200 voorbeelden", "niet getoetst: de meeste prompts zijn afgekapt"),
    ],
)
def test_score_on_truncated_prompts_is_flagged(run_folder: Run, language: str, flag: str, verdict: str) -> None:
    tasks = [
        task("few", 0.7, 0.01, 0.25, examples_truncated=3),
        task("most", 0.7, 0.01, 0.25, examples=190, examples_without_value=10, examples_truncated=180, verdict=None),
        task("none", 0.7, 0.01, 0.25, examples_truncated=0),
    ]
    run_folder.write("evaluation/base/500/results.json", {"model": "base", "step": 500, "tasks": tasks})
    arguments = made(run_folder, language=language)
    page, card = outline(arguments["page"]).text, arguments["model_card"].read_text(encoding="utf-8")
    assert page.count(flag.format(3)) == page.count(flag.format(180)) == 1
    assert page.count(flag.split("{")[0]) == 2 and page.count(verdict) == 1
    assert "| 0.7000 (prompt truncated in 3 of 200 examples) |" in card
    assert card.count("not tested: most prompts are truncated |") == 1


@pytest.mark.parametrize(
    ("language", "title"), [("en", "Protocols of the tasks"), ("nl", "Protocollen van de opgaven")]
)
def test_page_has_the_protocol_and_the_card_its_model_index(run_folder: Run, language: str, title: str) -> None:
    protocol = {"version": 2.0, "sha256": "ab" * 32, "num_fewshot": 12, "data_set": "EuroEval/scala-nl"}
    protocol |= {"configuration": None, "split": "test", "output_type": "multiple_choice", "examples_available": 200}
    of_other = task("scala", 0.6, 0.01, 0.5, protocol=protocol | {"sha256": "cd" * 32}) | {"suite": "other"}
    tasks = [task("scala", 0.7, 0.01, 0.5, protocol=protocol), task("own", 0.6, 0.01, 0.5), of_other]
    content = {"model": "base", "step": 500, "tasks": tasks, "data_sets": {"EuroEval/scala-nl": "c0ffee"}}
    run_folder.write("evaluation/base/500/results.json", content)
    arguments = made(run_folder, language=language)
    text = outline(arguments["page"]).text
    assert title in text and re.search(r"scala@dutch 2[.,]0 12 EuroEval/scala-nl abababababababab(?!a)", text)
    assert "scala@other 2" in text and "EuroEval/scala-nl cdcdcdcdcdcdcdcd" in text, (
        "two suites have a task of that name"
    )
    card = ModelCard.load(arguments["model_card"])
    assert {one.dataset_name: (one.dataset_revision, one.metric_value) for one in card.data.eval_results} == {
        "scala@dutch": ("c0ffee", 0.7),
        "scala@other": ("c0ffee", 0.6),
        "own": (None, 0.6),
    }
