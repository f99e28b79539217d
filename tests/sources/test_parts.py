"""A split file gives the documents of the whole file, each part is a unit, and a data set is read offline."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.sources import dataset, source_units, split
from pipeline.sources.raw_documents import FieldNames, RawDocument
from pipeline.sources.settings import DatasetSettings, SplitSettings
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import step_settings

UNIT_BYTES = 100_000


def lines(number: int) -> list[str]:
    """Return JSON lines: documents of random digits, with duplicate ids and broken lines between them."""
    digits = random.Random(1)
    text = [f"{digits.getrandbits(32_000):x}" for _ in range(number)]
    results = [json.dumps({"id": f"d{n % 37}", "text": text[n], "date": "2020-01-02"}) for n in range(number)]
    return [*results[:20], "{", "", '{"text": " "}', *results[20:], json.dumps({"text": "zonder id"})]


def configured(folder: Path, **source: Any) -> Config:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    described = {"name": "s", "path": f"{folder}/*", "unit_bytes": UNIT_BYTES, **source}
    raw["sources"] = [{**raw["sources"][0], **described}]
    raw["run"]["results"] = str(folder.parent / "results")
    return parse_configuration(raw)


KEYS = FieldNames()


def read(names: list[str], files: list[Path], is_part: bool, keys: FieldNames = KEYS) -> tuple[list[Any], list[Any]]:
    removed = RemovedDocuments("s", "filter", MetadataMasker(PersonalData()))
    raw = RawFiles("s", [*zip(names, files, strict=True)], keys, broken_share=1.0, is_part=is_part)
    reader = RawTextReader(raw, removed)
    return [(d.id, d.text, d.metadata) for d in reader.run()], removed.rows


@pytest.mark.parametrize(("rows", "size", "groups"), [(3, 10**9, [3, 3, 1]), (10**9, 250, [3, 3, 1])])
def test_row_groups_have_a_bounded_number_of_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int, groups: list[int]
) -> None:
    monkeypatch.setattr(source_units, "ROWS_PER_GROUP", rows)
    monkeypatch.setattr(source_units, "BYTES_PER_GROUP", size)
    writer = source_units.PartWriter(tmp_path, 1, [700])
    for number in range(7):
        writer.write(0, RawDocument(id=str(number), number=number, size=100, text="x"))
    writer.finish(0)
    metadata = pq.ParquetFile(tmp_path / source_units.part_name(0)).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == groups
    assert (writer.documents, writer.bytes) == (7, 700)
    page = RawDocument("1", 1, 100, "x", encoding_known_by="meta", decoding_errors=2, reservation="header x")
    writer = source_units.PartWriter(tmp_path, 1)
    writer.write(0, page)
    writer.finish(0)
    assert [*source_units.read_part(tmp_path / source_units.part_name(0))] == [page]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv.gz", "x.parquet", "x.arrow", "x.feather"])
def test_parts_of_a_file_contain_its_documents_in_order(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    content = "\n".join(lines(120)).encode()
    rows = [json.loads(line) for line in lines(120) if line.startswith('{"id')]
    table = pa.Table.from_pylist(rows)
    if name.endswith("parquet"):
        pq.write_table(table, raw / name, row_group_size=10)
    elif name.endswith(("arrow", "feather")):
        new = pa.ipc.new_stream if name.endswith("arrow") else pa.ipc.new_file
        with new(raw / name, table.schema) as file:
            file.write_table(table, max_chunksize=10)
    elif "csv" in name:
        texts = [[row["id"], row["text"] + '\n"x"', row["date"]] for row in rows]
        with gzip.open(raw / name, "wt", newline="") as file:
            csv.writer(file).writerows([["id", "text", "date"], *texts, ["te kort"]])
    else:
        (raw / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    config = configured(raw)
    listed = config.source_units("s")
    ((number, (_, parts)),) = listed.large_files.items()
    assert parts == -(-(raw / name).stat().st_size // UNIT_BYTES) > 2
    settings = step_settings(config, "sources.split", {"source": "s", "file": number})
    assert isinstance(settings, SplitSettings)
    folder = listed.part_folders[next(iter(listed.units))]
    assert folder is not None
    folder.parent.mkdir(parents=True)
    counts = split.run(settings, file=raw / name, parts=folder)
    assert counts["parts"] == parts == len(listed.units)
    units = list(listed.units.values())
    read_parts = [read(list(unit), list(unit.values()), True) for unit in units]
    kept, removed = read([name], [raw / name], False)
    assert [document for documents, _ in read_parts for document in documents] == kept
    assert [row for _, rows in read_parts for row in rows] == removed
    assert len(kept) >= 120 and counts["documents"] == len(kept) + len(removed)
    assert sum(bool(documents) for documents, _ in read_parts) > 1
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    split.run(settings, file=raw / name, parts=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_added_large_file_moves_no_other_file(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(6):
        (raw / f"{number}.jsonl").write_text('{"text": "goed"}\n')
    before = configured(raw, units=3).unit_files("s")
    (raw / "groot.jsonl").write_text("\n".join(lines(60)))
    config = configured(raw, units=3)
    after = config.unit_files("s")
    assert {unit: after[unit] for unit in before} == before
    parts = [unit for unit in after if unit not in before]
    assert len(parts) > 1 and all(list(after[unit]) == ["groot.jsonl"] for unit in parts)
    listed = config.source_units("s")
    assert all((listed.part_folders[unit] is not None) == (unit in parts) for unit in after)
    records = [Path(record).name for record in Dag(config).non_batch_record_paths()]
    assert sum(record.startswith("sources.split.s.") for record in records) == 1


def test_file_that_grew_after_planning_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "x.jsonl").write_text("\n".join(lines(60)))
    config = configured(raw)
    (number,) = config.source_units("s").large_files
    settings = step_settings(config, "sources.split", {"source": "s", "file": number})
    (raw / "x.jsonl").write_text("\n".join(lines(200)))
    assert isinstance(settings, SplitSettings)
    with pytest.raises(InputError, match="run snakemake again"):
        split.run(settings, file=raw / "x.jsonl", parts=tmp_path / "parts")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in hub layout, on an offline machine."""
    folder = tmp_path / "hub"
    (folder / "klein").mkdir(parents=True)
    for shard in range(2):
        rows = [{"key": f"{shard}-{n}", "body": f"tekst {shard} {n}", "url": "u"} for n in range(3)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "klein" / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(pa.table({"body": ["toets"]}), folder / "klein" / "test-00000-of-00001.parquet")
    configs = {"config_name": "klein", "data_files": [{"split": s, "path": f"klein/{s}-*"} for s in ("train", "test")]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': [configs]})}---\n# Een verzameling\n")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return folder


def loaded(
    hub: Path, folder: Path, units: int = 1, text_key: str = "body", id_key: str = "key", **keys: Any
) -> list[Any]:
    described = {"name": str(hub), "configuration": "klein", **keys}
    config = configured(hub, path=None, dataset=described, units=units, text_key=text_key, id_key=id_key)
    settings = step_settings(config, "sources.dataset", {"source": "s"})
    assert isinstance(settings, DatasetSettings)
    dataset.run(settings, files=[], parts=folder)
    return [[d[:2] for d in read(["x"], [folder / path.name], True)[0]] for path in sorted(folder.iterdir())]


def test_hub_cache_folder_is_read_offline(hub: Path, tmp_path: Path) -> None:
    (result,) = loaded(hub, tmp_path / "parts")
    assert result == [(f"s/train/{shard}-{n}", f"tekst {shard} {n}") for shard in range(2) for n in range(3)]
    (result,) = loaded(hub, tmp_path / "test", split="test")
    assert result == [("s/test/0", "toets")]


@pytest.mark.parametrize("several", [False, True])
def test_save_to_disk_folder_is_read(tmp_path: Path, hub: Path, several: bool) -> None:
    import datasets

    saved = datasets.Dataset.from_list([{"key": f"{n}", "body": f"tekst {n}", "other": n} for n in range(7)])
    saved = saved.filter(lambda row: row["other"] != 3)
    folder = tmp_path / "saved"
    (datasets.DatasetDict({"train": saved, "test": saved.select([0])}) if several else saved).save_to_disk(folder)
    expected = [(f"s/train/{n}", f"tekst {n}") for n in range(7) if n != 3]
    assert loaded(folder, tmp_path / "parts", configuration=None) == [expected]
    (path,) = folder.glob("**/train/*.arrow" if several else "*.arrow")
    result, _ = read([path.name], [path], False, FieldNames(text="body", id="key"))
    assert [text for _, text, _ in result] == [text for _, text in expected]
    if several:
        with pytest.raises(InputError, match="cannot be read as a data set"):
            loaded(folder, tmp_path / "none", configuration=None, split="validation")


@pytest.mark.parametrize(("id_key", "expected"), [("meta.id", "s/test/column"), ("inner.id", "s/test/field")])
def test_dotted_key_is_a_column_or_a_nested_field(hub: Path, tmp_path: Path, id_key: str, expected: str) -> None:
    row = {"body": "toets", "meta.id": "column", "inner": {"id": "field"}}
    for file in (hub / "klein").iterdir():  # all splits have the same columns
        pq.write_table(pa.Table.from_pylist([row]), file)
    assert loaded(hub, tmp_path / "parts", id_key=id_key, split="test") == [[(expected, "toets")]]


def test_rows_are_assigned_to_units_in_blocks(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "ROWS_PER_BLOCK", 2)
    result = loaded(hub, tmp_path / "parts", units=2)
    assert [[name.removeprefix("s/train/") for name, _ in part] for part in result] == [
        ["0-0", "0-1", "1-1", "1-2"],
        ["0-2", "1-0"],
    ]


@pytest.mark.slow
def test_more_parts_are_written_than_files_may_be_open(
    tmp_path: Path, few_files: Callable[[int], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_units, "ROWS_PER_GROUP", 2)

    def write(name: str) -> list[list[str]]:
        (tmp_path / name).mkdir()
        writer = source_units.PartWriter(tmp_path / name, 250)
        for number in range(1200):
            writer.write(number * 7 % 240, RawDocument(f"s/{number}", number, 1, "x"))
        for part in range(250):
            writer.finish(part)
        files = sorted((tmp_path / name).iterdir())
        assert [path.name for path in files] == [source_units.part_name(part) for part in range(250)]
        return [[document.id for document in source_units.read_part(path)] for path in files]

    with few_files(130):
        result = write("few")
    monkeypatch.setattr(source_units, "MAXIMUM_OPEN_PARTS", 1000)
    assert result == write("many") and sum(map(len, result)) == 1200


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"split": "validation"}, "cannot be read as a data set"),
        ({"configuration": "groot"}, "cannot be read as a data set"),
        ({"text_key": "text"}, r"no column 'text': set text_key of the source to one of key, body, url$"),
    ],
)
def test_missing_data_set_property_is_reported(hub: Path, tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        loaded(hub, tmp_path / "parts", **keys)
    assert "\n" not in str(caught.value)
