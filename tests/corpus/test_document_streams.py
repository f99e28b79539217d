"""Deduplication stores the kept ids once without their text, and readers get the unchanged documents."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus import deduplicate, document_streams, documents
from pipeline.corpus.document_streams import (
    KEPT_SCHEMA,
    kept_documents_schema,
    merge_documents,
    read_aligned,
    read_deduplicated_documents,
    remove_paragraphs_from_text,
)
from pipeline.corpus.documents import (
    DEDUPLICATED_SCHEMA,
    DOCUMENT_SCHEMA,
    FINAL_SCHEMA,
    LAST_HASH,
    DocumentWriter,
    id_hash,
)
from pipeline.corpus.find_duplicates import DUPLICATE_SCHEMA
from pipeline.corpus.settings import Corpus, DeduplicateSettings, Deduplication

COUNTED = ("documents", "bytes", "languages", "licenses", "flags")
PARAGRAPHS = Corpus(deduplication=Deduplication(paragraphs=True, paragraph_characters=80))
TEXT = "eerste\n\ntweede\n\nderde"


def stored(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[b"polder"])
    return content


def write_unit(folder: Path, number: int, decisions: dict[int, dict[str, Any]], group: int = 3) -> list[dict[str, Any]]:
    """Write a unit of documents with decisions on some, by position; return the documents."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = sorted((f"s/x/{n}" for n in range(number)), key=lambda name: (id_hash(name), name))
    rows = [
        {"id": name, "text": TEXT, "language": "nl", "language_score": 0.9, "source": "s", "license": "MIT"}
        | {"flags": [f"f{place % 2}"], "url": f"u{place}", "id_hash": id_hash(name)}
        for place, name in enumerate(ids)
    ]
    with DocumentWriter(folder / "filtered") as writer:
        writer.metadata |= {"source": "s", "unit": 0, "stage": "filter"}
        for start in range(0, number, group):
            writer.write(pa.Table.from_pylist(rows[start : start + group], schema=DOCUMENT_SCHEMA))
    nothing = {"reason": None, "jaccard": None, "cluster_size": 1, "cut": []}
    results = [
        {"id": ids[n], "value": ids[n], "cluster": ids[n], **nothing, **one} for n, one in sorted(decisions.items())
    ]
    table = pa.Table.from_pylist(results, schema=DUPLICATE_SCHEMA)
    known = json.dumps({"source": "s", "unit": 0, "documents": number}, sort_keys=True)
    pq.write_table(table.replace_schema_metadata({"polder": known}), folder / "duplicates")
    return rows


def keep(folder: Path) -> dict[str, Any]:
    files = {name: folder / name for name in ("documents", "duplicates", "deduplicated", "removed")}
    return deduplicate.run(DeduplicateSettings(), **files | {"documents": folder / "filtered"})


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "reason": st.sampled_from([None, "near_duplicate", "exact_duplicate"]),
        "cut": st.lists(st.integers(0, 2), unique=True).map(sorted),
        "cluster": st.sampled_from(["s/x/0", "t/y/1"]),
        "cluster_size": st.integers(1, 5),
    },
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 11).flatmap(lambda n: st.tuples(st.just(n), st.dictionaries(st.integers(0, n - 1), CHANGES))))
def test_reader_returns_exactly_the_documents_that_were_kept(
    tmp_path_factory: pytest.TempPathFactory, unit: tuple[int, dict[int, dict[str, Any]]]
) -> None:
    folder, (number, decisions) = tmp_path_factory.mktemp("unit"), unit
    expected, gone, cut_bytes = [], {}, 0
    for place, row in enumerate(write_unit(folder, number, decisions)):
        one = decisions.get(place, {})
        text = remove_paragraphs_from_text(TEXT, one["cut"]) if one.get("cut") else TEXT
        reason = one.get("reason") if text else "duplicate_paragraphs"
        if reason is not None:
            gone[row["id"]] = reason
            continue
        cut_bytes += len(TEXT) - len(text)
        added = {"cluster": one.get("cluster", row["id"]), "cluster_size": one.get("cluster_size", 1)}
        expected.append({**dict.fromkeys(DEDUPLICATED_SCHEMA.names), **row, **added, "text": text})
    counts = keep(folder)
    tables = list(read_deduplicated_documents(folder / "filtered", folder / "deduplicated"))
    assert pa.concat_tables(tables).to_pylist() == expected
    assert {table.schema for table in tables} == {kept_documents_schema(folder / "filtered")}
    texts = pa.concat_tables(
        read_deduplicated_documents(folder / "filtered", folder / "deduplicated", ["text", "cluster"])
    )
    assert texts.to_pylist() == [{key: row[key] for key in ("text", "cluster")} for row in expected]
    assert {row["id"]: row["reason"] for row in pq.read_table(folder / "removed").to_pylist()} == gone
    assert counts["documents_out"] == len(expected) and counts["bytes_cut"] == cut_bytes
    assert counts["bytes_out"] == sum(len(row["text"]) for row in expected)
    assert stored(folder / "deduplicated")["flags"] == dict(Counter(row["flags"][0] for row in expected))


def test_texts_are_stored_twice_and_counted_equally(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain = new_chain(PARAGRAPHS)
    shared = texts["en_lighthouse"]
    chain.filter("s", {"x.jsonl": as_json_lines({"1": shared, "2": f"{texts['nl_fiets']}\n\n{shared}", "3": shared})})
    chain.filter("t", {"y.jsonl": as_json_lines({"4": texts["nl_water"]})})
    chain.deduplicate(["s", "t"])
    assert pq.read_schema(chain.folder / "s.deduplicated").names == KEPT_SCHEMA.names
    assert b"lighthouse" not in (chain.folder / "s.deduplicated").read_bytes()
    for source in "st":
        kept, final = stored(chain.folder / f"{source}.deduplicated"), stored(chain.folder / f"{source}.final")
        assert {key: kept[key] for key in COUNTED} == {key: final[key] for key in COUNTED}
        assert kept["documents"] == final["documents_in"] and kept["bytes"] == final["bytes_in"]
        searched = stored(chain.folder / f"{source}.matches")  # their sizes estimate chance hits
        assert (searched["documents"], searched["languages"]) == (kept["documents"], kept["languages"])
    assert stored(chain.folder / "s.deduplicated")["bytes_cut"] > 0
    assert chain.statistics(["s", "t"])["totals"]["stages"][1]["removed"] == {"exact_duplicate": 1}


def test_output_depends_only_on_kept_documents(tmp_path: Path) -> None:
    """Another kept copy or figure of a removed document does not change the file, nor the later steps."""
    written = []
    for name, decisions in {
        "one": {1: {"reason": "near_duplicate", "value": "t/y/1", "cluster": "t/y/1", "jaccard": 0.8}},
        "two": {1: {"reason": "exact_duplicate", "value": "t/y/2", "cluster": "t/y/2"}},
        "alone": {1: {"reason": "opt_out"}, 2: {}},
    }.items():
        write_unit(tmp_path / name, 5, decisions)
        keep(tmp_path / name)
        written.append((tmp_path / name / "deduplicated").read_bytes())
    assert len(set(written)) == 1


def test_files_of_other_documents_are_refused(tmp_path: Path) -> None:
    for name, number in (("some", 4), ("others", 5)):
        write_unit(tmp_path / name, number, {})
        keep(tmp_path / name)
    with pytest.raises(InputError, match=r"some/deduplicated is not made from .*others/filtered: rerun corpus\.dedup"):
        list(read_deduplicated_documents(tmp_path / "others/filtered", tmp_path / "some/deduplicated"))
    foreign = pa.table({"id": ["s/x/0", "elsewhere"]})
    with pytest.raises(InputError, match="do not match: rerun"):
        list(read_aligned(tmp_path / "some/filtered", foreign))


def test_final_row_groups_match_the_filtered_ones(
    chain: Any, texts: dict[str, str], as_json_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "ROWS_PER_GROUP", 2)
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    groups = [pq.read_metadata(chain.folder / f"s.{name}").num_row_groups for name in ("filtered", "final")]
    assert groups == [3, 3] and chain.statistics(["s"])["totals"]["documents_out"] == 5


def written(folder: Path, files: int) -> tuple[list[Path], list[dict[str, Any]]]:
    """Write files of 0 to 4 documents; return their paths and all documents."""
    draw, paths, rows = random.Random(files), [], []
    for number in range(files):
        some = []
        for row in range(draw.randrange(5)):
            name = f"s/{number}/{row}"
            known = {"id": name, "text": f"tekst {number} {row}", "language": draw.choice(["nl", "en"])}
            fixed = {"language_score": 1.0, "source": "s", "license": "CC0-1.0", "flags": []}
            some.append({**known, **fixed, "cluster": name, "cluster_size": 1, "id_hash": id_hash(name)})
        rows += some
        some.sort(key=lambda row: (row["id_hash"], row["id"]))
        paths.append(folder / f"{number}.parquet")
        pq.write_table(pa.Table.from_pylist(some, FINAL_SCHEMA), paths[-1], row_group_size=2)
    return paths, rows


def test_hash_order_does_not_depend_on_the_open_file_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, rows = written(tmp_path, 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    half = LAST_HASH // 2
    for files_open in (2, 7, 39, 40):
        monkeypatch.setattr(document_streams, "MAXIMUM_OPEN_FILES", files_open)
        result = list(merge_documents(reversed(paths), ["text", "language"]))
        expected = [(row["id_hash"], row["id"], row["text"], row["language"]) for row in rows]
        assert result == sorted(expected)
        some = list(merge_documents(paths, ["text"], (half, LAST_HASH), pc.field("language") == "nl", ["language"]))
        assert some == [row[:3] for row in result if row[0] >= half and row[3] == "nl"]
        assert not list((tmp_path / "temporary").iterdir())
    assert list(merge_documents([], ["text"])) == []


def test_more_files_are_read_than_may_be_open(
    tmp_path: Path, few_files: Callable[[int], AbstractContextManager[None]]
) -> None:
    paths, rows = written(tmp_path, 300)
    with few_files(120):
        assert len(list(merge_documents(paths, ["text"]))) == len(rows)


def test_temporary_files_are_deleted_after_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, rows = written(tmp_path, 200)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(document_streams, "MAXIMUM_OPEN_FILES", 2)
    wanted = sorted(row["id_hash"] for row in rows)[:10]
    for _ in merge_documents(paths, ["text"], (0, wanted[-1])):
        held = [pq.read_metadata(path).num_rows for path in (tmp_path / "temporary").rglob("*.parquet")]
        assert sum(held) == 10
