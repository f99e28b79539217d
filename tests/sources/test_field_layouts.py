"""A file in the layout of each public data set gives its text, id, address, date, license and language."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from warcio.warcwriter import WARCWriter

from pipeline.core.errors import InputError
from pipeline.corpus.text.language_codes import normalize_language
from pipeline.sources.field_layouts import LAYOUTS, LayoutName
from pipeline.sources.raw_documents import iso_date, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.settings import Source

TEXT, URL, UUID = "Het water staat hoog.", "https://www.voorbeeld.nl/water?x=1", "urn:uuid:0c2c0d18-0000-4000-8000-1"
RIGHTS = {"basis": "license", "holder": "iemand"}


def parquet(row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row]), stream)
    return stream.getvalue()


def wet() -> bytes:
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True)
    headers = {"WARC-Record-ID": f"<{UUID}>", "WARC-Date": "2024-02-20T21:10:55Z"}
    headers["WARC-Identified-Content-Language"] = "nld,eng"
    record = writer.create_warc_record(
        *(URL, "conversion", io.BytesIO(TEXT.encode())), warc_content_type="text/plain", warc_headers_dict=headers
    )
    writer.write_record(record)
    return stream.getvalue()


HPLT = {
    **{"f": "./CC-MAIN-2021-49/1.warc.gz", "o": 578687, "s": 8707, "rs": 31968, "u": URL, "c": "text/html"},
    **{"ts": "2021-12-02T05:48:14Z", "collection": "cc40", "lang": ["nld_Latn", "afr_Latn"], "prob": [0.9, 0.1]},
    **{"text": TEXT, "seg_langs": ["nld_Latn"], "robotstxt": "allowed", "id": "a1b2", "filter": "keep"},
    **{"pii": [[0, 3]], "doc_scores": [8.9, 10.0]},
}
FINEWEB2 = {
    **{"text": TEXT, "id": f"<{UUID}>", "dump": "CC-MAIN-2013-20", "url": URL, "date": "2013-05-20T00:00:00Z"},
    **{"file_path": "s3://commoncrawl/1.warc.gz", "language": "nld", "language_score": 0.99},
    **{"language_script": "Latn", "minhash_cluster_size": 3, "top_langs": "{}"},
}
COMMON_CORPUS = {
    **{"identifier": "ark:/1", "collection": "Dutch-PD", "open_type": "Open Culture", "license": "Public Domain"},
    **{"date": 1893.0, "title": "Water", "creator": "Een schrijver", "language": "Dutch", "language_type": "Written"},
    **{"word_count": 4, "token_count": 6, "text": TEXT},
}
GPTNL = {
    **{"id": "n1", "text": TEXT, "title": "Water", "source": "archief", "author": "Een schrijver"},
    **{"license": "CC-BY-4.0", "dataset_name": "archief", "dataset_url": URL, "language": "nl"},
    **{"language_score": 0.99, "n_char": 21, "n_non_symbol_words": 4, "avg_word_length": 4.0},
}
OSCAR = {
    "content": TEXT,
    "warc_headers": {
        **{"warc-refers-to": "<urn:uuid:2>", "warc-date": "2022-11-26T09:45:47Z", "content-type": "text/plain"},
        **{"warc-identified-content-language": "nld,eng", "warc-target-uri": URL, "warc-record-id": f"<{UUID}>"},
    },
    "metadata": {
        **{"identification": {"label": "nl", "prob": 0.97}, "harmful_pp": 900.0, "tlsh": "tlsh:1"},
        **{"quality_warnings": None, "categories": None, "sentence_identifications": [None]},
    },
}
C4 = {"text": TEXT, "timestamp": "2019-04-25T12:57:54Z", "url": URL}
CRAWL = {"url": URL, "original_id": f"<{UUID}>"}
# By layout: file name, bytes, and a document of it.
CASES: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "hplt": (
        "nld_Latn_1.jsonl.zst",
        lambda: zstandard.compress(json.dumps(HPLT).encode()),
        {"url": URL, "original_id": "a1b2", "date": "2021-12-02", "language": "nld_Latn"},
    ),
    "fineweb2": ("000_00000.parquet", lambda: parquet(FINEWEB2), {**CRAWL, "date": "2013-05-20", "language": "nld"}),
    "culturax": (
        "nl_part_00000.parquet",
        lambda: parquet({**C4, "source": "mC4"}),
        {"url": URL, "date": "2019-04-25", "language": None},
    ),
    "mc4": (
        "c4-nl.tfrecord-00000-of-01024.json.gz",
        lambda: gzip.compress(json.dumps(C4).encode()),
        {"url": URL, "date": "2019-04-25", "language": None},
    ),
    "madlad400": (
        "nl_clean_0000.jsonl.gz",
        lambda: gzip.compress(json.dumps({"text": TEXT}).encode()),
        {"url": None, "date": None, "language": None, "id": "s/nl_clean_0000.jsonl.gz/0"},
    ),
    "oscar": (
        "nl_meta_part_1.jsonl.zst",
        lambda: zstandard.compress(json.dumps(OSCAR).encode()),
        {**CRAWL, "date": "2022-11-26", "language": "nl"},
    ),
    "common_corpus": (
        "subset_100_1.parquet",
        lambda: parquet(COMMON_CORPUS),
        {
            **{"original_id": "ark:/1", "license": "Public Domain", "date": "1893", "title": "Water", "url": None},
            **{"holder": "Een schrijver", "language": "Dutch"},
        },
    ),
    "gptnl": (
        "archief_0001.parquet",
        lambda: parquet(GPTNL),
        {
            **{"original_id": "n1", "license": "CC-BY-4.0", "title": "Water", "holder": "Een schrijver", "url": None},
            "language": "nl",
        },
    ),
    "common_crawl": (
        "CC-MAIN-20240220211055-20240221001055-00000.warc.wet.gz",
        wet,
        {"url": URL, "original_id": UUID, "date": "2024-02-20", "language": "nld,eng"},
    ),
}


def source(**keys: Any) -> Source:
    return Source.model_validate(
        {"name": "s", "path": "*", "language": "nl", "license": "CC0-1.0", "rights": RIGHTS, **keys}
    )


def test_every_layout_has_a_file() -> None:
    assert CASES.keys() == LAYOUTS.keys() == {*get_args(LayoutName)}


@pytest.mark.parametrize("layout", CASES)
def test_layout_fields_are_read_from_its_file(tmp_path: Path, layout: str) -> None:
    name, content, expected = CASES[layout]
    (tmp_path / name).write_bytes(content())
    keys = source(layout=layout).field_names()
    ((document, record),) = make_raw_documents(read_records(tmp_path / name, name, keys, 10_000), f"s/{name}", keys)
    assert record.reason is None and document.text == TEXT
    assert {key: getattr(document, key) for key in expected} == expected
    if document.language is not None:
        assert normalize_language(document.language) == "nl"


def test_explicit_source_key_overrides_the_layout() -> None:
    written = source(layout="fineweb2", language_key=None, url_key="adres")
    assert (written.language_key, written.url_key) == (None, "adres")
    assert source(layout="oscar").text_key == "content" and source().language_key is None
    with pytest.raises(ValueError, match="layout"):
        source(layout="pile")


@pytest.mark.parametrize(
    ("value", "expected"), [(1893.0, "1893"), (1893.5, None), (float("nan"), None), (1893, "1893"), (12.0, None)]
)
def test_year_with_missing_values_is_read_from_floats(value: float, expected: str | None) -> None:
    assert iso_date(value) == expected


def test_older_oscar_without_labels_has_no_language(tmp_path: Path) -> None:
    row = {**OSCAR, "metadata": {"identification": None}}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    keys = source(layout="oscar").field_names()
    ((document, _),) = make_raw_documents(read_records(tmp_path / "x.jsonl", "x.jsonl", keys, 10_000), "s", keys)
    assert document.language is None


def test_table_without_the_text_column_of_its_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(parquet(FINEWEB2))
    with pytest.raises(InputError, match="no column 'content'"):
        list(read_records(tmp_path / "x.parquet", "x.parquet", source(layout="oscar").field_names(), 10_000))
