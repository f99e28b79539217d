"""Perplexity of documents: equal to a reference forward pass per text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.core.errors import InputError
from pipeline.corpus import perplexity
from pipeline.corpus.document_streams import add_scores, read_scores
from pipeline.corpus.documents import DocumentCollector, read_documents
from pipeline.corpus.settings import PerplexitySettings

WORDS = ["<bos>", "de", "boot", "ligt", "bij", "brug", "?"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a small untrained model with a word tokenizer that has a special begin-of-text token."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    configuration = LlamaConfig(
        vocab_size=7, max_position_embeddings=64, bos_token_id=0, initializer_range=0.5, **sizes
    )
    LlamaForCausalLM(configuration).save_pretrained(tmp_path / "final")
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True)])
    tokenizer.save(str(tmp_path / "final" / "tokenizer.json"))
    return tmp_path / "final"


def documents(folder: Path, texts: list[str]) -> tuple[Path, list[dict[str, Any]]]:
    """Write documents, and return them in their order."""
    collector = DocumentCollector()
    for number, text in enumerate(texts):
        known = {"language": "nl", "language_score": 1.0, "source": "s", "license": "CC0-1.0"}
        collector.add({"id": f"s/{number}", "text": text, **known, "url": None, "title": None, "date": None})
    collector.write(folder / "documents", {"source": "s", "unit": 0})
    return folder / "documents", [*read_documents([folder / "documents"])]


def by_hand(folder: Path, text: str, tokens: int) -> float:
    """Compute the probability of each token after its predecessors alone, and the geometric mean of 1 / probability."""
    network = LlamaForCausalLM.from_pretrained(folder).double()
    numbers = [WORDS.index(word) if word in WORDS[1:] else 6 for word in text.split()][:tokens]
    total = 0.0
    for place, number in enumerate(numbers):
        logits = network(torch.tensor([[0, *numbers[:place]]])).logits[0, -1].tolist()
        total += math.log(sum(map(math.exp, logits))) - logits[number]
    return math.exp(total / len(numbers))


def test_perplexity_equals_a_reference_forward_pass_of_the_first_tokens(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(WORDS[1 + (number * step) % 6] for step in range(1, 2 + number)) for number in range(12)]
    path, rows = documents(tmp_path, [*texts, "boot"])
    files = {"documents": path, "final": model}
    for tokens, logits in ((5, 1 << 24), (5, 7 * 12), (5, 1), (64, 1 << 24)):
        monkeypatch.setattr(perplexity, "MAXIMUM_LOGITS", logits)
        counts = perplexity.run(PerplexitySettings(tokens=tokens), **files, perplexity=tmp_path / "found")
        assert counts == {"documents": 13}
        table = pq.read_table(tmp_path / "found")
        assert table.schema.names == ["id", "perplexity"]
        assert table["id"].to_pylist() == [row["id"] for row in rows]
        expected = [by_hand(model, row["text"], tokens) for row in rows]
        assert table["perplexity"].to_pylist() == pytest.approx(expected, rel=1e-4)
    assert max(expected) > 2 * min(expected)


def test_empty_text_has_no_perplexity_and_special_tokens_are_read_as_text(model: Path) -> None:
    surprise = perplexity.PerplexityModel(model, 9)
    result = surprise.compute(["\n", "de boot", "<bos> de"])
    assert math.isnan(result[0]) and not math.isnan(result[1])
    assert result[2] == pytest.approx(by_hand(model, "? ? ? de", 9), rel=1e-4)


def test_both_scores_become_columns(model: Path, tmp_path: Path) -> None:
    path, rows = documents(tmp_path, ["de boot", "de brug", "\n"])
    perplexity.run(PerplexitySettings(tokens=9), documents=path, final=model, perplexity=tmp_path / "found")
    table = pq.read_table(path)
    table = table.append_column("cluster", table["id"]).append_column("cluster_size", [[1, 1, 1]])
    quality = pq.read_table(path, columns=["id"]).append_column("quality", [[0.25, 0.5, None]])
    joined = add_scores(table, [*read_scores([tmp_path / "found"]), quality])
    assert joined["quality"].to_pylist() == [0.25, 0.5, None]
    assert joined["perplexity"].to_pylist() == pq.read_table(tmp_path / "found")["perplexity"].to_pylist()
    assert joined["perplexity"].null_count == 1 == sum(row["text"] == "\n" for row in rows)


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_model_is_named(model: Path, tmp_path: Path, broken: str) -> None:
    path, _ = documents(tmp_path, ["de boot"])
    (model / broken).write_text(json.dumps({"model_type": "llama"})[:9])
    with pytest.raises(InputError, match="final is no complete model"):
        perplexity.run(PerplexitySettings(tokens=9), documents=path, final=model, perplexity=tmp_path / "found")
