"""Whether the rows of a file state licenses determines whether their source license is an input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.sources.record_formats import states_license
from pipeline.sources.source_units import PART_SCHEMA
from tests.conftest import fingerprinted

LIMIT = 10_000
ROWS: dict[str, tuple[dict[str, Any], bool]] = {
    "none": ({"text": "a"}, False),
    "license": ({"license": "CC0-1.0"}, True),
    "licence": ({"licence": "so-so"}, True),
    "in a field": ({"metadata": {"license": "MIT"}}, True),
    "of another field": ({"metadata": {"licensed": "MIT"}, "rights": "MIT"}, False),
    "an object": ({"license": {"name": "MIT", "url": ""}}, True),
    "a list": ({"license": ["MIT"]}, True),
    "nothing": ({"license": None}, False),
    "a blank": ({"license": " "}, False),
    "an object of nothing": ({"license": {"name": None}}, False),
    "a text about licences": ({"text": "the license of the licence"}, False),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson.gz", "x.json.gz", "x.parquet", "x.arrow"])
def test_row_states_a_license_if_a_common_field_is_filled(tmp_path: Path, name: str, kind: str) -> None:
    row, expected = ROWS[kind]
    path, rows = tmp_path / name, [{"text": "t"}, row]
    table = pa.Table.from_pylist([{**dict.fromkeys(row), **one} for one in rows])
    if name == "x.parquet":
        pq.write_table(table, path)
    elif name == "x.arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        lines = "\n".join(map(json.dumps, rows)).encode()
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    assert states_license(path, name, LIMIT) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("body,license\na,\nb,MIT\n", True),
        ("body;metadata.license\na;\nb\nc;MIT", True),
        ("body,license\na,\nb,\n", False),
        ("body,license\na\n", False),
        ("body,licensed\na,MIT\n", False),
        ("body,body\na,license\n", False),
        ("", False),
    ],
)
def test_csv_column_states_licenses(tmp_path: Path, content: str, expected: bool) -> None:
    path = tmp_path / "x.csv"
    path.write_text(content)
    assert states_license(path, path.name, LIMIT) == expected


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.csv", "x.tsv"])
def test_unit_fingerprint_records_whether_rows_state_licenses(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"text": "t", "license": "MIT"}' if "json" in name else "text\tlicense\nt\tMIT\n")
    result = json.loads(fingerprinted(tmp_path / "hashed", "s", {name: path}).read_text())
    assert result["states_license"] is True


def test_field_is_found_in_any_json_spelling(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "t"}\n{broken license\n["license"]\n{"\\u006cicense": "MIT"}')
    assert states_license(path, "x.jsonl", LIMIT)


def test_part_of_a_file_states_the_licenses_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "00000.parquet"
    document = {"id": "s/x.jsonl/0", "number": 1, "size": 1, "text": "t"}
    for license, expected in ((None, False), ("MIT", True)):
        pq.write_table(pa.Table.from_pylist([document, {**document, "license": license}], schema=PART_SCHEMA), path)
        assert states_license(path, path.name, LIMIT) == expected


@pytest.mark.parametrize(
    "name", ["x.jsonl", "x.jsonl.gz", "x.parquet", "x.arrow", "x.csv", "x.txt", "x.html", "x.warc.gz", "x.docx"]
)
def test_unreadable_file_or_file_without_fields_states_no_license(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b'no {"license": "MIT"}')
    assert not states_license(path, name, LIMIT)


def test_row_over_the_size_limit_states_no_license(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"license": "MIT", "text": "t" * 100}))
    assert states_license(path, "x.jsonl", LIMIT) and not states_license(path, "x.jsonl", 50)
