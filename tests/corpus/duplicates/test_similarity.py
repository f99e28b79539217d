"""A removed near duplicate has the required similarity to its kept document, by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus import find_duplicates, signatures
from pipeline.corpus.documents import DocumentCollector
from pipeline.corpus.duplicates import minhash
from pipeline.corpus.duplicates.minhash import find_similar_kept_texts
from pipeline.corpus.settings import Deduplication, FindDuplicatesSettings, SignatureSettings

WORDS = [a + b + c for a in ("dijk", "water", "molen", "kade") for b in ("e", "a", "o", "u") for c in "rstlmnkpbd"]


def jaccard(one: str, other: str, length: int = 5) -> float:
    """Return the similarity of two texts of lower-case words."""
    sets = [
        {tuple(text.split()[at : at + length]) for at in range(len(text.split()) - length + 1)} for text in (one, other)
    ]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def chain(revisions: int, words: int, changed: int, seed: int) -> list[str]:
    """Return revisions of a text, each with some words of the one before replaced by others."""
    draw = random.Random(seed)
    text = draw.choices(WORDS, k=words)
    texts = []
    for _ in range(revisions):
        texts.append(" ".join(text))
        for place in draw.sample(range(words), changed):
            text[place] = draw.choice(WORDS)
    return texts


def deduplicated(
    folder: Path, texts: dict[str, str], section: Deduplication, units: int = 1, rows_per_group: int = 1000
) -> dict[str, dict[str, Any]]:
    """Return the decisions on documents with copies, by id."""
    folder.mkdir()
    documents, signed = [], []
    keys = set(SignatureSettings.model_fields)
    for unit in range(units):
        collector = DocumentCollector()
        for name in [*texts][unit::units]:
            row = {"id": name, "text": texts[name], "language": "nl", "language_score": 1.0, "source": "s"}
            collector.add({**row, "license": "CC0-1.0"})
        documents.append(folder / f"{unit}.documents")
        collector.write(documents[-1], {"source": "s", "unit": unit})
        table, stored = pq.read_table(documents[-1]), pq.read_metadata(documents[-1]).metadata
        pq.write_table(table.replace_schema_metadata({"polder": stored[b"polder"]}), documents[-1], rows_per_group)
        signed.append(folder / f"{unit}.signatures")
        chosen = SignatureSettings(**section.model_dump(include=keys))
        signatures.run(chosen, documents=documents[-1], signatures=signed[-1])
    find_duplicates.run(
        FindDuplicatesSettings(deduplication=section),
        signatures=signed[::-1],
        documents=documents[::-1],
        reserved=[],
        pairs=[],
        duplicates=folder / "duplicates",
    )
    return {row["id"]: row for row in pq.read_table(folder / "duplicates").to_pylist()}


def test_only_revisions_similar_to_a_kept_document_are_removed(tmp_path: Path) -> None:
    revisions = {f"s/x/{number:02d}": text for number, text in enumerate(chain(40, 200, 2, 1))}
    every = deduplicated(tmp_path / "every", revisions, Deduplication(minimum_jaccard=0))
    assert len(every) == 40 and {row["value"] for row in every.values()} == {every["s/x/00"]["value"]}
    assert sum(row["reason"] is not None for row in every.values()) == 39
    assert {row["jaccard"] for row in every.values()} == {None}
    far = [name for name in every if jaccard(revisions[name], revisions[every[name]["value"]]) < 0.3]
    assert len(far) > 10

    section = Deduplication()
    result = deduplicated(tmp_path / "found", revisions, section)
    least = (1 / 14) ** (1 / 8)
    kept = [name for name, row in result.items() if row["reason"] is None]
    assert 2 < len(kept) < 20
    for name, row in result.items():
        assert row["cluster"] == every[name]["value"]
        if row["reason"] is None:
            assert (row["value"], row["jaccard"]) == (name, None)
        else:
            assert row["jaccard"] == jaccard(revisions[name], revisions[row["value"]]) >= least
        assert row["cluster_size"] == sum(other["value"] == row["value"] for other in result.values())
    assert all(jaccard(revisions[one], revisions[other]) < least for one in kept for other in kept if one < other)
    assert section.minimum_similarity == pytest.approx(0.719, abs=0.0005)


def test_decisions_do_not_depend_on_division_or_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"s/{seed}/{number:02d}": text for seed in range(6) for number, text in enumerate(chain(12, 90, 3, seed))}
    texts |= {f"s/copy/{name[2:]}": text.upper() for name, text in [*texts.items()][::5]}
    texts |= {f"s/{name}": f"{text} {text}" for name, text in texts.items() if name.startswith("s/5")}  # n-grams twice
    texts |= {f"s/alone/{seed}": chain(1, 90, 0, 100 + seed)[0] for seed in range(5)}
    section = Deduplication(minimum_jaccard=0.6)
    expected = deduplicated(tmp_path / "expected", texts, section)
    assert {"exact_duplicate", "near_duplicate", None} == {row["reason"] for row in expected.values()}
    shuffled = dict(random.Random(3).sample([*texts.items()], len(texts)))
    # Three texts and those they are compared with.
    monkeypatch.setattr(find_duplicates, "memory_left_for_keys", lambda *_: 9000)
    assert deduplicated(tmp_path / "again", shuffled, section, 3, 7) == expected
    assert all(expected[row["value"]]["reason"] is None for row in expected.values())
    exact = [row for row in expected.values() if row["reason"] == "exact_duplicate"]
    assert exact and all(texts[row["id"]].lower() == texts[row["value"]].lower() for row in exact)
    assert {row["jaccard"] for row in exact} == {None}
    for row in expected.values():
        if row["reason"] == "near_duplicate":
            figure = jaccard(texts[row["id"]].lower(), texts[row["value"]].lower())
            assert row["jaccard"] == figure >= 0.6


def test_copy_of_a_reserved_text_is_removed_at_any_similarity(tmp_path: Path) -> None:
    first, *others = chain(40, 200, 2, 1)
    deduplicated(tmp_path / "reserved", {"t/0": first}, Deduplication())
    deduplicated(tmp_path / "others", {f"s/{number}": text for number, text in enumerate(others)}, Deduplication())
    find_duplicates.run(
        FindDuplicatesSettings(deduplication=Deduplication()),
        signatures=[tmp_path / "others/0.signatures"],
        documents=[tmp_path / "others/0.documents"],
        reserved=[tmp_path / "reserved/0.signatures"],
        pairs=[],
        duplicates=tmp_path / "duplicates",
    )
    rows = pq.read_table(tmp_path / "duplicates").to_pylist()
    assert [(row["reason"], row["value"]) for row in rows] == [("opt_out", "t/0")] * 39
    assert min(jaccard(first, text) for text in others) < 0.3


def test_text_that_does_not_match_its_signature_is_refused(tmp_path: Path) -> None:
    texts = {f"s/x/{number}": text for number, text in enumerate(chain(3, 60, 1, 2))}
    deduplicated(tmp_path / "one", texts, Deduplication())
    table = pq.read_table(tmp_path / "one/0.documents")
    changed = pa.array([f"{text} nog meer woorden" for text in table["text"].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("text"), "text", changed), tmp_path / "other")
    with pytest.raises(InputError, match=r"0\.signatures does not match .*other: rerun corpus\.signatures"):
        find_duplicates.run(
            FindDuplicatesSettings(deduplication=Deduplication()),
            signatures=[tmp_path / "one/0.signatures"],
            documents=[tmp_path / "other"],
            reserved=[],
            pairs=[],
            duplicates=tmp_path / "duplicates",
        )


SETS = st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=5)


def reader(sets: list[list[int]], asked: list[int]) -> Callable[[Any, Any, Any], Any]:
    def read(places: Any, hashes: Any, starts: Any) -> Any:
        results = [sorted(set(sets[place])) for place in places]
        for start, entry in zip(starts, results, strict=True):
            hashes[start : start + len(entry)] = entry
        asked.append(len(places))
        return np.array([len(entry) for entry in results])

    return read


@given(st.lists(SETS, max_size=6), st.integers(0, 400), st.sampled_from([0.25, 0.5, 1.0]))
@settings(max_examples=150)
def test_each_text_is_assigned_to_the_first_similar_kept_text(
    clusters: list[list[list[int]]], memory_bytes: int, least: float
) -> None:
    sets = [entry for cluster in clusters for entry in cluster]
    numbers = np.array([number for number, cluster in enumerate(clusters) for _ in cluster], dtype=np.int64)
    sizes = np.array([len(entry) for entry in sets], dtype=np.int64)
    kept: list[int] = []
    expected: list[tuple[int, float]] = []
    for place, entry in enumerate(sets):
        others = [other for other in kept if numbers[other] == numbers[place]]
        for other in others:
            union = set(entry) | set(sets[other])
            similarity = len(set(entry) & set(sets[other])) / len(union) if union else 0.0
            if similarity >= least:
                expected.append((other, similarity))
                break
        else:
            expected.append((place, 1.0))
            kept.append(place)
    asked: list[int] = []
    try:
        result, similarities = find_similar_kept_texts(numbers, sizes, reader(sets, asked), least, memory_bytes)
    except InputError as error:
        assert "raise it by" in str(error) and memory_bytes < 6 * 8 * 8
    else:
        assert list(zip(result.tolist(), similarities.tolist(), strict=True)) == expected
        assert sum(asked) == len(sets)


def test_comparisons_in_a_cluster_are_not_quadratic() -> None:
    """A thousand texts without anything in common: each is compared with the first hundred."""
    asked: list[int] = []
    sets = [[number] for number in range(1000)] + [[50], [500]]
    numbers = np.zeros(len(sets), dtype=np.int64)
    sizes = np.ones(len(sets), dtype=np.int64)
    for memory_bytes in (2000, 100_000):
        result, _ = find_similar_kept_texts(numbers, sizes, reader(sets, asked), 0.5, memory_bytes)
        assert result.tolist() == [*range(1000), 50, 1001]
    assert minhash.MAXIMUM_COMPARED == 100 and max(asked[:-1]) <= 2000 // 8 // 2
