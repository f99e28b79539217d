"""Fertility counts the held-out documents of each language, and says so where there are none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.corpus.documents import is_validation
from pipeline.tokenizer import fertility, train
from pipeline.tokenizer.encoder import load_encoder
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings

FRACTION = 0.1


@pytest.fixture
def tokenizer(tmp_path: Path, documents: list[Path]) -> Path:
    path = tmp_path / "tokenizer.json"
    train.run(
        TrainSettings(vocabulary_size=450, validation_fraction=FRACTION),
        documents=documents,
        tokenizer=path,
        configuration=tmp_path / "tokenizer_config.json",
    )
    return path


def measure(tokenizer: Path, documents: list[Path]) -> dict:
    path = tokenizer.with_name("fertility.json")
    fertility.run(
        FertilitySettings(validation_fraction=FRACTION), tokenizer=tokenizer, documents=documents, fertility=path
    )
    return json.loads(path.read_text(encoding="utf-8"))


def test_counts_are_those_of_the_held_out_documents(tokenizer: Path, documents: list[Path]) -> None:
    result = measure(tokenizer, documents)
    assert list(result["languages"]) == ["en", "nl"]
    assert result["tokenizer_sha256"] == sha256(tokenizer.read_bytes()).hexdigest()
    for path, language in zip(documents, ("nl", "en"), strict=True):
        rows = pq.read_table(path).to_pylist()
        texts = [row["text"] for row in rows if is_validation(row["id"], FRACTION)]
        measured = result["languages"][language]
        assert 0 < len(texts) < len(rows)
        assert measured["documents"] == len(texts)
        assert measured["bytes"] == sum(len(text.encode()) for text in texts)
        assert measured["words"] == sum(len(re.findall(r"\w+", text)) for text in texts)
        assert measured["tokens"] == sum(map(len, load_encoder(tokenizer).encode(texts)))
        assert measured["tokens_per_word"] == pytest.approx(measured["tokens"] / measured["words"])
        assert measured["bytes_per_token"] == pytest.approx(measured["bytes"] / measured["tokens"])
        assert measured["held_out"] is True


def test_a_language_without_held_out_documents_is_measured_whole_and_marked(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = [row for row in pq.read_table(documents[0]).to_pylist() if not is_validation(row["id"], FRACTION)][:20]
    frisian = write_documents("fy", [{**row, "language": "fy"} for row in rows])
    measured = measure(tokenizer, [*documents, frisian])["languages"]
    assert (measured["fy"]["held_out"], measured["fy"]["documents"]) == (False, 20)
    assert measured["nl"]["held_out"] is True


def test_what_is_near_a_held_out_document_is_held_out(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = pq.read_table(documents[0]).to_pylist()
    held_out = next(row["id"] for row in rows if is_validation(row["id"], FRACTION))
    near = write_documents("near", [{**row, "cluster": held_out} for row in rows])
    measured = measure(tokenizer, [near])["languages"]["nl"]
    assert (measured["held_out"], measured["documents"]) == (True, len(rows))


def test_text_without_words_has_no_fertility(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    row = {**pq.read_table(documents[0]).to_pylist()[0], "text": "!?", "language": "und"}
    assert measure(tokenizer, [write_documents("und", [row])])["languages"]["und"]["tokens_per_word"] is None
