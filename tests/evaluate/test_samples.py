"""Copied text of a model equals brute force, and held-out text is searched equally."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import transformers

from pipeline.evaluate import samples, vllm_check
from pipeline.evaluate.settings import SamplesSettings
from pipeline.model import decoder
from pipeline.tokens.token_reader import TokenReader
from tests.conftest import Project
from tests.evaluate.test_vllm_check import EQUAL, install

SHORT = 6  # a briefly trained model writes few words that occur elsewhere


def write_samples(results: Path, out: Path, final: Path | None = None) -> dict[str, Any]:
    settings = SamplesSettings(model="base", tokens=40, minimum_characters=SHORT, held_out=5)
    tokens = results / "tokens/main"
    return samples.run(
        settings,
        index=tokens / "index.json",
        tokenizer=results / "tokenizer/main/tokenizer.json",
        suffixes=sorted((tokens / "suffixes").glob("*.arrow")),
        final=final or results / "models/base/final",
        harmful=[],
        samples=out,
    )


def sampled(results: Path, out: Path, final: Path | None = None) -> dict[str, Any]:
    counts = write_samples(results, out, final)
    content: dict[str, Any] = json.loads(out.read_text())
    checked = counts.pop("export")
    checked.pop("vllm", None)
    assert counts == {"written": content["written"], "held_out": content["held_out"]}
    assert checked.pop("largest_logit_difference") < 1e-5 < checked.pop("logit_deviation")
    assert checked == {"transformers": transformers.__version__, "torch": torch.__version__, "tokens": 64}
    return content


def copied(text: str, documents: list[str]) -> int:
    """Count the characters of a text in its longest document parts of the given length, half of them letters."""
    inside = [False] * len(text)
    before = 0
    for start in range(len(text) - SHORT + 1):
        end = start
        while end < len(text) and any(text[start : end + 1] in document for document in documents):
            end += 1
        if end - start >= SHORT and end > before:
            before = end
            if 2 * sum(letter.isalnum() for letter in text[start:end]) >= SHORT:
                inside[start:end] = [True] * (end - start)
    return sum(inside)


@pytest.mark.slow
def test_copied_text_count_equals_brute_force(finished: Project, tmp_path: Path) -> None:
    results = finished.results
    content = sampled(results, tmp_path / "samples.json")
    rows = pq.read_table(results / "corpus/main/final", columns=["id", "text"]).to_pylist()
    train = TokenReader(results / "tokens/main/index.json", "train")
    trained = {row["id"] for row in train.documents_in(0, train.tokens)}
    documents = [row["text"] for row in rows if row["id"] in trained]
    assert len(documents) == len(trained) > 100
    for row in content["samples"]:
        assert row["copied_characters"] == copied(row["continuation"], documents)
        for part in row["parts"]:
            words = row["continuation"][part["start"] : part["end"]]
            assert part["documents"] == sum(words in document for document in documents)
    assert content["written"]["copied_characters"] == sum(row["copied_characters"] for row in content["samples"]) > 0
    held_out = content["held_out"]
    assert held_out["texts"] == 5 and 0 < held_out["copied_characters"] <= held_out["characters"]
    assert sampled(results, tmp_path / "again.json") == content


@pytest.mark.slow
def test_different_logits_in_transformers_are_an_error(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotary_angles = decoder.rotary_angles
    monkeypatch.setattr(decoder, "rotary_angles", lambda *given: [2 * part for part in rotary_angles(*given)])
    with pytest.raises(RuntimeError, match=r"base/final: Transformers 5.* computes logits that differ by"):
        sampled(finished.results, tmp_path / "samples.json")
    assert not (tmp_path / "samples.json").exists()


@pytest.mark.slow
def test_different_tokens_in_transformers_are_an_error(finished: Project, tmp_path: Path) -> None:
    final = Path(shutil.copytree(finished.results / "models/base/final", tmp_path / "final"))
    tokenizer = json.loads((final / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:20]
    (final / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(RuntimeError, match="encodes the first training document with other tokens"):
        sampled(finished.results, tmp_path / "samples.json", final)


@pytest.mark.slow
def test_step_records_vllm_and_does_not_fail_with_it(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "samples.json"
    with monkeypatch.context() as patched:
        patched.setattr(vllm_check, "find_spec", lambda _: None)
        assert "vllm" not in write_samples(finished.results, out)["export"]
    content = out.read_bytes()
    install(tmp_path, monkeypatch)
    assert write_samples(finished.results, out)["export"]["vllm"] == EQUAL
    assert out.read_bytes() == content
    (tmp_path / "vllm/__init__.py").write_text("raise ImportError('libcudart is missing')")
    checked = write_samples(finished.results, out)["export"]["vllm"]
    assert checked == {"problem": "exit code 1: ImportError: libcudart is missing"}
    assert out.read_bytes() == content
