"""Repeated passages and lines are found exactly, wherever documents are, and removed as whole words."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.corpus import deduplicate, equal_keys, find_duplicates, signatures
from pipeline.corpus.document_streams import read_deduplicated_documents, remove_parts
from pipeline.corpus.documents import DocumentCollector
from pipeline.corpus.duplicates.passage_hashes import hash_all_word_passages
from pipeline.corpus.settings import (
    Corpus,
    DeduplicateSettings,
    Deduplication,
    EqualKeysSettings,
    FindDuplicatesSettings,
    KeyComparison,
    SignatureSettings,
)

WORDS = 8
ONLY_PARTS: dict[str, Any] = {"exact": False, "minhash": False, "prefer": ["b"]}
NOTICE = "Op deze pagina worden cookies gebruikt."
Texts = dict[str, str]  # by id, which begins with the source


def run_steps(
    folder: Path, texts: Texts, units: int, urls: dict[str, str] | None = None, jobs: int = 1, **keys: Any
) -> list[Any]:
    """Deduplicate documents, those of each source in several units; return the rows and the texts that are left."""
    section = Deduplication(**{**ONLY_PARTS, **keys})
    kept_columns = {"language": "nl", "language_score": 1.0, "license": None, "title": None, "date": None}
    collectors: defaultdict[tuple[str, int], DocumentCollector] = defaultdict(DocumentCollector)
    for number, (name, text) in enumerate(texts.items()):
        place = name.split("/")[0], number % units
        row = {"id": name, "text": text, "source": place[0], "url": (urls or {}).get(name), **kept_columns}
        collectors[place].add(row)
    files, signed = [], []
    for (source, unit), collector in collectors.items():
        files.append(folder / f"{source}.{unit}.parquet")
        signed.append(folder / f"{source}.{unit}.signatures")
        collector.write(files[-1], {"source": source, "unit": unit, "stage": "filter"})
        of_signatures = section.model_dump(include=set(SignatureSettings.model_fields))
        signatures.run(SignatureSettings(**of_signatures), documents=files[-1], signatures=signed[-1])
    duplicate_settings = FindDuplicatesSettings(deduplication=section)
    pairs = [folder / f"{share}.pairs" for share in range(jobs) if jobs > 1]
    for share, path in enumerate(pairs):
        keys_of_share = section.model_dump(include=set(KeyComparison.model_fields))
        equal_keys.run(
            EqualKeysSettings(share=share, shares=jobs, **keys_of_share), signatures=signed, reserved=[], pairs=path
        )
    parts: dict[str, list[Path]] = {"signatures": signed, "documents": files, "reserved": [], "pairs": pairs}
    counts = find_duplicates.run(duplicate_settings, **parts, duplicates=folder / "duplicates")
    left: dict[str, str] = {}
    removed: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for file in files:
        steps = {"duplicates": folder / "duplicates" / file.name, "deduplicated": folder / f"{file.name}.kept"}
        deduplicate.run(DeduplicateSettings(), documents=file, **steps, removed=folder / f"{file.name}.removed")
        rows += pq.read_table(steps["duplicates"]).to_pylist()
        for table in read_deduplicated_documents(file, steps["deduplicated"], ["id", "text"]):
            left |= {row["id"]: row["text"] for row in table.to_pylist()}
        removed |= {row["id"]: row["reason"] for row in pq.read_table(folder / f"{file.name}.removed").to_pylist()}
    return [{row["id"]: row for row in rows}, left, removed, counts]


def in_order(texts: Texts) -> list[tuple[str, str]]:
    return sorted(texts.items(), key=lambda pair: (pair[0][0] != "b", sha256(pair[0].encode()).digest()[:8]))


def repeated_words(texts: Texts, size: int) -> dict[str, list[bool]]:
    """Return for each word of each text whether it is in a passage of an earlier document, with a dictionary."""
    seen: dict[tuple[str, ...], str] = {}
    repeated = {}
    for name, text in in_order(texts):
        words = re.findall(r"[^ \t\n\r\f\v]+", text)
        repeated[name] = [False] * len(words)
        for start in range(len(words) - size + 1):
            passage = tuple(words[start : start + size])
            if seen.setdefault(passage, name) != name:
                repeated[name][start : start + size] = [True] * size
    return repeated


def words_in_spans(text: str, row: dict[str, Any] | None, reason: str) -> list[bool]:
    spans = [span for span in (row or {}).get("spans") or [] if span["reason"] == reason]
    places = [match.span() for match in re.finditer(rb"[^ \t\n\r\f\v]+", text.encode())]
    ordered = sorted((span["start"], span["end"]) for span in spans)
    assert all(before[1] < after[0] for before, after in pairwise(ordered)), "the longest parts"
    for span in spans:
        assert {span["start"], span["end"]} <= {place for pair in places for place in pair}, "whole words"
    return [any(span["start"] <= start and end <= span["end"] for span in spans) for start, end in places]


PIECE = st.sampled_from(
    ["één twee drie vier vijf zes zeven acht", "a b", "é", "a a a a", "weer\nniet", "x  \n\n y", "z"]
)
TEXTS = st.lists(st.lists(PIECE, max_size=12).map(" ".join), min_size=1, max_size=7)


@pytest.mark.slow
@settings(max_examples=40)
@given(TEXTS, st.integers(1, 3), st.sampled_from([8, 9, 13]))
def test_repeated_passages_equal_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], units: int, size: int
) -> None:
    texts = {f"{'abc'[number % 3]}/x/{number}": text.strip() or "." for number, text in enumerate(pieces)}
    rows, left, removed, _ = run_steps(tmp_path_factory.mktemp("units"), texts, units, passage_words=size)
    expected = repeated_words(texts, size)
    for name, text in texts.items():
        assert words_in_spans(text, rows.get(name), "repeated_passages") == expected[name]
        words = [word for word, is_repeated in zip(text.split(), expected[name], strict=True) if not is_repeated]
        assert left.get(name, "").split() == words
        assert removed.get(name) == (None if words else "repeated_passages")


def random_corpus(documents: int) -> Texts:
    """Return documents that share passages of 1 to 30 words of each other."""
    draw, texts = random.Random(4), {}
    words = [f"woord{number}" for number in range(400)]
    pool = [[draw.choice(words) for _ in range(draw.randrange(5, 80))] for _ in range(40)]
    for number in range(documents):
        parts = []
        for _ in range(draw.randrange(1, 6)):
            other = draw.choice(pool)
            start = draw.randrange(len(other))
            parts.append(" ".join(other[start : start + draw.randrange(1, 30)]))
            parts.append(" ".join(draw.choice(words) for _ in range(draw.randrange(4))))
        lines = [" ".join(draw.choice(pool)[:3]) for _ in range(draw.randrange(3))]
        text = draw.choice([" ", "\n", "\n\n"]).join(filter(None, parts))
        texts[f"{'abc'[number % 3]}/x/{number}"] = "\n".join([text, *lines])
    return texts


@pytest.mark.slow
def test_neither_units_nor_jobs_nor_memory_change_the_result(tmp_path: Path) -> None:
    texts = random_corpus(150)
    results = []
    for number, (units, memory_bytes, jobs) in enumerate([(1, 10**9, 1), (4, 10**9, 3), (3, 60_000, 1)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        keys: dict[str, Any] = {
            "passage_words": WORDS,
            "line_characters": 8,
            "line_documents": 2,
            "memory_bytes": memory_bytes,
        }
        results.append(run_steps(folder, texts, units, jobs=jobs, exact=True, **keys))
    assert results[0] == results[1] == results[2]
    rows, left, _, counts = results[0]
    expected = repeated_words(texts, WORDS)
    assert sum(map(sum, expected.values())) > 1000 and counts["passages_cut"] > 100
    lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, text in in_order(texts):
        for line in {" ".join(line.split()) for line in text.split("\n")}:
            lines[name[0], line].append(name)
    assert counts["lines_cut"] > 20
    for name, text in texts.items():
        spans = [span for span in (rows.get(name) or {}).get("spans") or [] if span["reason"] == "boilerplate_lines"]
        removed = [" ".join(text.encode()[span["start"] : span["end"]].decode().split()) for span in spans]
        every = (" ".join(line.split()) for line in text.split("\n"))
        assert removed == [line for line in every if len(line) >= 8 and lines[name[0], line][0] != name]
        assert words_in_spans(text, rows.get(name), "repeated_passages") == expected[name]
        for span in (rows.get(name) or {}).get("spans") or []:
            first = " ".join(text.encode()[span["start"] : span["end"]].decode().split()[:WORDS])
            assert first.casefold() in " ".join(texts[span["kept"]].split()).casefold()
    assert rows.keys() >= left.keys() - texts.keys()


def test_too_little_memory_is_refused_with_what_suffices(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"memory_bytes leaves \d+ for lines and passages, and they need \d+: raise"):
        run_steps(tmp_path, random_corpus(150), 1, passage_words=WORDS, memory_bytes=12_000)


@pytest.mark.parametrize("keys", [{"passage_words": WORDS}, {"line_characters": 8, "line_documents": 2}])
def test_signatures_of_other_texts_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    line = " ".join(f"woord{number}" for number in range(10))
    for folder, other in (("one", f"{line} meer"), ("two", f"{line}\n{line} nog iets anders\n{line} en nog veel meer")):
        (tmp_path / folder).mkdir()
        run_steps(tmp_path / folder, {"b/x/1": f"1\n{line}\n{other}", "b/x/2": f"2\n{line}\n{other}"}, 1, **keys)
    with pytest.raises(InputError, match=r"b\.0\.signatures does not match .*b\.0\.parquet: rerun corpus\.signatures"):
        find_duplicates.run(
            FindDuplicatesSettings(deduplication=Deduplication(**ONLY_PARTS, **keys)),
            signatures=[tmp_path / "one/b.0.signatures"],
            documents=[tmp_path / "two/b.0.parquet"],
            reserved=[],
            pairs=[],
            duplicates=tmp_path / "duplicates",
        )


def test_line_is_removed_from_all_but_the_first_of_many_documents_of_a_domain(tmp_path: Path) -> None:
    other = "Deze regel staat in één document minder."
    texts, urls = {}, {}
    for number in range(6):
        name = f"a/x/{number}"
        urls[name] = f"https://{'www.' if number % 2 else ''}voorbeeld.nl/{number}"
        texts[name] = f"{number} begin\n{NOTICE if number % 2 else NOTICE.upper()}\n{other * (number < 5)}\neinde"
    urls["a/x/0"] = "https://elders.nl/0"
    first = in_order({name: text for name, text in texts.items() if urls.get(name, "").count("voorbeeld")})[0][0]
    texts[first] += f"\n{NOTICE}"  # all stay in the first document
    texts["b/x/9"] = f"{NOTICE}\n{NOTICE}\nZonder adres."
    rows, left, removed, counts = run_steps(tmp_path, texts, 2, urls, line_characters=20, line_documents=5)
    assert counts["lines_cut"] == 4 and removed == {}
    for name, text in texts.items():
        is_cut = name in urls and name not in ("a/x/0", first)
        expected = "".join(f"{line}\n" for line in text.split("\n") if line.strip().lower() != NOTICE.lower())
        assert left[name] == (re.sub("\n+$", "", expected) if is_cut else text)
        if is_cut:
            (span,) = rows[name]["spans"]
            assert (span["reason"], span["kept"]) == ("boilerplate_lines", first)


def test_removed_copies_keep_and_lose_nothing(tmp_path: Path) -> None:
    copy = " ".join(f"woord{number}" for number in range(20))
    texts = {"b/x/1": copy, "b/x/2": copy, "a/x/3": f"{copy} en meer"}
    rows, left, removed, counts = run_steps(tmp_path, texts, 1, passage_words=WORDS, exact=True)
    assert counts["exact_duplicate"] == 1 and counts["passages_cut"] == 1
    assert removed == {"b/x/2": "exact_duplicate"} and left == {"b/x/1": copy, "a/x/3": "en meer"}
    assert rows["b/x/2"]["spans"] is None and rows["a/x/3"]["spans"][0]["kept"] == "b/x/1"


def test_passages_side_by_side_are_one_part(tmp_path: Path) -> None:
    one, other = (" ".join(f"{letter}{number}" for number in range(WORDS)) for letter in "xy")
    texts = {"b/x/1": one, "b/x/2": other, "a/x/3": f"{one}\n{other}"}
    rows, left, removed, counts = run_steps(tmp_path, texts, 1, passage_words=WORDS)
    (span,) = rows["a/x/3"]["spans"]
    assert (span["start"], span["end"], span["kept"]) == (0, len(texts["a/x/3"]), "b/x/1")
    assert removed == {"a/x/3": "repeated_passages"} and counts["passages_cut"] == 1 and "a/x/3" not in left


SPAN = st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from(["repeated_passages", "boilerplate_lines"]))


@given(
    st.lists(st.tuples(st.sampled_from(["é", "b", "cc\u00a0"]), st.sampled_from([" ", "\n", "\n\n", " \n"]))),
    st.lists(SPAN, min_size=1, max_size=4),
    st.sets(st.integers(0, 3), max_size=2),
)
def test_removal_keeps_other_words_apart_and_counts_each_byte_once(
    words: list[tuple[str, str]], chosen: list[tuple[int, int, str]], paragraphs: set[int]
) -> None:
    text = "".join(f"{word}{number}{gap}" for number, (word, gap) in enumerate(words)).strip()
    places = [match.span() for match in re.finditer(rb"\S+", text.encode())]
    bounds = [(places[min(pair)][0], places[max(pair)][1], why) for *pair, why in chosen if max(pair) < len(places)]
    spans = [{"start": start, "end": end, "reason": why, "kept": ""} for start, end, why in bounds]
    shorter, sizes = remove_parts(text, paragraphs, spans)
    pieces = re.split(r"\n\s*\n", text)
    starts = [text.index(piece) for piece in pieces]
    in_paragraph = {
        len(text[: start + match.start()].encode())
        for number, (start, piece) in enumerate(zip(starts, pieces, strict=True))
        if number in paragraphs
        for match in re.finditer(r"[^ \n]+", piece)
    }
    content = text.encode()
    gone = {place for place in places if place[0] in in_paragraph} | {
        place for place in places for start, end, _ in bounds if start <= place[0] < end
    }
    assert shorter.encode().split() == [content[start:end] for start, end in places if (start, end) not in gone]
    if spans:
        assert sum(sizes.values()) == len(content) - len(shorter.encode()) and all(sizes.values())
        by_paragraph = sum(end - start for start, end in gone if start in in_paragraph)
        assert sizes.get("duplicate_paragraphs", 0) >= by_paragraph


def test_white_space_with_the_most_line_breaks_stays() -> None:
    def remove(text: str, *parts: str) -> str:
        starts = [text.encode().index(part.encode()) for part in parts]
        ends = [start + len(part.encode()) for start, part in zip(starts, parts, strict=True)]
        of_part = {"reason": "repeated_passages", "kept": "s/x/1"}
        spans = [{"start": start, "end": end, **of_part} for start, end in zip(starts, ends, strict=True)]
        return remove_parts(text, (), spans)[0]

    assert remove("één twee\n\ndrie vier", "twee\n\ndrie") == "één\n\nvier"
    assert remove("één twee\ndrie", "twee") == "één\ndrie"
    assert remove("één\n twee drie", "twee") == "één\n drie"
    assert remove("één twee drie vier", "drie", "twee") == "één vier"
    assert remove("één twee drie vier", "één", "drie") == "twee vier"
    assert remove("één twee", "twee") == "één" and remove("één twee", "één") == "twee"


def test_equal_passages_have_equal_anchors_and_few_of_them() -> None:
    draw = random.Random(1)
    words = [f"{draw.random()}" for _ in range(5000)]
    passages = hash_all_word_passages(" ".join(words), 50)
    assert len(passages.anchor_P) == 4951 and 300 < len(passages.anchors_A) < 460
    inside = hash_all_word_passages("\n".join(words[1234:1284]), 50)
    assert inside.anchors_A == passages.anchors_A[passages.anchor_P[1234]]
    assert (inside.keys_P[:, 0] == passages.keys_P[:, 1234]).all() and (passages.keys_P[0] != 0).all()
    assert len(hash_all_word_passages("te kort", 50).anchors_A) == 0


@pytest.mark.slow
def test_statistics_count_what_each_way_removes(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    keys = {"paragraphs": True, "paragraph_characters": 60, "passage_words": 20, "line_characters": 30}
    chain = new_chain(Corpus(deduplication=Deduplication(**keys, line_documents=2, minhash=False, prefer=["a"])))
    water, baker, bicycle = texts["nl_water"], texts["nl_bakker"], texts["nl_fiets"]
    paragraph = "Overname van deze tekst is toegestaan, mits met een duidelijke bronvermelding."
    made = {
        "1": f"{water}\n\n{paragraph}",
        "2": f"{baker}\n{NOTICE}\n\n{paragraph}",
        "3": f"Wat er ook gebeurt: {water} En zo ging het verder.\n{NOTICE}\n{bicycle}",
    }
    chain.filter("a", {"x.jsonl": as_json_lines(made)})
    chain.filter("b", {"y.jsonl": as_json_lines({"4": bicycle, "5": f"Nu dan, nog een keer: {water} Klaar is het."})})
    counts = chain.deduplicate(["a", "b"])
    assert (counts["paragraphs_cut"], counts["lines_cut"], counts["passages_cut"]) == (1, 2, 3), "one is both"
    totals = chain.statistics(["a", "b"])["totals"]
    assert totals["stages"][1]["removed"] == {"repeated_passages": 1}
    cut = totals["stages"][1]["cut"]
    documents = {"boilerplate_lines": 1, "duplicate_paragraphs": 1, "repeated_passages": 2}
    assert {reason: sizes["documents"] for reason, sizes in cut.items()} == documents
    before, left = (
        {row["id"]: row["text"] for source in "ab" for row in chain.rows(f"{source}.{name}")}
        for name in ("filtered", "final")
    )
    shorter = sum(len(before[name].encode()) - len(text.encode()) for name, text in left.items())
    assert sum(sizes["bytes"] for sizes in cut.values()) == shorter
    text = " ".join(left.values())
    assert text.count(NOTICE) == text.count(paragraph) == text.count(water[50:]) == 1


def test_keys_that_are_off_are_not_in_the_settings_of_jobs() -> None:
    plain = FindDuplicatesSettings(deduplication=Deduplication()).result_settings()["deduplication"]
    assert not {"passage_words", "line_characters", "line_documents"} & {*plain, *SignatureSettings().result_settings()}
    lines = Deduplication(line_characters=20, line_documents=5)
    assert lines.result_settings()["line_documents"] == 5 and "line_documents" not in SignatureSettings.model_fields
    with pytest.raises(ValidationError, match="line_documents has no effect without line_characters"):
        Deduplication(line_documents=5)
