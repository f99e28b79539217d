"""The page compares the tokenizers of a run and their cost, and lists unmeasured values."""

from __future__ import annotations

import re
from html import unescape

from pipeline.report.page import run
from tests.report.example import Run, entry


def table(text: str) -> str:
    result = re.search(r"<table><caption>Tokenizers on held-out text.*?</table>", text, re.S)
    assert result
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", result.group())))


def test_tokenizers_are_listed_side_by_side(run_folder: Run) -> None:
    fertility = run_folder.read("tokenizer/main/fertility.json")
    swept = {**fertility, "tokenizer_sha256": "0" * 64, "vocabulary_size": 4096}
    swept["parallel"] = {"lines": 1004, "bytes": {}, "tokens": {}, "premium": {"en": 1.0, "nl": 1.125}}
    run_folder.write("tokenizer/main-unigram-4096/fertility.json", swept)
    sample = {"ids_sha256": "ab" * 32, "sources": {"laws": {"nl": {"documents": 700, "bytes": 3_000_000}}}}
    inputs = [entry("documents", "corpus/main/final/laws.0.parquet")]
    counts = {"documents": 700, "bytes": 3_000_000, "sample": sample}
    for name, how in (
        ("main", {"algorithm": "bpe"}),
        ("main-unigram-4096", {"algorithm": "unigram", "digits": "right"}),
    ):
        run_folder.record("tokenizer.train", {"tokenizer": name}, 6, settings=how, inputs=inputs, counts=counts)
    run(run_folder.settings, **run_folder.arguments())
    text = (run_folder.root / "report/index.html").read_text(encoding="utf-8")
    text_of_table = table(text)
    first, _, second = text_of_table.partition("main-unigram-4096")
    assert "main bpe 8,192 en 1.200 nl 1.500 en 5.000 nl 4.000" in first
    assert "unigram digits: right 4,096 en 1.200 nl 1.500 en 5.000 nl 4.000" in second
    assert "en 62.00 % nl 62.00 % en 0.4100 nl 0.4100 together 0.4300" in second
    assert "not measured bytes per token, of other texts: ×1.250 1,230 (2,400" in first
    assert "en 1.000 nl 1.125 1,004 sentences" in second
    # 4,924,800 bytes at 4 a token and 2,664,000 at 5, and two tokens for the ends of each of 1,581 documents.
    assert f"{1_231_200 + 532_800 + 2 * 1581:,} estimated" in second and "counted" not in second
    assert "1,767,162 estimated 1,600,000 counted" in first
    assert "Trained on a sample by hash of 700 documents, 3.00 MB: main, main-unigram-4096" in unescape(text)
    assert "abababababababab…" in text
