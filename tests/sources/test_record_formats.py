"""Every format gives the same records, damage is detected, and a key names a column or a nested field."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.sources import table_formats
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import FieldNames, RawRecord
from pipeline.sources.record_formats import read_csv, read_records
from pipeline.sources.table_formats import get_column, keys_with_columns, open_table

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": 'Zij zei: "ja",\n\nen liep; verder\tweg.', "url": "https://a.nl/1"},
    {"id": "b", "text": "Coöperatie 🦆", "url": ""},
    {"id": "", "text": "zonder id", "url": "https://a.nl/3"},
]


def csv_bytes(delimiter: str = ",", encoding: str = "utf-8") -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [*ROWS[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode(encoding)


def arrow_bytes(new: Callable[..., Any], rows: list[dict[str, Any]] = ROWS, batch: int = 2, **options: Any) -> bytes:
    stream = io.BytesIO()
    table = pa.Table.from_pylist(rows)
    with new(stream, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return stream.getvalue()


def feather_bytes() -> bytes:
    stream, table = io.BytesIO(), pa.Table.from_pylist(ROWS)
    pyarrow.feather.write_feather(table.set_column(1, "text", table["text"].dictionary_encode()), stream)
    return stream.getvalue()


LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
FILES: dict[str, Callable[[], bytes]] = {
    "x.jsonl": lambda: "\n".join(json.dumps(row) for row in ROWS).encode(),
    "c4-nl.tfrecord-00000-of-01024.json.gz": lambda: gzip.compress("\n".join(map(json.dumps, ROWS)).encode()),
    "x.csv": csv_bytes,
    "semicolons.csv": lambda: csv_bytes(";", "utf-8-sig"),
    "tabs.csv.gz": lambda: gzip.compress(csv_bytes("\t")),
    "x.arrow": lambda: arrow_bytes(pa.ipc.new_stream),
    "file.arrow": lambda: arrow_bytes(pa.ipc.new_file, options=LZ4),
    "x.feather": feather_bytes,
}


def read(path: Path, content: bytes, limit: int = 10_000, **keys: Any) -> list[RawRecord]:
    path.write_bytes(content)
    return list(read_records(path, path.name, FieldNames(**keys), limit))


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_fields(tmp_path: Path, name: str) -> None:
    records = read(tmp_path / name, FILES[name]())
    assert [record.fields for record in records] == ROWS
    assert [record.number for record in records] == [1, 2, 3]


@pytest.mark.parametrize("name", ["x.arrow", "file.arrow", "x.feather"])
def test_truncated_table_is_damaged(tmp_path: Path, name: str) -> None:
    whole = FILES[name]()
    for end in (3, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        with pytest.raises(DamagedFile, match=rf"{name} .*fetch the file again"):
            read(tmp_path / name, whole[:end])
    with pytest.raises(DamagedFile):
        read(tmp_path / name, b"<html>404 Not Found</html>")


def test_invalid_offsets_are_damage_and_invalid_utf8_affects_one_row(tmp_path: Path) -> None:
    whole = arrow_bytes(pa.ipc.new_stream, [{"text": "aaaaaaaa"}, {"text": "bbbbbbbb"}])
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 8, 16))
    assert whole.count(offsets) == 1
    with pytest.raises(DamagedFile, match="is truncated or not an Arrow file"):
        read(tmp_path / "x.arrow", whole.replace(offsets, (1 << 30).to_bytes(4, "little") + offsets[4:]))
    records = read(tmp_path / "x.arrow", whole.replace(b"bbbbbbbb", b"bbb\xffbbbb"))
    assert [(record.fields, record.reason) for record in records] == [
        ({"text": "aaaaaaaa"}, None),
        (None, "invalid_utf8"),
    ]


def test_table_is_read_by_columns_and_positions_increase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_formats, "BATCH_ROWS", 3)
    rows = [{"text": str(n) * 400, "meta": {"url": f"u{n}", "x": n}, "large": "x" * 999} for n in range(40)]
    for new in (pa.ipc.new_stream, pa.ipc.new_file):
        records = read(tmp_path / "x.arrow", arrow_bytes(new, rows, batch=10), url="meta.url")
        assert [record.fields for record in records] == [
            {"text": r["text"], "meta.url": r["meta"]["url"]} for r in rows
        ]
        places = [record.position for record in records]
        assert places == sorted(places) and len({*places}) == 16 and places[-1] < (tmp_path / "x.arrow").stat().st_size
    records = read(tmp_path / "x.arrow", arrow_bytes(pa.ipc.new_stream, rows), limit=500)
    assert {record.reason for record in records} == {None, "too_large"}


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    row = {"text": "a", "meta": {"url": "u"}, "large": "x"}
    (tmp_path / "x.arrow").write_bytes(arrow_bytes(pa.ipc.new_stream, [row]))
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "x.parquet")
    for name in ("x.arrow", "x.parquet"):
        with open_table(tmp_path / name) as table:
            ((batch, position),) = table.batches(["text", "meta.url"])
        assert sorted(batch.schema.names) == ["meta", "text"] and position < (tmp_path / name).stat().st_size


def test_duplicate_columns_are_refused(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pa.ipc.new_stream(tmp_path / "x.arrow", batch.schema) as stream:
        stream.write_batch(batch)
    with pytest.raises(InputError, match=r"x\.arrow has two columns of one name \(text\): rename one"):
        list(read_records(tmp_path / "x.arrow", "x.arrow", FieldNames(), 99))


def test_feather_version_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a file of Feather 1: write it again with pyarrow.feather.write_feather"):
        read(tmp_path / "x.feather", b"FEA1" + bytes(99))


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), max_size=8),
    st.integers(1, 9),
)
def test_csv_records_do_not_depend_on_chunk_size(rows: list[list[str]], size: int) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([["text", "b"], *rows])
    content = stream.getvalue().encode()
    pieces = [(content[start : start + size], start) for start in range(0, len(content), size)]
    records = list(read_csv(iter(pieces), Path("x"), 10**6, "text"))
    assert [[*(record.fields or {}).values()] for record in records] == rows
    assert sum(record.size for record in records) == len(content) - len(b'"text","b"\r\n')


def test_broken_csv_row_is_counted_and_the_next_one_is_read(tmp_path: Path) -> None:
    content = b'text,id\ngoed,1\n\n"a"b,2\nte,veel,3\n"' + b"\n".join([b"lang"] * 99) + b'",4\ngoed\xff,5\n"open,6\n'
    records = read(tmp_path / "x.csv", content, limit=200)
    assert [(record.number, record.reason, record.value) for record in records] == [
        (1, None, None),
        (2, "broken_csv", None),
        (3, "broken_csv", "3 columns, and the header has 2"),
        *((3 + line, "broken_csv", f"line {line} of 99") for line in range(1, 100)),
        (103, None, None),  # the text is removed as invalid_utf8 when encoded
        (104, "broken_csv", None),
    ]
    assert records[-2].fields == {"text": "goed\udcff", "id": "5"}
    assert read(tmp_path / "x.csv", b"") == [] and read(tmp_path / "x.csv", b"text\n") == []


def test_quotation_mark_in_a_tsv_file_is_text(tmp_path: Path) -> None:
    content = 'id\ttext\n1\t"s avonds thuis\n2\tgoed\n3\thij zei "\n5\tprima\n'
    records = read(tmp_path / "x.tsv", content.encode())
    assert [(record.fields or {})["text"] for record in records] == ['"s avonds thuis', "goed", 'hij zei "', "prima"]


def test_each_line_of_a_broken_row_counts_and_becomes_no_document(tmp_path: Path) -> None:
    content = b'id,text\n1,"s avonds thuis\n2,goed\n3,"twee, drie"\n4,hij zei "ja"\n'
    content += b'5,"Hij zei\ntwee, met komma\ndrie "hoi""\n'
    records = read(tmp_path / "x.csv", content + b"6,best\n")
    assert [(record.fields or {}).get("id", record.value) for record in records] == [
        *("line 1 of 3", "line 2 of 3", "line 3 of 3", "4", "line 1 of 3", "line 2 of 3", "line 3 of 3", "6")
    ]
    assert [record.number for record in records] == [*range(1, 9)]
    assert sum(record.size for record in records) == len(content) + len(b"6,best\n") - len(b"id,text\n")


@pytest.mark.parametrize("size", [3, 10_000])
def test_oversized_row_ends_at_its_closing_quotation_mark(size: int) -> None:
    rows = [
        *(b'1,5" pijp ' + b"x" * 100, b"2,goed"),
        *(b'3,"kort\n' + b"x" * 100 + b'""\nen ""\nzo"', b"4,best"),
        *(b'5,"' + b"een\n" * 30 + b'5"", 6"""', b"6,goed"),
    ]
    content = b"\n".join([b"id,text", *rows, b""])
    pieces = [(content[start : start + size], start) for start in range(0, len(content), size)]
    records = [*read_csv(iter(pieces), Path("x.csv"), 60, "text")]
    assert [(record.fields or {}).get("id", record.reason) for record in records] == [
        *("too_large", "2", *["broken_csv"] * 4, "4", *["broken_csv"] * 31, "6")
    ]
    assert [record.size for record in records if record.size] == [len(row) + 1 for row in rows]


def test_unclosed_quotation_mark_loses_no_row_uncounted(tmp_path: Path) -> None:
    content = b'id,text\n1,"open\n' + b"2,goed\n" * 998
    assert [record.reason for record in read(tmp_path / "x.csv", content, limit=300)] == ["broken_csv"] * 999
    tabs = content.replace(b",", b"\t")
    assert [record.reason for record in read(tmp_path / "x.tsv", tabs, limit=300)] == [None] * 999
    assert [
        record.reason for record in read(tmp_path / "y.tsv", b'text\n"' + b"x" * 400 + b"\nzei hij, ja\n", limit=300)
    ] == [
        "too_large",
        None,
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "x.csv",
            b"a;b\n1;2",
            r"x\.csv has no column 'text' among its 2 \(a, b\): set text_key of the source to the column",
        ),
        ("x.csv", b"Jan de Vries,jan@a.nl\n", r"x\.csv has no column 'text' among its 2: .* into the first line$"),
        (
            "x.csv",
            ",".join(f"c{number}" for number in range(15)).encode(),
            r"among its 15 \(c0, .*, c11 and 3 more\): ",
        ),
        ("x.csv", b"Id,Text\n", r"x\.csv has no column 'text', but 'Text' among its 2 \(Id, Text\): set text_key"),
        ("x.csv", b"id,Jan de Vries,Jan de Vries\n", r"x\.csv has one name for the columns 2 and 3: rename one$"),
        ("x.json", b'[{"text": "a"}]', r"x\.json is one JSON value, not one per line: write an object per line"),
        ("x.json", b'\n [{"text": "a"}' + b" " * 20_000 + b"]", r"x\.json is one JSON value, not one per line"),
        ("x.csv", b"text,id,text\n", r"x\.csv has one name for the columns 1 and 3: rename one$"),
        ("x.csv", b'"text"x\n', r"x\.csv has no header of CSV: write the names"),
        ("x.json", b'[\n{"text": "a"}]', r"x\.json is one JSON value, not one per line: write an object per line"),
        ("CC-MAIN-1-00000.warc.wat.gz", b"", r"wat\.gz is a WAT file, which has .* no text: take the file of the same"),
        (
            "x.parquet.gz",
            b"",
            r"x\.parquet\.gz: its extension is unknown: use one of \.jsonl, .*\.arrow and \.feather$",
        ),
    ],
)
def test_file_without_documents_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path / name, content)
    assert not isinstance(caught.value, DamagedFile)


def test_dotted_key_names_a_nested_field_or_a_column() -> None:
    rows = [{"meta": {"license": "CC0-1.0", "at": {"url": "u"}}, "date": "2024", "a.b": 1}]
    batch = pa.RecordBatch.from_pylist(rows)
    wanted = ["meta.license", "meta.at.url", "meta.absent", "meta.at.absent", "date.year", "date", "absent.url", "a.b"]
    result = keys_with_columns(batch.schema, wanted)
    assert result == ["meta.license", "meta.at.url", "date", "a.b"]
    assert [get_column(batch, key).to_pylist() for key in result] == [["CC0-1.0"], ["u"], ["2024"], [1]]


def test_parquet_file_is_not_an_arrow_file(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "x.parquet")
    with pytest.raises(DamagedFile):
        read(tmp_path / "x.arrow", (tmp_path / "x.parquet").read_bytes())
