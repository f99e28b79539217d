"""Fertility counts the held-out documents of each language, and reports missing ones."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.documents import is_validation_cluster
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


def measure(
    tokenizer: Path, documents: list[Path], parallel: dict[str, Path] | None = None, **settings: Any
) -> dict[str, Any]:
    path = tokenizer.with_name("fertility.json")
    files = parallel or {}
    fertility.run(
        FertilitySettings(**{"validation_fraction": FRACTION, "parallel": [*files], **settings}),
        tokenizer=tokenizer,
        documents=documents,
        parallel=[*files.values()],
        fertility=path,
    )
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def test_counts_are_those_of_the_held_out_documents(tokenizer: Path, documents: list[Path]) -> None:
    result = measure(tokenizer, documents)
    assert list(result["languages"]) == ["en", "nl"]
    assert result["tokenizer_sha256"] == sha256(tokenizer.read_bytes()).hexdigest()
    for path, language in zip(documents, ("nl", "en"), strict=True):
        rows = pq.read_table(path).to_pylist()
        texts = [row["text"] for row in rows if is_validation_cluster(row["id"], FRACTION)]
        measured = result["languages"][language]
        assert 0 < len(texts) < len(rows)
        assert measured["documents"] == len(texts)
        assert measured["bytes"] == sum(len(text.encode()) for text in texts)
        assert measured["words"] == sum(len(re.findall(r"\w+", text)) for text in texts)
        assert measured["tokens"] == sum(map(len, load_encoder(tokenizer).encode(texts)))
        assert measured["tokens_per_word"] == pytest.approx(measured["tokens"] / measured["words"])
        assert measured["bytes_per_token"] == pytest.approx(measured["bytes"] / measured["tokens"])
        assert measured["held_out"] is True
        # Independent check of whole words and efficiency, by the library's token offsets and a sum in Python.
        whole, times = 0, Counter[int]()
        for text in texts:
            encoding = load_encoder(tokenizer).tokenizer.encode(text, add_special_tokens=False)
            times.update(encoding.ids)
            cut = {(end - len(re.sub(r"^\W+", "", text[begin:end])), end) for begin, end in encoding.offsets}
            whole += sum(word.span() in cut for word in re.finditer(r"\w+", text))
        assert 0 < whole == measured["whole_words"] < measured["words"]
        assert measured["whole_word_share"] == pytest.approx(whole / measured["words"])
        power = sum((count / measured["tokens"]) ** 2.5 for count in times.values())
        assert measured["renyi_efficiency"] == pytest.approx(math.log(power) / (1 - 2.5) / math.log(450))


def test_efficiency_is_one_for_uniform_token_frequencies() -> None:
    assert fertility.renyi_efficiency(np.full(7, 3)) == pytest.approx(1)
    assert fertility.renyi_efficiency(np.array([5, 0, 0, 0])) == pytest.approx(0)
    assert fertility.renyi_efficiency(np.array([2, 2, 0, 0])) == pytest.approx(0.5)
    assert fertility.renyi_efficiency(np.zeros(4, dtype=int)) is None


def test_measured_bytes_per_language_are_limited(tokenizer: Path, documents: list[Path]) -> None:
    whole, some = measure(tokenizer, documents)["languages"], measure(tokenizer, documents, measured_bytes=1000)
    assert some["measured_bytes"] == 1000
    assert all(500 < one["bytes"] <= 1000 < whole[language]["bytes"] for language, one in some["languages"].items())


def test_search_for_a_rare_language_is_limited(
    tokenizer: Path, documents: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fertility, "MAXIMUM_HELD_OUT", 4)
    monkeypatch.setattr("pipeline.tokenizer.document_sample.FIRST_DOCUMENTS", 10)
    result = measure(tokenizer, documents)["languages"]
    assert 0 < sum(one["documents"] for one in result.values()) < 50, "about 4 ÷ 0.1 of the 240 are read"


def test_parity_compares_the_same_sentences(tokenizer: Path, documents: list[Path], tmp_path: Path) -> None:
    texts = {"nl": ["De zee is hoog.", "'t Huis, één dijk"], "en": ["The sea is high.", "The house, a dyke"]}
    files = {language: tmp_path / f"{language}.txt" for language in texts}
    for language, lines in texts.items():
        files[language].write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = measure(tokenizer, documents, files)["parallel"]
    tokens = {language: sum(map(len, load_encoder(tokenizer).encode(lines))) for language, lines in texts.items()}
    assert result["tokens"] == tokens and result["lines"] == 2
    assert result["bytes"] == {language: len("".join(lines).encode()) for language, lines in texts.items()}
    assert result["premium"] == {language: count / min(tokens.values()) for language, count in tokens.items()}
    assert measure(tokenizer, documents)["parallel"] is None


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"One.\n", "nl.txt has 2, .*en.txt has 1: align them"), (b"", "has 0"), (b"a\n\xff\n", "en.txt is not UTF-8")],
)
def test_non_parallel_sentences_are_refused(
    tokenizer: Path, documents: list[Path], tmp_path: Path, content: bytes, words: str
) -> None:
    files = {"nl": tmp_path / "nl.txt", "en": tmp_path / "en.txt"}
    files["nl"].write_text("Een.\nTwee.\n")
    files["en"].write_bytes(content)
    with pytest.raises(InputError, match=words):
        measure(tokenizer, documents, files)
    assert not tokenizer.with_name("fertility.json").exists()


def test_language_without_held_out_documents_is_measured_completely_and_marked(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = [row for row in pq.read_table(documents[0]).to_pylist() if not is_validation_cluster(row["id"], FRACTION)][
        :20
    ]
    frisian = write_documents("fy", [{**row, "language": "fy"} for row in rows])
    measured = measure(tokenizer, [*documents, frisian])["languages"]
    assert (measured["fy"]["held_out"], measured["fy"]["documents"]) == (False, 20)
    assert measured["nl"]["held_out"] is True


def test_near_duplicates_of_held_out_documents_are_held_out(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = pq.read_table(documents[0]).to_pylist()
    held_out = next(row["id"] for row in rows if is_validation_cluster(row["id"], FRACTION))
    near = write_documents("near", [{**row, "cluster": held_out} for row in rows])
    measured = measure(tokenizer, [near])["languages"]["nl"]
    assert (measured["held_out"], measured["documents"]) == (True, len(rows))


def test_text_without_words_has_no_fertility(
    tokenizer: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    row = {**pq.read_table(documents[0]).to_pylist()[0], "text": "!?", "language": "und"}
    assert measure(tokenizer, [write_documents("und", [row])])["languages"]["und"]["tokens_per_word"] is None
