"""A document that contains an evaluation item is removed, and the hits are listed task by task."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import ngrams
from pipeline.corpus.contamination_settings import Decontamination, NgramsSettings
from pipeline.corpus.decontaminate import Items
from pipeline.corpus.settings import Corpus
from pipeline.corpus.text.word_hashes import SLICE_BYTES, hash_ngrams, hash_texts
from pipeline.ground.errors import InputError
from pipeline.run.config import load
from pipeline.run.steps import step_settings

LONG = "the lighthouse keeper wrote his sister a letter about seven birds that rested upon the iron railing"
SHORT = "Nine words make this sentence short but long enough."
BRIEF = "Four words are enough."
TINY = "Three are not."
LETTERS = st.sampled_from("abC dé É.-’\n…x²")


def rows(*items: Any) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()


def items(folder: Path, contents: dict[str, bytes], overlap: float = 0.0, **changes: int) -> Items:
    section = Decontamination(**changes)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    entries = [{"task": name.split(".")[0], "name": name} for name in contents]
    settings = {"items": entries, "ngram": section.ngram, "minimum_words": section.minimum_words}
    files = [folder / name for name in contents]
    ngrams.run(NgramsSettings.model_validate(settings), files=files, ngrams=folder / "ngrams")
    return Items(folder / "ngrams", overlap)


def words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() and c != "²" else " " for c in text).split()


@given(st.lists(st.text(LETTERS, max_size=60), max_size=6))
def test_equal_words_and_only_those_have_equal_hashes(texts: list[str]) -> None:
    hashes, bounds = hash_texts(texts)
    split = [words(text) for text in texts]
    assert np.diff(bounds).tolist() == [len(part) for part in split]
    flat = [word for part in split for word in part]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))


def test_a_long_text_is_hashed_in_slices_to_the_same_words() -> None:
    text = "één kort verhaal, " * (3 * SLICE_BYTES // 18)
    hashes, bounds = hash_texts([text, "kort"])
    assert np.diff(bounds).tolist() == [len(words(text)), 1]
    assert len(set(hashes.tolist())) == 3 and hashes[-1] == hashes[1]


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 5))
def test_ngrams_are_equal_where_their_words_are(letters: list[str], length: int) -> None:
    hashes = hash_ngrams(hash_texts([" ".join(letters)])[0], length)
    runs = [tuple(letters[place : place + length]) for place in range(len(letters) - length + 1)]
    assert len(hashes) == len(runs)
    assert len(set(zip(runs, hashes.tolist(), strict=True))) == len(set(runs)) == len(set(hashes.tolist()))


def test_long_items_are_found_by_a_part_short_ones_as_a_whole_and_tiny_ones_never(tmp_path: Path) -> None:
    found = items(tmp_path, {"a.jsonl": rows({"x": LONG}, {"x": [SHORT]}, {"x": TINY, "y": 3}, {"x": [TINY, BRIEF]})})
    assert found.tasks == {"a": {"items": 4, "searched": 3, "not_searched": 1}}
    middle = " ".join(LONG.split()[2:15])
    texts = [
        f"So, {middle.upper()}!",
        " ".join(LONG.split()[2:14]),
        f"… «{SHORT.replace(' ', chr(10))}» …",
        SHORT.rsplit(" ", 1)[0],
        f"{TINY} Four words are. Enough?",
        TINY,
        f"{LONG} {SHORT} {SHORT}",
    ]
    assert list(found.find(texts)) == [
        (0, "a", "1", 1, 5),
        (2, "a", "2", 1, 1),
        (4, "a", "4", 1, 1),
        (6, "a", "1", 5, 5),
        (6, "a", "2", 1, 1),
    ]


def test_an_overlap_asks_for_a_share_of_the_ngrams(tmp_path: Path) -> None:
    part = " ".join(LONG.split()[:15])
    assert [
        len(list(items(tmp_path, {"a.jsonl": rows({"x": LONG})}, share).find([part]))) for share in (0.6, 0.61)
    ] == [
        1,
        0,
    ]


def test_an_ngram_does_not_cross_from_one_document_to_the_next(tmp_path: Path) -> None:
    found = items(tmp_path, {"a.jsonl": rows({"x": SHORT})})
    half = len(SHORT.split()) // 2
    parts = [" ".join(SHORT.split()[:half]), " ".join(SHORT.split()[half:])]
    assert list(found.find(parts)) == list(found.find(["", ""])) == []
    assert list(items(tmp_path, {}).find([SHORT])) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet"])
def test_items_are_read_from_every_format_at_any_depth(tmp_path: Path, name: str) -> None:
    row = {"question": "?", "choices": {"text": [SHORT, "another"]}}
    content = {
        "a.jsonl": rows({}, row),
        "a.json": json.dumps([{}, row]).encode(),
        "a.jsonl.gz": gzip.compress(rows({}, row)),
        "a.csv": f'question,text\n?,"{SHORT}"\n'.encode(),
        "a.tsv": f"question\ttext\n?\t{SHORT}\n".encode(),
        "a.parquet": b"",
    }[name]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([{**row, "choices": None}, row]), tmp_path / "made")
        content = (tmp_path / "made").read_bytes()
    found = items(tmp_path, {name: content})
    assert list(found.find([f"x {SHORT}"])) == [(0, "a", "2", 1, 1)]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b"{"), ("a.jsonl.gz", b"x"), ("a.parquet", b"x")])
def test_a_broken_file_of_items_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"the items of the task a in .*{name} cannot be read"):
        items(tmp_path, {name: content})


def test_no_word_of_an_item_is_written(tmp_path: Path) -> None:
    items(tmp_path, {"a.jsonl": rows({"x": LONG})})
    columns = pq.read_table(tmp_path / "ngrams").to_pydict()
    assert "lighthouse" not in str(columns) and columns["task"] == ["a"] * 5


def test_documents_go_with_their_hits_and_the_counts_add_up(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    results = set()
    sentence = "Hij weegt het meel, mengt het met gist en zout, en laat het deeg rusten"
    tasks = {"bread.jsonl": rows({"q": sentence}, {"q": SHORT}), "birds.jsonl": rows({"q": sentence.upper()})}
    for order in ([0, 1, 2], [2, 1, 0]):
        chain = new_chain()
        names = ["nl_water", "nl_bakker", "en_garden"]
        chain.filter("s", {"x.jsonl": as_json_lines({names[place]: texts[names[place]] for place in order})})
        chain.filter("t", {"x.jsonl": as_json_lines({"fiets": texts["nl_fiets"] + " " + SHORT})})
        chain.deduplicate(["s", "t"])
        counts = chain.decontaminate(["s", "t"], tasks)
        assert counts["s"]["removed"] == counts["t"]["removed"] == {"contaminated": 1}
        assert counts["s"]["tasks"] == {"birds": 1, "bread": 1}
        removed = chain.rows("s.decontaminate")
        assert [(row["id"], row["reason"], row["value"]) for row in removed] == [
            ("s/x.jsonl/nl_bakker", "contaminated", "birds: 1")
        ]
        assert removed[0]["bytes"] == len(texts["nl_bakker"].encode()) and removed[0]["language"] == "nl"
        assert [(row["task"], row["item"]) for row in chain.rows("s.hits")] == [("birds", "1"), ("bread", "1")]
        assert {row["id"] for row in chain.rows("s.final")} == {"s/x.jsonl/nl_water", "s/x.jsonl/en_garden"}
        statistics = chain.statistics(["s", "t"])
        assert statistics["totals"]["stages"][2] == {
            "stage": "decontaminate",
            "in": 4,
            "kept": 2,
            "removed": {"contaminated": 2},
        }
        assert statistics["contamination"] == {
            "birds": {
                "items": 1,
                "searched": 1,
                "not_searched": 0,
                "found": 1,
                "found_items": ["1"],
                "documents": 1,
                "sources": {"s": 1},
            },
            "bread": {
                "items": 2,
                "searched": 2,
                "not_searched": 0,
                "found": 2,
                "found_items": ["1", "2"],
                "documents": 2,
                "sources": {"s": 1, "t": 1},
            },
        }
        files = ["statistics.json", "ngrams", *(f"s.{kind}" for kind in ("final", "hits", "decontaminate"))]
        results.add(tuple((chain.folder / name).read_bytes() for name in files))
    assert len(results) == 1


def test_a_corpus_without_contamination_is_itself(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    assert chain.rows("s.final") == chain.rows("s.deduplicated")
    assert (
        pq.read_schema(chain.folder / "s.final").remove_metadata()
        == pq.read_schema(chain.folder / "s.deduplicated").remove_metadata()
    )


def test_the_items_are_those_of_the_configured_tasks_unless_switched_off() -> None:
    raw = {"run": {"name": "x"}, "sources": [_source()], "evaluation": {"suites": ["dutch"]}}
    config = load({**raw, "corpus": {"main": {}, "all": {"decontamination": {"enabled": False}}}})
    assert [task for task, _ in config.items("main")] == ["polder_nl_grammatica", "polder_nl_kennis"]
    assert config.items("all") == []
    named = step_settings(config, "corpus.ngrams", {"corpus": "main"}).model_dump()["items"]
    assert named[0] == {"task": "polder_nl_grammatica", "name": "polder_nl_grammatica.jsonl"}


def test_a_mirror_of_shipped_tasks_is_read_by_data_set(tmp_path: Path) -> None:
    data = tmp_path / "facebook" / "belebele" / "data"
    data.mkdir(parents=True)
    (data.parent / "README.md").write_text("x")
    (data / "nld.parquet").write_bytes(b"")
    suite = {"name": "b", "language": "nl", "tasks": ["belebele_nld_Latn"], "data": str(tmp_path)}
    config = load({"run": {"name": "x"}, "sources": [_source()], "evaluation": {"suites": [suite]}})
    assert config.items("main") == [("facebook/belebele", data / "nld.parquet")]


def test_more_words_than_an_ngram_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="minimum_words is 9, more than the 8 words"):
        Corpus.model_validate({"decontamination": {"ngram": 8, "minimum_words": 9}})


def _source() -> dict[str, Any]:
    rights = {"basis": "licence", "holder": "someone"}
    return {"name": "s", "path": "config/corpus/*.jsonl", "language": "nl", "license": "CC0-1.0", "rights": rights}
