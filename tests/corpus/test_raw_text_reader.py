"""Every format gives the same documents; unreadable records are counted, named and bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.sources import decompression
from pipeline.sources.raw_documents import FieldNames, RawRecord, make_raw_documents
from pipeline.sources.record_formats import read_records


def read(
    folder: Path, contents: dict[str, bytes], **keywords: Any
) -> tuple[list[Any], list[dict[str, Any]], RawTextReader]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    removed = RemovedDocuments("s", "filter", MetadataMasker(PersonalData()))
    reader = RawTextReader(RawFiles("s", [(name, folder / name) for name in contents], **keywords), removed)
    return list(reader.run()), removed.rows, reader


def parquet(rows: dict[str, pa.Array]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(rows), stream)
    return stream.getvalue()


LINES = (
    b'{"id": "a", "text": "een", "url": "u", "title": 3}\n\n{"text": "twee \xe2\x82\xac"}\n{"id": 7, "text": "drie"}'
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", LINES),
        ("x.jsonl.gz", gzip.compress(LINES[:30], mtime=0) + gzip.compress(LINES[30:], mtime=0)),
        ("x.ndjson.zst", zstandard.compress(LINES[:30]) + zstandard.compress(LINES[30:])),
        ("x.jsonl.bz2", bz2.compress(LINES[:30]) + bz2.compress(LINES[30:])),
        ("x.jsonl.xz", lzma.compress(LINES[:30]) + lzma.compress(LINES[30:])),
        ("x.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("x.jsonl", b"\xef\xbb\xbf" + LINES),
    ],
)
def test_read_json_lines(tmp_path: Path, name: str, content: bytes) -> None:
    documents, removed, reader = read(tmp_path, {name: content})
    assert [(d.id, d.text) for d in documents] == [
        (f"s/{name}/a", "een"),
        (f"s/{name}/2", "twee €"),
        (f"s/{name}/7", "drie"),
    ]
    shown = {"source": "s", "url": "u", "title": "3", "bytes": 3, "original_id": "a"}
    shown["withheld_id"] = f"s/{name}/withheld-1"
    assert {key: value for key, value in documents[0].metadata.items() if value is not None} == shown
    assert removed == [] and (reader.records_in, reader.bytes_in) == (3, 15)


def test_read_parquet_and_plain_text(tmp_path: Path) -> None:
    rows = {"key": pa.array([1, 2]), "body": pa.array(["een", None]), "other": pa.array([0, 0])}
    contents = {"x.parquet": parquet(rows)}
    documents, removed, _ = read(tmp_path, contents, keys=FieldNames("body", "key"), broken_share=0.5)
    assert [(d.id, d.text) for d in documents] == [("s/x.parquet/1", "een")]
    assert [(row["id"], row["reason"]) for row in removed] == [("s/x.parquet/2", "missing_text")]
    documents, _, _ = read(tmp_path, {"a.txt": b"regel\nregel", "b.md.gz": gzip.compress(b"# kop"), "c.txt": b""})
    assert [(d.id, d.text) for d in documents] == [("s/a.txt/0", "regel\nregel"), ("s/b.md.gz/0", "# kop")]


def test_string_column_with_invalid_utf8_is_counted(tmp_path: Path) -> None:
    column = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\4\0\0\0\5\0\0\0"), pa.py_buffer(b"goed\xff"))
    documents, removed, _ = read(tmp_path, {"x.parquet": parquet({"text": column})}, broken_share=0.5)
    assert [d.text for d in documents] == ["goed"]
    assert [row["reason"] for row in removed] == ["invalid_utf8"]


BROKEN = [
    (b'{"text": "\xff"}', "invalid_utf8"),
    (b'{"text": "a\x00b"}', "broken_json"),
    (b"\x00", "broken_json"),
    (b'{"text": ' + b"9" * 5000 + b"}", "broken_json"),
    (b'{"text": "\\ud800"}', "invalid_utf8"),
    (b'{"text": ', "broken_json"),
    (b"[" * 100_000, "broken_json"),
    (b"[1]", "not_an_object"),
    (b"{}", "missing_text"),
    (b'{"text": "  "}', "missing_text"),
    (b'{"text": 3}', "missing_text"),
    (b'{"text": null}', "missing_text"),
]


def test_broken_lines_are_removed_with_reason_and_line(tmp_path: Path) -> None:
    content = b'{"text": "goed"}\n' + b"\n".join(line for line, _ in BROKEN)
    documents, removed, reader = read(tmp_path, {"x.jsonl": content}, broken_share=0.95)
    assert [d.text for d in documents] == ["goed"]
    expected = [(f"s/x.jsonl/{number}", reason) for number, (_, reason) in enumerate(BROKEN, 2)]
    assert [(row["id"], row["reason"]) for row in removed] == expected
    assert reader.records_in == 13 and reader.bytes_in == 4 + sum(row["bytes"] for row in removed)


def test_escaped_nul_and_5_megabyte_line_are_text(tmp_path: Path) -> None:
    long = "woord " * 850_000
    lines = [json.dumps({"text": "a\0b", "id": "a\ud800", "url": "\ud800"}), json.dumps({"text": long})]
    documents, removed, _ = read(tmp_path, {"x.jsonl": "\n".join(lines).encode()})
    assert [d.text for d in documents] == ["a\0b", long] and removed == []
    assert documents[0].id == "s/x.jsonl/a?" and documents[0].metadata["url"] == "?"


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.txt", "x.html", "x.parquet"])
def test_record_over_the_limit_is_too_large_but_not_broken(tmp_path: Path, name: str) -> None:
    text = "woord " * 1000
    content = json.dumps({"text": text}).encode() if "jsonl" in name else text.encode()
    if name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    if name.endswith(".parquet"):
        content = parquet({"text": pa.array([text, "goed"])})
    documents, removed, reader = read(tmp_path, {name: content}, document_bytes=5999, broken_share=0.0)
    assert [d.text for d in documents] == (["goed"] if "parquet" in name else [])
    assert [(row["reason"], row["value"]) for row in removed] == [("too_large", str(removed[0]["bytes"]))]
    assert removed[0]["bytes"] >= 6000 and reader.records_in == len(documents) + 1


BOMBS = {
    "x.jsonl.gz": lambda: gzip.compress(b'{"text": "' + b"a" * 150_000_000),
    "x.txt.xz": lambda: lzma.compress(bytes(150_000_000), preset=0),
    "x.jsonl.zst": lambda: zstandard.compress((b'{"text": "goed"}' + b" " * 1_000_000 + b"\n") * 150),
    "x.jsonl.bz2": lambda: bz2.compress(b"\n" * 200_000_000, 1),
    "x.parquet": lambda: parquet({"text": pa.DictionaryArray.from_arrays([0] * 200, pa.array(["a" * 1_000_000]))}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bomb_is_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BOMBS[name]())
    removed = RemovedDocuments("s", "filter", MetadataMasker(PersonalData()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"looks like a decompression bomb"):
        sum(1 for _ in RawTextReader(RawFiles("s", [(name, tmp_path / name)]), removed).run())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kibibytes


MEASURE = """
import sys
from pathlib import Path
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.removed_documents import RemovedDocuments
removed = RemovedDocuments("s", "filter", MetadataMasker(PersonalData()))
kept = sum(1 for _ in RawTextReader(RawFiles("s", [("x.jsonl", Path(sys.argv[1]))]), removed).run())
status = Path("/proc/self/status").read_text().split()  # getrusage would tell the peak of the tests as well
print(kept, [row["reason"] for row in removed.rows], status[status.index("VmHWM:") + 1])
"""


def measured(path: Path) -> tuple[int, str, int]:
    """Return the documents of a file, the removal reasons, and the peak memory in kibibytes of a new process."""
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    kept, reasons, peak = done.stdout.replace(" [", "|[").replace("] ", "]|").split("|")
    return int(kept), reasons, int(peak)


@pytest.mark.slow
def test_memory_does_not_depend_on_file_or_document_size(tmp_path: Path) -> None:
    line = json.dumps({"text": "woord " * 3500}) + "\n"
    (tmp_path / "small").write_text(line * 100)
    (tmp_path / "large").write_text(line * 5000)
    with (tmp_path / "one").open("w") as stream:
        stream.write('{"text": "goed"}\n{"text": "')
        for _ in range(200):
            stream.write("woord " * 166_667)
        stream.write('"}\n')
    *_, base = measured(tmp_path / "small")
    kept, reasons, peak = measured(tmp_path / "large")
    assert (kept, reasons) == (5000, "[]") and peak - base < 30_000
    kept, reasons, peak = measured(tmp_path / "one")
    assert (kept, reasons) == (1, "['too_large']") and peak - base < 70_000


def test_too_many_broken_lines_error_has_share_and_first_line(tmp_path: Path) -> None:
    content = b'{"text": "goed"}\n' * 8 + b"{\n" * 2
    with pytest.raises(
        InputError, match=r"source s: 20\.0% of 10 lines are broken, first x\.jsonl line 9 \(broken_json"
    ):
        read(tmp_path, {"x.jsonl": content}, broken_share=0.19)
    documents, _, _ = read(tmp_path, {"x.jsonl": content}, broken_share=0.2)
    assert len(documents) == 8


def test_ids_are_unique_with_broken_lines(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "text": "1"},
        {"id": "a", "text": "2"},
        {"id": "a#2", "text": "3"},
        {"id": "5", "text": "4"},
        {},
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    documents, removed, _ = read(tmp_path, {"x.jsonl": content}, broken_share=1.0)
    ids = [d.id for d in documents] + [row["id"] for row in removed]
    assert ids == [f"s/x.jsonl/{i}" for i in ("a", "a#2", "a#2#2", "5", "5#2")]


def named(ids: list[str]) -> list[str]:
    """Return the ids of documents with these ids in their file."""
    records = (RawRecord(number, 0, {"id": name, "text": "x"}) for number, name in enumerate(ids, 1))
    return [document.id for document, _ in make_raw_documents(records, "s", FieldNames("text", "id", "date"))]


@given(st.lists(st.sampled_from(["a", "a#2", "a#3", "a#2#2", "b"]), max_size=25))
def test_duplicate_id_gets_the_first_free_suffix(ids: list[str]) -> None:
    expected: list[str] = []
    for name in ids:
        free = (f"s/{name}#{number}" for number in range(2, 100) if f"s/{name}#{number}" not in expected)
        expected.append(f"s/{name}" if f"s/{name}" not in expected else next(free))
    assert named(ids) == expected


def test_equal_ids_take_no_longer_than_distinct_ids() -> None:
    def lines(ids: list[str]) -> int:
        """Return the number of executed Python lines."""
        counted = 0

        def count(*_: Any) -> Any:
            nonlocal counted
            counted += 1
            return count

        sys.settrace(count)
        try:
            named(ids)
        finally:
            sys.settrace(None)
        return counted

    assert lines(["a"] * 4000) < 1.5 * lines([str(number) for number in range(4000)])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9]),
        ("x.jsonl.gz", LINES),
        ("x.jsonl.zst", zstandard.compress(LINES * 100)[:-3]),
        ("x.jsonl.zst", LINES),
        ("x.jsonl.bz2", bz2.compress(LINES)[:-9]),
        ("x.jsonl.bz2", LINES),
        ("x.jsonl.xz", lzma.compress(LINES)[:-9]),
        ("x.jsonl.xz", LINES),
        ("x.txt.gz", gzip.compress(LINES, mtime=0)[:-9]),
        ("x.parquet", parquet({"text": pa.array(["a"])})[:-3]),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"{name} (is truncated or|is no)"):
        read(tmp_path, {name: content})


def test_unknown_format_and_missing_column_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.pdf: its extension is unknown"):
        read(tmp_path, {"x.pdf": b"a,b"})
    with pytest.raises(InputError, match=r"no column 'text': set text_key of the source to one of body$"):
        read(tmp_path, {"x.parquet": parquet({"body": pa.array(["a"])})})


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=20), st.integers(1, 9))
def test_lines_do_not_depend_on_chunk_size(texts: list[str], size: int) -> None:
    content = "\n".join(texts).encode()
    pieces = [(content[start : start + size], start) for start in range(0, len(content), size)]
    for limit in (10**6, 5):
        results = [line[:3] for line in decompression.read_lines(iter(pieces), limit)]
        numbered = enumerate(content.split(b"\n"), 1)
        assert results == [(n, line if len(line) <= limit else None, len(line)) for n, line in numbered if line]


def test_records_have_line_numbers(tmp_path: Path, gzipped: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(gzipped(LINES))
    assert [record.number for record in read_records(tmp_path / "x", "x.jsonl.gz", FieldNames(), 99)] == [1, 3, 4]
