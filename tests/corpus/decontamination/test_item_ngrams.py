"""Which texts of an item count, from files of every format."""

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
def test_items_are_read_from_every_format_at_any_depth(tmp_path: Path, name: str, looked: Any) -> None:
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
    assert looked({name: content}).find([f"x {TEXT}"]) == [(0, "a", "2", 1, 1)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_named_fields_alone_count(name: str, looked: Any) -> None:
    other = "An explanation of nine words that nobody asked for here."
    content = {"a.jsonl": rows({"q": [{"deep": TEXT}], "why": other}), "a.csv": f'q,why\n"{TEXT}","{other}"\n'.encode()}
    found = looked({name: content[name]}, {name: {"fields": ["q"], "named": True}})
    assert [hit[0] for hit in found.find([other, TEXT])] == [1]
    assert [hit[0] for hit in looked({name: content[name]}).find([other, TEXT])] == [0, 1]


def test_a_named_field_that_no_item_has_is_refused_and_one_of_a_template_is_not(looked: Any) -> None:
    content = {"a.jsonl": rows({"q": TEXT}, {"q": TEXT, "extra": "x"})}
    assert looked(content, {"a.jsonl": {"fields": ["q", "extra"], "named": True}}).tasks["a"]["items"] == 2
    assert looked(content, {"a.jsonl": {"fields": ["q", "answr"]}}).tasks["a"]["items"] == 2
    with pytest.raises(InputError, match=r"no item of the task a in .*a\.jsonl has the field answr: name another one"):
        looked(content, {"a.jsonl": {"fields": ["q", "answr"], "named": True}})


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b"{"), ("a.jsonl.gz", b"x"), ("a.parquet", b"x")])
def test_a_broken_file_of_items_is_named(looked: Any, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"the items of the task a in .*{name} cannot be read"):
        looked({name: content})


def test_two_columns_of_one_name_are_refused_where_the_name_counts(looked: Any) -> None:
    content = {"a.csv": f"q,note,q,note\n{TEXT},,x,\n".encode()}
    with pytest.raises(InputError, match="it has two columns q"):
        looked(content, {"a.csv": {"fields": ["q"], "named": True}})
    assert looked(content).find([TEXT])


def test_items_of_several_files_are_named_after_theirs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(rows({"x": name}))
    entries = [TaskItemsFile(task="a", name=name) for name in ("b.jsonl", "c.jsonl")]
    found = [item.name for item in read_items(entries, [tmp_path / "b.jsonl", tmp_path / "c.jsonl"])]
    assert found == ["b.jsonl 1", "c.jsonl 1"]
