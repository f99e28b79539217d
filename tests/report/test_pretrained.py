"""The page names the pretrained model of a training, and unknown facts about it."""

from __future__ import annotations

import pytest

from pipeline.core.settings import Pretrained
from tests.report.example import Run
from tests.report.test_comparison import compared
from tests.report.test_page import made, outline


def test_pretrained_base_model_is_named_with_the_origin_of_its_embeddings(run_folder: Run) -> None:
    taken = Pretrained(folder="{data}/models/<i>large</i>", license="Apache-2.0")
    run_folder.settings = run_folder.settings.model_copy(update={"pretrained": {"base": taken}})
    sentence = "The training of base began with the weights of models/<i>large</i> (license Apache-2.0)."
    assert sentence in outline(made(run_folder)["page"]).text
    counts = {
        "rotation": ["rope_theta 500000, was 10000"],
        "same_tokenizer": False,
        "tokens_copied": 900,
        "tokens_composed": 90,
        "tokens_unknown": 10,
    }
    run_folder.record("pretrain.adopt", {"model": "base"}, 6, counts=counts)
    text = outline(made(run_folder)["page"]).text
    assert f"{sentence} It has another tokenizer: 900 tokens have the embedding of a token with the same text" in text
    text = outline(made(run_folder)["page"]).text
    assert "Its position encoding differs: rope_theta 500000, was 10000. Tokens, time" in text
    run_folder.record("pretrain.adopt", {"model": "base"}, 6, counts={"same_tokenizer": True})
    text = outline(made(run_folder)["page"]).text
    assert f"{sentence} The tokens are the same. Tokens, time and electricity are those of this training alone." in text
    assert "may contain held-out texts and evaluation items" in text, "a loss on them may be too good"


def test_first_screen_names_the_pretrained_model_its_license_address_and_tokens(run_folder: Run) -> None:
    assert "began with" not in outline(made(run_folder)["page"]).text.partition("1. Summary")[0]
    taken = Pretrained(folder="{data}/large", license="Apache-2.0", url="https://example.org/large", tokens=3_000_000)
    run_folder.settings = run_folder.settings.model_copy(update={"pretrained": {"base": taken}})
    arguments = made(run_folder)
    first = outline(arguments["page"]).text.partition("1. Summary")[0]
    known = "Its publisher says that it was trained on 3,000,000 tokens."
    sentence = f"with the weights of large (license Apache-2.0). https://example.org/large {known}"
    assert first.index("What was made") < first.index(sentence) < first.index("From what")
    assert "The earlier training data are unknown here" in first.partition("From what")[2]
    assert known in arguments["model_card"].read_text()


@pytest.mark.parametrize(
    ("better", "words", "counted"),
    [("a", "✓ yes, better", (1, 0)), ("b", "✗ yes, worse", (0, 1)), (None, "no", (0, 0))],
)
def test_last_checkpoint_is_next_to_the_model_it_started_from(
    run_folder: Run, better: str | None, words: str, counted: tuple[int, int]
) -> None:
    run_folder.write("evaluation/differences.json", {"comparisons": [compared(better, 500, 0)]})
    text = outline(made(run_folder)["page"]).text
    assert f"began with: better in {counted[0]} of 1 scores, worse in {counted[1]};" in text.partition("1. Summary")[0]
    table = text.partition("Started from Now")[2]
    row = "completion right answers (acc ↑) 0.8000 0.6000 −0.2000 (−0.3000 to −0.1000)"
    assert f"{row} {words} 200 0.1000 0.0020" in table
    assert "Differences between checkpoints" not in text, "it is in that table alone"
    assert "Each has its own tokenizer" not in text
    taken = Pretrained(folder="large", license="Apache-2.0")
    run_folder.settings = run_folder.settings.model_copy(update={"pretrained": {"base": taken}})
    run_folder.record("pretrain.adopt", {"model": "base"}, 6, counts={"same_tokenizer": False})
    assert "Each has its own tokenizer" in outline(made(run_folder)["page"]).text
    assert "Begonnen met Nu" in outline(made(run_folder, language="nl")["page"]).text
