"""A sample does not depend on file order or number, and has the requested size and mixture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.documents import id_hash
from pipeline.tokenizer import document_sample
from pipeline.tokenizer.document_sample import DocumentSample, draw_sample

Write = Callable[..., Path]


def row(name: str, language: str, size: int, source: str = "book") -> dict[str, Any]:
    fixed = {"language_score": 1.0, "license": "CC0-1.0", "flags": []}
    return {"id": name, "text": "é" + "x" * (size - 2), "language": language, "source": source, **fixed} | {
        "id_hash": id_hash(name)
    }


ROWS = [row(f"nl/{n}", "nl", 100 + n % 7) for n in range(200)] + [row(f"en/{n}", "en", 90) for n in range(60)]


def wanted(name: str, language: str) -> bool:
    return True


def by_hand(rows: list[dict[str, Any]], limit: float) -> list[str]:
    """The ids of the documents of least hash within the size."""
    result, size = [], 0
    for one in sorted(rows, key=lambda row: row["id_hash"]):
        size += len(one["text"].encode())
        if size > limit:
            break
        result.append(one["id"])
    return result


def ids(drawn: DocumentSample, language: str | None = None) -> list[str]:
    return [one["id"] for one in drawn.rows.to_pylist() if language in (None, one["language"])]


@pytest.fixture(autouse=True, params=[3, 4096])
def small_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_sample, "FIRST_DOCUMENTS", request.param)


@pytest.mark.parametrize("limit", [1, 1234, 12_000, 10**9])
def test_documents_with_the_least_hashes_up_to_the_limit_are_drawn(write_documents: Write, limit: int) -> None:
    paths = [write_documents(str(n), ROWS[n::3]) for n in range(3)]
    drawn = draw_sample(paths, wanted, limit)
    assert ids(drawn) == (by_hand(ROWS, limit) or [min(ROWS, key=lambda row: row["id_hash"])["id"]])
    assert drawn.rows.equals(draw_sample([write_documents("all", ROWS)], wanted, limit).rows)
    assert drawn.rows.equals(draw_sample(paths[::-1], wanted, limit).rows)
    assert {text["id"]: text["text"] for text in drawn.texts(paths)} == {
        one["id"]: one["text"] for one in ROWS if one["id"] in set(ids(drawn))
    }


def test_weights_are_shares_of_the_sample(write_documents: Write) -> None:
    drawn = draw_sample([write_documents("all", ROWS)], wanted, 4000, shares={"nl": 3, "en": 1})
    assert ids(drawn, "nl") == by_hand([one for one in ROWS if one["language"] == "nl"], 3000)
    assert ids(drawn, "en") == by_hand([one for one in ROWS if one["language"] == "en"], 1000)


def test_weights_are_kept_if_a_language_has_too_little_text(write_documents: Write) -> None:
    drawn = draw_sample([write_documents("all", ROWS)], wanted, 10**9, shares={"nl": 1, "en": 1})
    english = [one for one in ROWS if one["language"] == "en"]
    assert ids(drawn, "en") == by_hand(english, 10**9), "all of it"
    assert ids(drawn, "nl") == by_hand([one for one in ROWS if one["language"] == "nl"], 60 * 90)


def test_each_language_may_have_its_own_limit(write_documents: Write) -> None:
    drawn = draw_sample([write_documents("all", ROWS)], wanted, 2000, each_language=True)
    for language in ("nl", "en"):
        assert ids(drawn, language) == by_hand([one for one in ROWS if one["language"] == language], 2000)


def test_only_needed_documents_are_read(write_documents: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_sample, "FIRST_DOCUMENTS", 3)
    seen: list[str] = []
    path = write_documents("all", ROWS)
    draw_sample([path], lambda name, language: bool(seen.append(name)) or True, 300)
    assert len(seen) < 30
    seen.clear()
    draw_sample([path], lambda name, language: bool(seen.append(name)) or False, 300, most_documents=20)
    assert 5 < len(seen) < 60


def test_record_counts_sources_and_languages_and_hashes_the_ids(write_documents: Write) -> None:
    rows = [row("a", "nl", 10), row("b", "en", 20), row("c", "nl", 30, source="law"), row("d", "nl", 40)]
    counts = draw_sample([write_documents("all", rows)], wanted, 10**9).describe()
    assert counts["sources"] == {
        "book": {"en": {"documents": 1, "bytes": 20}, "nl": {"documents": 2, "bytes": 50}},
        "law": {"nl": {"documents": 1, "bytes": 30}},
    }
    ordered = sorted("abcd", key=id_hash)
    assert counts["ids_sha256"] == hashlib.sha256("".join(f"{name}\n" for name in ordered).encode()).hexdigest()


def test_empty_input_gives_an_empty_sample(write_documents: Write) -> None:
    path = write_documents("none", [])
    drawn = draw_sample([path], wanted, 100)
    assert drawn.rows.num_rows == 0 and list(drawn.texts([path])) == []
    assert draw_sample([write_documents("all", ROWS)], lambda name, language: False, 100).rows.num_rows == 0


def test_document_on_a_range_boundary_is_drawn_once(write_documents: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_sample, "FIRST_DOCUMENTS", 3)
    hashes = [0, 5, (3 << 64) // 8, (3 << 64) // 8 + 1, 2**63, (6 << 64) // 8, 2**64 - 2, 2**64 - 1]
    rows = [{**row(f"{n}", "nl", 10), "id_hash": value} for n, value in enumerate(hashes)]
    assert ids(draw_sample([write_documents("edges", rows)], wanted, 10**6)) == list("01234567")
