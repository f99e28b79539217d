"""The corpus size is estimated before any job: small files exactly, large ones by their beginnings."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.documents import FINAL_SCHEMA, DocumentWriter
from pipeline.corpus.duplicates.passage_hashes import hash_all_word_passages
from pipeline.corpus.duplicates.signature_files import SignatureWriter, line_keys
from pipeline.corpus.settings import SignatureSettings
from pipeline.forecast.corpus_size_and_time import (
    CorpusSize,
    _to_final_schema,
    estimate_source_size,
    maximum_documents,
    recommended_memory_bytes,
)
from pipeline.sources.raw_documents import make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import SourceUnits

WORDS = Path("config/corpus/nl_gids.jsonl").read_text(encoding="utf-8", errors="ignore").split()


def prose(documents: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return documents of 20 to 500 words of the embedded corpus, in another order."""
    chance = random.Random(seed)
    return [
        {
            "id": f"d{number}",
            "text": " ".join(chance.choices(WORDS, k=chance.randint(20, 500))),
            "url": f"https://n/{number}",
        }
        for number in range(documents)
    ]


def listed(folder: Path, **keys: Any) -> SourceUnits:
    source = {"name": "s", "path": f"{folder}/*", "language": "nl", "license": "CC0-1.0", **keys}
    source["rights"] = {"basis": "public-domain", "holder": "nobody"}
    return parse_configuration({"run": {"name": "r"}, "sources": [source]}).source_units("s")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500)
    else:
        path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)


def estimate(folder: Path, **keys: Any) -> CorpusSize:
    corpus_size = estimate_source_size(listed(folder, **keys))
    assert corpus_size is not None
    return corpus_size


def test_small_files_are_read_completely(tmp_path: Path) -> None:
    rows = prose(30)
    write(tmp_path / "a.jsonl", [*rows[:10], {"text": ""}, {"other": 1}])
    write(tmp_path / "b.jsonl.gz", rows[10:])
    (tmp_path / "c.jsonl").write_bytes(b"\n{broken\n")
    result = estimate(tmp_path)
    assert (result.files, result.units, result.sampled, result.documents) == (3, 1, 30, 30)
    assert result.text_bytes == sum(len(row["text"].encode()) for row in rows)
    assert result.raw_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_large_file_is_sampled_at_its_beginning(tmp_path: Path, name: str) -> None:
    rows = prose(3000)
    write(tmp_path / name, rows)
    result = estimate(tmp_path)
    assert 100 < result.sampled < 2900
    assert result.documents == pytest.approx(3000, rel=0.1)
    assert result.text_bytes == pytest.approx(sum(len(row["text"].encode()) for row in rows), rel=0.1)


def test_many_files_are_sampled_and_damaged_files_are_skipped(tmp_path: Path) -> None:
    for number in range(50):
        write(tmp_path / f"{number:02}.jsonl", prose(4, seed=number))
    (tmp_path / "00.jsonl").rename(tmp_path / "00.jsonl.gz")
    result = estimate(tmp_path)
    assert result.files == 50 and 60 <= result.sampled < 80
    assert result.documents == pytest.approx(196, rel=0.25)


def test_unknown_corpus_size_is_not_estimated(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert estimate_source_size(listed(tmp_path)) is None
    dataset = {"name": "someone/something", "revision": "0" * 40}
    assert estimate_source_size(listed(tmp_path, path=None, dataset=dataset)) is None
    pq.write_table(pa.table({"words": ["een"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="has no column 'text': set text_key"):
        estimate_source_size(listed(tmp_path))


def test_disk_estimate_equals_what_the_steps_write(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw/a.jsonl", prose(2500))
    result, settings = estimate(tmp_path / "raw"), SignatureSettings(bands=6)
    records = read_records(tmp_path / "raw/a.jsonl", "a.jsonl", listed(tmp_path / "raw").source.field_names(), 1 << 20)
    table = _to_final_schema(
        "s",
        (document for document, _ in make_raw_documents(records, "s/a.jsonl", listed(tmp_path).source.field_names())),
    )
    with DocumentWriter(tmp_path / "final", FINAL_SCHEMA) as writer:
        for start in range(0, len(table), 1000):
            writer.write(table.slice(start, 1000))
    signed = SignatureWriter(tmp_path / "signatures", settings, {"source": "s", "unit": 0})
    chance = random.Random(3)
    for document_id in table["id"].to_pylist():
        keys = {name: chance.getrandbits(64) for name in signed.schema.names if name.startswith(("content", "bucket"))}
        signed.add(
            {"id": document_id, "characters": chance.randint(100, 3000), "ngrams": chance.randint(20, 500), **keys}
        )
    signed.close()
    for name, size in result.disk_bytes(settings).items():
        if (tmp_path / name).is_file():
            assert size == pytest.approx((tmp_path / name).stat().st_size, rel=0.15), name
    assert result.disk_bytes(settings)["filtered"] < result.disk_bytes(settings)["final"]
    without = result.disk_bytes(SignatureSettings(minhash=False))["signatures"]
    assert without > 2 * 8 * result.documents + result.stored_id_bytes > 2 * 8 * result.documents
    assert result.disk_bytes(settings)["signatures"] - without == pytest.approx(6 * 8 * result.documents, rel=0.2)


def test_sources_are_summed_and_memory_follows_from_documents() -> None:
    both = CorpusSize(1, 2, 3, 4, 5.0, 6.0, 7.0, 8.0, 9.0) + CorpusSize(10, 20, 30, 40, 50.0, 60.0, 70.0, 80.0, 90.0)
    assert both == CorpusSize(11, 22, 33, 44, 55.0, 66.0, 77.0, 88.0, 99.0)
    assert maximum_documents(4_000_000_000) == 83_333_333 and recommended_memory_bytes(1_000_000) == 96_000_000


def test_anchors_of_passages_and_keys_of_lines_are_predicted() -> None:
    draw = random.Random(5)
    lines = [" ".join(f"{draw.randrange(10**6):06d}" for _ in range(18)) for _ in range(400)]
    text = "\n".join(lines)
    size = CorpusSize(text_bytes=len(text), documents=1)
    plain, passages, with_lines = (
        size.disk_bytes(SignatureSettings(**keys))["signatures"]
        for keys in ({}, {"passage_words": 50}, {"line_characters": 20})
    )
    written = 8 * len(hash_all_word_passages(text, 50).anchors_A)
    assert passages - plain == pytest.approx(written, rel=0.1)
    assert with_lines - plain == pytest.approx(8 * len(line_keys(text, "", 20)), rel=0.1)
