"""Persons are planted in every field of every format and in opt-out lists; a complete run contains none of them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipeline.cli.entry_point import main
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import KINDS, find_personal_data
from tests.conftest import Project
from tests.rules.test_reruns import MICRO

# By kind: the planted value, and the part of it that must not occur.
PERSONS = {
    "email": ("jan.zaaier@plantenpost.nl", "jan.zaaier"),
    "iban": ("NL91ABNA0417164300", "0417164300"),
    "credit_card": ("4539 1488 0343 6467", "0343 6467"),
    "bsn": ("B.S.N. 111222333", "111222333"),
    "passport": ("paspoort NWE45K7H2", "NWE45K7H2"),
    "telephone": ("06\u201128461937", "28461937"),
    "kvk": ("KvK 68750110", "68750110"),
    "ip": ("host 83.96.147.212", "83.96.147.212"),
    "address": ("Zaaierstraat 12, 3581 KM", "3581 KM"),
    "number_plate": ("kenteken XR-948-T", "XR-948-T"),
}
ALL = "; ".join(value for value, _ in PERSONS.values())
TRACES = [trace for _, trace in PERSONS.values()]
# Host and userinfo, path (plain, encoded, encoded twice), query and fragment.
ADDRESS = f"https://jan.zaaier:geheim@plek.nl/a/{quote(ALL)}/b/{quote(quote(ALL))}/{ALL}/c?wie={quote(ALL)}#{ALL}"
TEXT = (Path(__file__).parents[2] / "config/corpus/nl_brieven").glob("*.txt")


def written() -> Iterator[dict[str, str]]:
    """Yield records with persons in every field: some kept, some removed, each with its own id."""
    letters = sorted(path.read_text(encoding="utf-8") for path in TEXT)[:12]
    for number, (value, _) in enumerate([*PERSONS.values(), (ADDRESS, "")]):
        metadata = {"title": ALL, "url": ADDRESS, "date": value, "holder": value, "author": ALL, value: ALL}
        for text in (f"{letters[number]}\n\nBel of schrijf: {ALL}.", f"Te kort. {ALL}"):
            yield {"id": f"{value}, {len(text)}", "text": text, **metadata}


def lines(records: list[dict[str, str]]) -> bytes:
    broken = [f'{{"id": "{ALL}"', json.dumps([ALL]), json.dumps({"id": ALL, "title": ALL})]
    return "\n".join([*map(json.dumps, records), *broken]).encode() + b"\n"


def archive(records: list[dict[str, str]]) -> bytes:
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True)
    for record in records:
        for status, kind in (
            ("200 OK", "text/plain"),
            ("404 weg", "text/html"),
            ("200 OK", f"x/{PERSONS['email'][0]}"),
        ):
            headers = StatusAndHeaders(status, [("Content-Type", kind), ("X-Wie", ALL)], protocol="HTTP/1.1")
            named = {"WARC-Record-ID": f"<{record['id']} {status} {kind}>"}
            body = io.BytesIO(record["text"].encode())
            address = quote(ADDRESS, safe=":/?&=#@%")
            fields = {"warc_headers_dict": named, "http_headers": headers}
            writer.write_record(writer.create_warc_record(address, "response", body, **fields))
    return stream.getvalue()


def plant(project: Project) -> None:
    """Add sources of every format, one of them large enough to be split, and an opt-out list."""
    folder = project.path("config/planted")
    folder.mkdir()
    records = list(written())
    third = len(records) // 3 // 2 * 2
    some, others, rest = records[:third], records[third : 2 * third], records[2 * third :]
    page = "<html><head><title>{}</title></head><body><article>{}</article></body></html>"
    paragraphs = "".join(f"<p>{part}</p>" for part in some[0]["text"].split("\n\n"))
    files = {
        "lines.jsonl": lines(some),
        "lines.ndjson.zst": zstandard.compress(lines(others)),
        "lines.jsonl.gz": gzip.compress(lines(rest)),
        "note.txt": some[2]["text"].encode(),
        "note.md": f"# {ALL}\n\n{others[0]['text']}".encode(),
        "page.html": page.format(ALL, paragraphs).encode(),
        "pages.warc.gz": archive(rest),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    columns = [key for key in records[0] if key not in PERSONS["email"]]
    table = pa.Table.from_pylist([{key: record[key] for key in columns} for record in others])
    pq.write_table(table, folder / "rows.parquet")
    (folder / "cut.jsonl").write_bytes(lines(records))
    hub = project.path("config/hub/data")
    hub.mkdir(parents=True)
    pq.write_table(table, hub / "train.parquet")
    ids = [f"id: {records[0]['id']}", f"id: planted/cut.jsonl/{records[4]['id']}", "id: planted/cut.jsonl/withheld-7"]
    listed = ["date: 2026-02-01", "nergens.nl", *ids, f"holder: {PERSONS['iban'][0]}", f"id: niemand {ALL}"]
    project.path("config/opt-out.txt").write_text("\n".join(listed))
    usual = "language: nl, license: CC0-1.0, opt_out: config/opt-out.txt, allowed_unmatched_ids: 1, rights: *rights}"
    project.edit(
        MICRO,
        "\ncorpus:\n  main: {",
        f"  - {{name: planted, path: 'config/planted/*', units: 3, unit_bytes: 20000, {usual}\n"
        f"  - {{name: hub, dataset: {{name: config/hub}}, {usual}\n"
        "\ncorpus:\n  main: {keep_removed: true, broken_share: 1, ",
    )


def content(path: Path) -> str:
    """Return the content of a file, for Parquet and Arrow the values of all columns and the metadata."""
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        return f"{file.metadata.metadata} {file.read().to_pylist()}"
    if path.suffix == ".arrow":
        with pa.ipc.open_stream(path) as stream:
            table = stream.read_all()
        return f"{table.schema.metadata} {table.drop_columns([n for n in table.column_names if n != 'id'])}"
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", "replace")


def is_private(path: Path, results: Path) -> bool:
    """Return whether others than owner and group cannot open a file."""
    return any(not place.stat().st_mode & 0o007 for place in (path, *path.parents) if place.is_relative_to(results))


def forms(trace: str) -> set[str]:
    """Return the possible spellings of a trace."""
    return {form.lower() for form in (trace, quote(trace), quote(quote(trace)), trace.replace(" ", ""))}


def left(results: Path) -> tuple[list[str], set[str]]:
    """Return the open files and the closed folders that contain a trace."""
    open_to_others, closed = [], set()
    for path in sorted(path for path in results.rglob("*") if path.is_file()):
        held = content(path).lower()
        result = [trace for trace in TRACES if any(form in held for form in forms(trace))]
        if result and is_private(path, results):
            closed.add(path.relative_to(results).parts[2])
        elif result:
            open_to_others.append(f"{path.relative_to(results)}: {result}")
    return open_to_others, closed


def rows(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Return the rows of files of Parquet."""
    return [row for path in sorted(folder.glob(pattern)) for row in pq.read_table(path).to_pylist()]


def test_every_kind_of_personal_data_is_planted() -> None:
    assert set(PERSONS) == set(KINDS)
    for kind, (value, _) in PERSONS.items():
        assert {result.kind for result in find_personal_data(value, PersonalData())} == {kind}
    assert {result.kind for result in find_personal_data(ALL, PersonalData())} == set(KINDS)


@pytest.mark.slow
def test_results_contain_no_personal_data(project: Project) -> None:
    plant(project)
    project.train_alone()
    printed = project.run(timeout_seconds=1800)
    assert not [trace for trace in TRACES if trace in printed]
    result, closed = left(project.results)
    assert result == [] and closed == {"parts", "units"}
    result, _ = left(project.folder / "private")
    assert result == []

    # The remaining text is usable, and was used.
    kept = rows(project.results / "corpus/main/final", "planted.*")
    assert any("/withheld-" in row["id"] for row in kept)
    assert any("<EMAIL>" in (row["title"] or "") for row in kept)
    addresses = {row["url"] for row in kept if row["url"]}
    assert any(url.startswith("https://plek.nl/a/<") and url.endswith("/c") for url in addresses)
    reserved = [row for row in rows(project.results / "corpus/main/removed", "filter.*") if row["reason"] == "opt_out"]
    values = {row["value"] for row in reserved}
    assert {"id planted/cut.jsonl/withheld-7", "holder <IBAN>"} <= values and any("id <EMAIL>" in v for v in values)
    assert any(row["id"] == "planted/cut.jsonl/withheld-7" for row in reserved)
    assert main(["verify", str(project.results)]) == 0

    project.path("config/planted/note.txt").rename(project.path(f"config/planted/{PERSONS['email'][0]}.txt"))
    printed = project.run(check=False)
    assert project.returncode != 0 and "source planted: the path of its file <EMAIL> has personal data" in printed
    assert left(project.results)[0] == []
