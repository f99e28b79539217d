"""Masked personal data of one document are counted again from its raw file, wherever that is."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.audit.masked_personal_data_recount import describe_masked_personal_data
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Record
from pipeline.corpus.settings import FilterSettings
from tests.corpus.conftest import TEXTS, Chain
from tests.record_content import record_content


def test_document_with_a_license_of_its_own_is_recounted_from_a_moved_raw_file(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    text = f"{TEXTS['nl_water']}\n\nSchrijf naar jan.zaaier@plantenpost.nl."
    row = json.dumps({"id": "a", "text": text, "license": "CC0-1.0"}) + "\n"
    chain.filter("s", {"x.jsonl": row.encode()})
    (kept,) = pq.read_table(tmp_path / "s.filtered").to_pylist()
    corpus = chain.corpus.model_dump(include={"languages", "normalization", "personal_data", "broken_share"})
    settings = FilterSettings.model_validate({"source": "s", **corpus})
    raw = tmp_path / "raw/s/x.jsonl"
    entry = {"name": "files", "path": "data:x.jsonl", "sha256": hash_file(raw), "bytes": raw.stat().st_size}
    file = tmp_path / "record.json"
    content = record_content("corpus.filter", settings=settings.model_dump(mode="json"), inputs=[entry])
    file.write_text(json.dumps(content))
    named = (tmp_path, Record.load(file), kept["id"], "x.jsonl", kept["text"], "CC0-1.0")
    line = describe_masked_personal_data(*named, raw.parent)
    assert line == "masked: email 1 (recomputed from x.jsonl, which gives the text of the corpus)"
    line = describe_masked_personal_data(*named)
    assert "x.jsonl is not here with the bytes that were read (name its folder with --raw FOLDER)" in line
