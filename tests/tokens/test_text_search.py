"""Matches in training documents equal those of `str.find`, for any tokens."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.corpus.documents import id_hash, is_validation_cluster
from pipeline.tokens import shard as shard_step
from pipeline.tokens import suffix_search
from pipeline.tokens import suffixes as suffixes_step
from pipeline.tokens.text_search import TextMatch, TextSearch

FRACTION = 0.2  # of tests/tokens/conftest.py


def sort_suffixes(index: Path, tokenizer: Path) -> None:
    (index.parent / "suffixes").mkdir()
    for train in sorted((index.parent / "train").glob("*.arrow")):
        suffixes_step.run(Settings(), train=train, tokenizer=tokenizer, suffixes=index.parent / "suffixes" / train.name)


@pytest.fixture(scope="module")
def texts(documents: list[Path]) -> dict[str, str]:
    """Return the training documents: id to text."""
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    return {row["id"]: row["text"] for row in rows if not is_validation_cluster(row["id"], FRACTION)}


@pytest.fixture(scope="module", params=["uint16", "uint32"])
def search(
    request: pytest.FixtureRequest,
    build_tokens: Callable[..., Path],
    documents: list[Path],
    tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> TextSearch:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "uint32":
            patch.setattr(shard_step.np, "uint16", shard_step.np.uint32)
        index = build_tokens(tmp_path_factory.mktemp("search") / "main", documents, tokenizer)
    sort_suffixes(index, tokenizer)
    text_search = TextSearch(index, tokenizer)
    assert text_search.reader.dtype == request.param
    return text_search


def times(part: str, text: str) -> int:
    """Return the number of occurrences of a part in a text, with overlaps."""
    return sum(text.startswith(part, at) for at in range(len(text)))


def brute(text: str, minimum: int, texts: dict[str, str]) -> list[tuple[int, int, dict[str, int]]]:
    """Return the longest parts by `str.find` over all documents: start, end, and the count by document."""
    everything = "\0".join(texts.values())
    results: list[tuple[int, int, dict[str, int]]] = []
    for start in range(len(text)):
        end = start
        while end < len(text) and everything.find(text[start : end + 1]) >= 0:
            end += 1
        if end - start >= minimum and end > max((past for _, past, _ in results), default=0):
            part = text[start:end]
            results.append((start, end, {name: times(part, held) for name, held in texts.items() if part in held}))
    return results


def described(search: TextSearch, parts: list[TextMatch]) -> list[tuple[int, int, dict[str, int]]]:
    listed = []
    for part in parts:
        named = {row["id"]: row["occurrences"] for row in search.documents(part)}
        assert search.count_documents(part) == len(named) and part.occurrence_count == sum(named.values())
        listed.append((part.start, part.end, named))
    return listed


def test_decomposed_text_matches_the_composed_one(search: TextSearch, texts: dict[str, str]) -> None:
    """Positions refer to the given text: its two-character letters are one character in the documents."""
    held = next(text for text in texts.values() if "é" in text[10:60])[10:60]
    apart = unicodedata.normalize("NFD", held)
    (whole,), (result,) = search.find_parts(f"@@ {held} @@", 30), search.find_parts(f"@@ {apart} @@", 30)
    assert len(apart) > len(held) and apart.startswith(f"@@ {apart} @@"[result.start : result.end].strip())
    assert described(search, [result])[0][2] == described(search, [whole])[0][2]
    assert search.contains(apart) and search.contains(held) and not search.contains(f"{apart}@@")


PIECES = [
    "de polder ",
    "the miller counted ",
    "één café",
    " <|end_of_text|>",
    " 1953",
    "x",
    "é",
    " 's",
    "\n",
    "dyke while",
]


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 2)
@given(
    numbers=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 60)), max_size=3),
    pieces=st.lists(st.sampled_from(PIECES), min_size=4, max_size=4),
    minimum=st.integers(1, 30),
)
def test_matches_equal_brute_force(
    search: TextSearch, texts: dict[str, str], numbers: list[tuple[int, int, int]], pieces: list[str], minimum: int
) -> None:
    held = list(texts.values())
    cut = [held[document % len(held)] for document, _, _ in numbers]
    quotes = [text[at % max(len(text), 1) :][:size] for text, (_, at, size) in zip(cut, numbers, strict=True)]
    text = "".join(piece + quote for piece, quote in zip(pieces, [*quotes, "", "", ""], strict=False))
    assert described(search, search.find_parts(text, minimum)) == brute(text, minimum, texts)


WORDS = ["de polder ", "gemalen ", "gemaal ", "het gemaal ", "een dijk ", "dijken ", "polders ", "één ", "sluis\n"]


@pytest.fixture(scope="module")
def monotonous(
    build_tokens: Callable[..., Path],
    write: Callable[..., Path],
    tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TextSearch, dict[str, str]]:
    """Return the search over documents of nine words with thousands of occurrences each, and their texts."""
    folder, draw = tmp_path_factory.mktemp("monotonous"), Random(1)
    described = {"language": "nl", "language_score": 1.0, "source": "s", "license": "CC0-1.0"}
    rows = [
        {"id": f"s/{n}", "text": "".join(draw.choices(WORDS, k=60)), "id_hash": id_hash(f"s/{n}"), **described}
        for n in range(300)
    ]
    index = build_tokens(folder / "main", [write(folder / "documents.parquet", rows)], tokenizer)
    sort_suffixes(index, tokenizer)
    held = {str(row["id"]): str(row["text"]) for row in rows if not is_validation_cluster(str(row["id"]), FRACTION)}
    return TextSearch(index, tokenizer), held


@pytest.mark.slow
@settings(max_examples=60)
@given(
    words=st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 4)), min_size=2, max_size=6),
    minimum=st.integers(4, 16),
)
def test_thousands_of_matches_equal_brute_force(
    monotonous: tuple[TextSearch, dict[str, str]], words: list[tuple[str, int]], minimum: int
) -> None:
    search, texts = monotonous
    text = "".join(word[cut:] for word, cut in words)
    parts = search.find_parts(text, minimum)
    assert described(search, parts) == brute(text, minimum, texts)
    longest = max(map(len, WORDS))
    for part in parts:
        for row, positions in zip(search.rows, part.positions, strict=True):
            for at in positions[:20].tolist():
                rest = search.decode_row(row, at, min(at + 60, row.tokens))
                assert any(rest.startswith(text[part.start + cut : part.end]) for cut in range(longest))


def test_quote_matches_at_document_boundaries_but_not_across_them(search: TextSearch, texts: dict[str, str]) -> None:
    row = search.rows[0]
    (first, second) = [row["id"] for row in row.documents_in(0, row.tokens) if len(texts[row["id"]]) > 60][:2]
    for part in (texts[first], texts[first][:40], texts[first][-40:], texts[first][3:-3]):
        (result,) = search.find_parts(part, 40)
        assert (result.start, result.end) == (0, len(part))
        assert first in {row["id"] for row in search.documents(result)}
    end, start = texts[first][-30:], texts[second][:30]
    assert [end, start] == [(end + start)[p.start : p.end] for p in search.find_parts(end + start, 30)]


def test_changed_word_splits_a_quote_in_two(search: TextSearch, texts: dict[str, str]) -> None:
    text = next(text for text in texts.values() if len(text) > 200)
    changed = f"{text[:100]}#{text[101:]}"
    assert [(part.start, part.end) for part in search.find_parts(changed, 60)] == [(0, 100), (101, len(text))]
    assert search.find_parts("nothing of this was ever written by anybody at all", 20) == []


def test_documents_of_two_licenses_are_both_named(
    build_tokens: Callable[..., Path], write: Callable[..., Path], tokenizer: Path, tmp_path: Path
) -> None:
    quote = "één polder ligt lager dan de zee en wordt elke morgen droog gehouden"
    rows = []
    for number, license_name in enumerate(("CC0-1.0", "CC-BY-4.0")):
        described = {"language": "nl", "language_score": 1.0, "source": f"s{number}", "license": license_name}
        rows += [
            {"id": f"s{number}/{n}", "text": f"x{n} {quote}!", "id_hash": id_hash(f"s{number}/{n}"), **described}
            for n in range(9)
        ]
    index = build_tokens(tmp_path / "main", [write(tmp_path / "documents.parquet", rows)], tokenizer)
    sort_suffixes(index, tokenizer)
    search = TextSearch(index, tokenizer)
    (part,) = search.find_parts(quote, 40)
    held = {row["id"]: row["license"] for row in rows if not is_validation_cluster(str(row["id"]), FRACTION)}
    assert {row["id"]: row["license"] for row in search.documents(part)} == held
    assert set(held.values()) == {"CC0-1.0", "CC-BY-4.0"}
    (index.parent / "train/0.arrow").replace(index.parent / "train/other.arrow")
    with pytest.raises(InputError, match="missing"):
        TextSearch(index, tokenizer)


def test_foreign_or_altered_suffix_array_is_refused(built: Path, tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "main"
    shutil.copytree(built.parent, folder)
    sort_suffixes(folder / "index.json", tokenizer)
    kept = (folder / "suffixes/0.arrow").read_bytes()
    shutil.copy(folder / "suffixes/1.arrow", folder / "suffixes/0.arrow")
    with pytest.raises(InputError, match=r"0\.arrow is of another shard"):
        TextSearch(folder / "index.json", tokenizer)
    (folder / "suffixes/0.arrow").write_bytes(kept[:50])
    with pytest.raises(InputError, match=r"0\.arrow is no suffix array"):
        TextSearch(folder / "index.json", tokenizer)
    at = len(kept) // 2 // 8 * 8
    (folder / "suffixes/0.arrow").write_bytes(kept[:at] + b"\xff\xff\xff\x7f" * 16 + kept[at + 64 :])
    search = TextSearch(folder / "index.json", tokenizer)
    with pytest.raises(InputError, match="a suffix array was altered"):
        for word in TEXT_WORDS:
            search.find_parts(word, 1)


TEXT_WORDS = ["de polder", "gemalen", "the miller", "zee en", "café", "opent elke morgen", "counted", "sluis", "'s"]


def test_occurrences_beyond_the_buffer_are_counted_but_not_written(search: TextSearch) -> None:
    shard, number = search._shards[0], max(range(len(search._words)), key=lambda token: len(search._words[token]))
    word = np.frombuffer(search._words[number], dtype=np.uint8)
    places = np.full(3, -7, dtype=np.int64)
    assert suffix_search.find_single_token_occurrences(shard, word, number, places[1:1]) > 1, (
        "they are counted nevertheless"
    )
    reach = suffix_search.longest_vocabulary_suffix_lengths(search._vocabulary, word)
    assert suffix_search.find_text_occurrences(shard, word, 0, len(word), reach, places[1:2]) > 1
    assert places[0] == places[2] == -7 != places[1]
