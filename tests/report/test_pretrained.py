"""The page names the pretrained model of a training, and unknown facts about it."""

from __future__ import annotations

from pipeline.core.settings import Pretrained
from tests.report.example import Run
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
