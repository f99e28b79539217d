"""Which texts of an item are searched, from files of every format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.decontamination.item_ngrams import read_items
from pipeline.corpus.decontamination.settings import TaskItemsFile
from tests.corpus.decontamination.conftest import rows

TEXT = "Nine words make this sentence short but long enough."


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet"])
def test_items_are_read_from_every_format_at_any_depth(tmp_path: Path, name: str, index_items: Any) -> None:
    row = {"question": "?", "choices": {"text": [TEXT, "another"]}}
    content = {
        "a.jsonl": rows({}, row),
        "a.json": json.dumps([{}, row]).encode(),
        "a.jsonl.gz": gzip.compress(rows({}, row)),
        "a.csv": f'question,text\n?,"{TEXT}"\n'.encode(),
        "a.tsv": f"question\ttext\n?\t{TEXT}\n".encode(),
        "a.parquet": b"",
    }[name]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([{**row, "choices": None}, row]), tmp_path / "made")
        content = (tmp_path / "made").read_bytes()
    assert index_items({name: content}).find([f"x {TEXT}"]) == [(0, "a", "2", 1, 1)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_only_named_fields_are_searched(name: str, index_items: Any) -> None:
    other = "An explanation of nine words that nobody asked for here."
    content = {"a.jsonl": rows({"q": [{"deep": TEXT}], "why": other}), "a.csv": f'q,why\n"{TEXT}","{other}"\n'.encode()}
    result = index_items({name: content[name]}, {name: {"fields": ["q"], "named": True}})
    assert [hit[0] for hit in result.find([other, TEXT])] == [1]
    assert [hit[0] for hit in index_items({name: content[name]}).find([other, TEXT])] == [0, 1]


def test_named_field_missing_from_all_items_is_refused_unless_from_a_template(index_items: Any) -> None:
    content = {"a.jsonl": rows({"q": TEXT}, {"q": TEXT, "extra": "x"})}
    assert index_items(content, {"a.jsonl": {"fields": ["q", "extra"], "named": True}}).tasks["a"]["items"] == 2
    assert index_items(content, {"a.jsonl": {"fields": ["q", "answr"]}}).tasks["a"]["items"] == 2
    with pytest.raises(InputError, match=r"no item of the task a in .*a\.jsonl has the field answr: name another one"):
        index_items(content, {"a.jsonl": {"fields": ["q", "answr"], "named": True}})


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b"{"), ("a.jsonl.gz", b"x"), ("a.parquet", b"x")])
def test_invalid_item_file_is_named(index_items: Any, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"the items of the task a in .*{name} cannot be read"):
        index_items({name: content})


def test_duplicate_columns_are_refused_if_the_field_is_used(index_items: Any) -> None:
    content = {"a.csv": f"q,note,q,note\n{TEXT},,x,\n".encode()}
    with pytest.raises(InputError, match="it has two columns q"):
        index_items(content, {"a.csv": {"fields": ["q"], "named": True}})
    assert index_items(content).find([TEXT])


def test_items_of_several_files_are_named_after_their_file(tmp_path: Path) -> None:
    for name in ("b.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(rows({"x": name}))
    entries = [TaskItemsFile(task="a", name=name) for name in ("b.jsonl", "c.jsonl")]
    results = [item.name for item in read_items(entries, [tmp_path / "b.jsonl", tmp_path / "c.jsonl"])]
    assert results == ["b.jsonl 1", "c.jsonl 1"]
