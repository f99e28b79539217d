"""Memorized, harmful and personal model output is on the page, next to the rates of the documents."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.example import Run
from tests.report.test_page import made, outline

FEW = {"count": 3, "share": 0.075, "low": 0.026, "high": 0.199}


def row(texts: int, **fields: Any) -> dict[str, Any]:
    nothing = {"exact": None, "in_training": None, "harmful": None, "personal_data": 0, "personal_data_in_training": 0}
    return {"texts": texts, "say_nothing": 0, **nothing, **fields}


def written(harmful: list[str]) -> dict[str, Any]:
    kinds = ("train", "validation", "neutral", "asking", "train_itself", "validation_itself")
    rows = {kind: row(40 + number, in_training=FEW) for number, kind in enumerate(kinds)}
    rows["train"] = row(40, exact=FEW, in_training=FEW, personal_data=5, personal_data_in_training=2)
    rows["train"] |= {"say_nothing": 7}
    rows["validation"] = row(0)
    counted = {"texts": 0, "characters": 0, "copied_characters": 0}
    return {
        "model": "tiny",
        "minimum_characters": 40,
        "minimum_letters": 20,
        "samples": [],
        "written": counted,
        "held_out": counted,
        "memorization": {
            "prompt_tokens": 50,
            "continuation_tokens": 25,
            "minimum_letters": 10,
            "harmful": harmful,
            "kinds": rows,
        },
    }


def test_memorization_is_shown_next_to_the_rate_of_the_documents(run_folder: Run) -> None:
    run_folder.write("evaluation/tiny/samples.json", written([]))
    text = outline(made(run_folder)["page"]).text
    assert "Memorization: 25 tokens generated after the first 50 of a document" in text
    assert "the model, after training documents 40 7 7.50 % (2.60 to 19.90) 7.50 % (2.60 to 19.90) – 5 (2" in text
    assert "the model, after held-out documents 0 0 – – – 0 " in text
    assert "held-out documents themselves 45 0 – 7.50 %" in text
    assert "Blank: fewer than 10 letters and digits" in text
    assert "Pieces with fewer than 20 letters and digits do not count." in text
    assert "the corpus has no list or classifier of it" in text

    run_folder.write("evaluation/tiny/samples.json", written(["insults", "toxic"]))
    assert "Harmful: flagged by insults, toxic of the corpus." in outline(made(run_folder)["page"]).text
    run_folder.write("evaluation/small/samples.json", written([]) | {"model": "small"})
    text = outline(made(run_folder)["page"]).text
    assert text.count("Memorization: 25 tokens") == text.count("flagged by insults") == 1, "common text occurs once"
    assert text.count("the corpus has no list or classifier of it") == 1, "the model whose corpus has none"
    text = outline(made(run_folder, language="nl")["page"]).text
    assert "het model, na apart gehouden documenten" in text and "Zoals het document verdergaat" in text
    assert "the model, " not in text and "Harmful" not in text
    assert "minder dan 10 letters en cijfers" in text and "Leeg" in text


def test_counts_of_an_older_version_are_shown_unchanged(run_folder: Run) -> None:
    content = written([])
    del content["minimum_letters"], content["memorization"]["minimum_letters"]
    for counted in content["memorization"]["kinds"].values():
        del counted["say_nothing"]
    run_folder.write("evaluation/tiny/samples.json", content)
    text = outline(made(run_folder)["page"]).text
    assert "the model, after training documents 40 – 7.50 %" in text and "letters and digits" not in text


def test_missing_counts_are_not_mentioned(run_folder: Run) -> None:
    content = written([])
    del content["memorization"]
    run_folder.write("evaluation/tiny/samples.json", content)
    text = outline(made(run_folder)["page"]).text
    assert "What the models write and what they copy" in text and "the model, after" not in text


def test_copied_document_has_its_own_or_its_source_license(run_folder: Run) -> None:
    documents = [
        {"id": f"laws/a/{n}", "source": "laws", "language": "nl", "license": n, "occurrences": 1} for n in (None, "MIT")
    ]
    part = {"start": 0, "end": 4, "documents": 2, "first": documents}
    sample = {"prompt": "Het", "language": "nl", "continuation": "water", "copied_characters": 4, "parts": [part]}
    run_folder.write("evaluation/tiny/samples.json", written([]) | {"samples": [sample]})
    text = outline(made(run_folder)["page"]).text
    assert "laws/a/None, source laws, license CC0-1.0; laws/a/MIT, source laws, license MIT" in text


def test_card_lists_the_checks_of_an_exported_model(run_folder: Run) -> None:
    assert (
        "- base: not checked in Transformers. Not checked in vLLM. Not checked in llama.cpp.\n"
        in made(run_folder)["model_card"].read_text()
    )
    checked = {"transformers": "5.23.0", "torch": "2.13.0", "tokens": 256}
    checked |= {"largest_logit_difference": 3.2e-6, "logit_deviation": 1.25}
    run_folder.record("evaluate.samples", {"model": "base"}, 9, counts={"export": checked})
    card = made(run_folder)["model_card"].read_text()
    assert (
        "- base: loaded in Transformers 5.23.0 with torch 2.13.0, where it wrote text. The logits of 256 tokens" in card
    )
    assert "differ by at most 3.20e-06 from those of the network that was trained (standard deviation 1.25)." in card
    assert "(standard deviation 1.25). Not checked in vLLM. Not checked in llama.cpp.\n" in card


@pytest.mark.parametrize(
    ("vllm", "sentence"),
    [
        (
            {"is_prompt_equal": True, "tokens": 16, "equal_tokens": 16, "device": "cpu", "dtype": "float32"},
            "vLLM 0.32.0 (cpu, float32) encoded a prompt like Transformers; of the 16 tokens that it wrote after it, "
            "16 are those that Transformers finds most likely.",
        ),
        (
            {"is_prompt_equal": False, "tokens": 16, "equal_tokens": 3, "device": "cuda", "dtype": "float32"},
            "vLLM 0.32.0 (cuda, float32) encoded a prompt with other tokens than Transformers; of the 16 tokens that "
            "it wrote after it, 3 are those that Transformers finds most likely.",
        ),
        ({"problem": "exit code -6"}, "vLLM 0.32.0 did not continue a prompt: exit code -6."),
    ],
    ids=["equal", "other", "problem"],
)
def test_card_has_the_answer_of_vllm(vllm: dict[str, Any], sentence: str, run_folder: Run) -> None:
    checked = {"transformers": "5.23.0", "torch": "2.13.0", "tokens": 256, "vllm": {"version": "0.32.0"} | vllm}
    checked |= {"largest_logit_difference": 3.2e-6, "logit_deviation": 1.25}
    run_folder.record("evaluate.samples", {"model": "base"}, 9, counts={"export": checked})
    assert f" {sentence} Not checked in llama.cpp.\n" in made(run_folder)["model_card"].read_text()
