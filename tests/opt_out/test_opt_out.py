"""Reserved documents are removed by domain, id or holder, and the list determines what is filtered again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document

from pipeline.core.errors import InputError
from pipeline.corpus import filter
from pipeline.corpus.rights_filters import OptOutFilter
from pipeline.corpus.settings import Corpus, FilterSettings
from pipeline.opt_out import entries
from pipeline.opt_out.document_matching import match_domains
from pipeline.sources import manifest
from pipeline.sources.raw_documents import FieldNames, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.settings import EntriesSettings, ManifestSettings, OptOut, Rights
from tests.conftest import fingerprinted

LISTED = OptOut(
    domains=["voorbeeld.nl", "xn--caf-dma.nl", "straße.de", "127.0.0.1"],
    ids=["7", "s/x.jsonl/8", "één"],
    holders=["De Krant", "Café"],
)


@pytest.mark.parametrize(
    ("metadata", "entry"),
    [
        ({"url": "https://voorbeeld.nl/a"}, "domain voorbeeld.nl"),
        ({"url": "HTTP://WWW.Voorbeeld.NL.:8080/a?b"}, "domain voorbeeld.nl"),
        ({"url": "a.b.voorbeeld.nl/pad"}, "domain voorbeeld.nl"),
        ({"url": "https://café.nl"}, "domain xn--caf-dma.nl"),
        ({"url": "https://nietvoorbeeld.nl/voorbeeld.nl"}, None),
        ({"url": "https://ander.nl/?u=voorbeeld.nl"}, None),
        ({"url": "https://nl"}, None),
        ({"url": "http://[kapot"}, None),
        ({"url": "https://www.straße.de/a"}, "domain xn--strae-oqa.de"),
        ({"url": "https://xn--strae-oqa.de/a"}, "domain xn--strae-oqa.de"),
        ({"url": "https://strasse.de/a"}, None),
        ({"url": "https:\\\\jan@voor\u00adbeeld。nl\\a"}, "domain voorbeeld.nl"),
        ({"url": "http://0x7f.1/a"}, "domain 127.0.0.1"),
        ({"url": "http://1.127.0.0.1/a"}, None),
        ({"url": None}, None),
        ({}, None),
        ({"original_id": "7"}, "id 7"),
        ({"original_id": "8"}, None),
        ({"holder": "De Krant"}, "holder De Krant"),
        ({"holder": "De Krant BV"}, None),
        ({"holder": "Cafe\u0301"}, "holder Café"),
        ({"original_id": "e\u0301e\u0301n"}, "id één"),
    ],
)
def test_document_matches_entries(metadata: dict[str, Any], entry: str | None) -> None:
    document = Document(text="tekst", id="s/x.jsonl/1", metadata=metadata)
    assert OptOutFilter(LISTED).filter(document) == (True if entry is None else (False, "opt_out"))
    assert document.metadata.get("filter_value") == entry


def test_full_id_and_source_holder_match() -> None:
    assert list(OptOutFilter(LISTED).matching_entries(Document(text="t", id="s/x.jsonl/8"))) == ["id s/x.jsonl/8"]
    assert list(OptOutFilter(LISTED, "De Krant").matching_entries(Document(text="t", id="1"))) == ["holder De Krant"]
    assert list(OptOutFilter(OptOut(), "De Krant").matching_entries(Document(text="t", id="1"))) == []


def test_all_matching_entries_are_listed() -> None:
    metadata = {"original_id": "7", "holder": "De Krant", "url": "https://www.voorbeeld.nl"}
    document = Document(text="t", id="s/x.jsonl/8", metadata=metadata)
    entries = ["id s/x.jsonl/8", "id 7", "holder De Krant", "domain voorbeeld.nl"]
    assert list(OptOutFilter(LISTED, "De Krant").matching_entries(document)) == entries


class Source:
    """One file as one unit, with an opt-out list."""

    def __init__(
        self,
        folder: Path,
        texts: dict[str, str],
        name: str = "x.jsonl",
        more: list[dict[str, Any]] | None = None,
        table: pa.Table | None = None,
        **keys: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.keys = keys
        rows = [
            {"id": name, "text": text, "url": f"https://www.{name[:2]}.nl/{name}", "date": "2019-05-06T07:08:09"}
            for name, text in texts.items()
        ] + (more or [])
        self.file = folder / name
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows) if table is None else table, self.file)
        else:
            self.file.write_text("\n".join(map(json.dumps, rows)))
        self.fingerprint = fingerprinted(folder / "hashed", "s", {name: self.file})
        entries.run(
            EntriesSettings(source="s", document_bytes=10_000, id_key="id", **keys),
            listing=folder / "hashed" / "0.listing",
            files=[self.file],
            entries=folder / "0.npy",
        )

    def manifest(
        self, listed: str | None, unmatched: int = 0, shared: Sequence[Path] = (), holder: str = "De Krant"
    ) -> dict[str, Any]:
        """Return the manifest with an opt-out list, or without one."""
        rights = Rights(basis="license", holder=holder)
        name = "list.json" if listed and listed.startswith("{") else "list.txt"
        paths = [] if listed is None else [self.folder / name]
        shutil.rmtree(self.folder / "units", ignore_errors=True)
        for path in paths:
            path.write_text(listed or "")
        manifest.run(
            ManifestSettings(
                source="s", language="nl", license="MIT", rights=rights, units=1, allowed_unmatched_ids=unmatched
            ),
            fingerprints=[self.fingerprint],
            entries=[self.folder / "0.npy"],
            shared=[*shared],
            opt_out=paths,
            manifest=self.folder / "manifest",
            units=self.folder / "units",
        )
        content: dict[str, Any] = json.loads((self.folder / "manifest").read_text())
        return content

    def filter(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the kept and the removed documents."""
        settings = FilterSettings(
            source="s",
            languages=Corpus().languages,
            personal_data=Corpus().personal_data,
            broken_share=0.0,
            **self.keys,
        )
        kept, removed = self.folder / "kept", self.folder / "removed"
        filter.run(settings, unit=self.folder / "units/0.json", files=[self.file], documents=kept, removed=removed)
        return pq.read_table(kept).to_pylist(), pq.read_table(removed).to_pylist()


def test_listed_domain_is_removed_and_listed_among_the_removed(tmp_path: Path, texts: dict[str, str]) -> None:
    chosen = {name: texts[name] for name in ("nl_water", "nl_fiets", "en_garden")}
    source = Source(tmp_path, chosen)
    source.manifest("nl.nl\n")
    kept, removed = source.filter()
    assert [(row["id"], row["date"]) for row in kept] == [("s/x.jsonl/en_garden", "2019-05-06")]
    assert [(row["id"], row["reason"], row["value"]) for row in removed] == [
        (f"s/x.jsonl/{name}", "opt_out", "domain nl.nl") for name in ("nl_fiets", "nl_water")
    ]
    assert [row["bytes"] for row in removed] == [len(chosen[n].encode()) for n in ("nl_fiets", "nl_water")]
    source.manifest("holder: De Krant\n")
    assert source.filter()[0] == []


def test_only_matching_entries_change_the_inputs_of_the_filter(tmp_path: Path) -> None:
    source = Source(tmp_path, {"nl": "tekst"})
    without, first = source.manifest(None), source.manifest("date: 2026-01-01\nnl.nl\n")
    later, other = (
        source.manifest("date: 2026-02-01\nb.nl\nnl.nl\n"),
        source.manifest("a.nl\nid: en\nholder: Niemand\n", unmatched=1),
    )
    hashes = [content["units"]["0"]["sha256"] for content in (without, first, later, other)]
    assert hashes[1] == hashes[2] and hashes[0] == hashes[3] and len(set(hashes)) == 2
    assert "opt_out" not in without and first["opt_out"]["sha256"] != later["opt_out"]["sha256"]
    assert later["opt_out"]["date"] == "2026-02-01" and later["opt_out"]["domains"] == ["b.nl", "nl.nl"]
    source.manifest("b.nl\nid: nl\nholder: De Krant\n")
    unit = json.loads((tmp_path / "units/0.json").read_text())
    assert unit["opt_out"] == {"domains": [], "ids": ["nl"], "holders": ["De Krant"], "holder": "De Krant"}


def test_changed_source_holder_changes_the_inputs_if_the_list_names_it(tmp_path: Path) -> None:
    source = Source(tmp_path, {"nl": "tekst"}, more=[{"text": "tekst", "holder": "De Lezer"}])

    def of_unit(listed: str | None, holder: str) -> str:
        return str(source.manifest(listed, holder=holder)["units"]["0"]["sha256"])

    for listed in (None, "nl.nl\n", "id: nl\nholder: Niemand\n", "holder: De Lezer\n"):
        assert of_unit(listed, "De Krant") == of_unit(listed, "De Bode")
    assert of_unit("holder: De Krant\n", "De Krant") != of_unit("holder: De Krant\n", "De Bode")


def test_missing_url_matches_no_domain() -> None:
    nothing = match_domains(pa.chunked_array([], pa.string()), {"voorbeeld.nl"})
    assert nothing.dtype == bool and len(nothing) == 0


UUIDS = [bytes.fromhex(f"1234567890abcdef000000000000000{number}") for number in range(3)]
NUMBERS = pa.array([10, 11, 12], pa.int64())
TEXTS = pa.array(["tien", "elf", "twaalf"])


@pytest.mark.parametrize(
    ("ids", "listed"),
    [
        (pa.array(UUIDS, pa.binary(16)).cast(pa.uuid()), "12345678-90ab-cdef-0000-000000000001"),
        (pa.array([Decimal("1.50"), Decimal("-7.25"), Decimal("1E+3")], pa.decimal128(9, 2)), "-7.25"),
        (pa.array([Decimal("1E+30")] * 1 + [Decimal(10**30 + 7), None], pa.decimal256(50, 0)), f"{10**30 + 7}"),
        (NUMBERS, "11"),
        (NUMBERS.cast(pa.uint8()), "11"),
        (NUMBERS.cast(pa.float64()), "11.0"),
        (pa.array([1.0, 2.5, float("nan")]), "2.5"),
        (TEXTS, "elf"),
        (TEXTS.cast(pa.large_string()), "elf"),
        (TEXTS.cast(pa.string_view()), "elf"),
        (TEXTS.cast(pa.binary()), "elf"),
        (TEXTS.cast(pa.large_binary()), "elf"),
        (TEXTS.dictionary_encode(), "elf"),
        (pa.array(["a", "b/c#d", None]), "b/c#d"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
def test_id_of_any_type_is_compared_as_its_exact_text(
    tmp_path: Path, texts: dict[str, str], ids: pa.Array, listed: str
) -> None:
    chosen = [texts[name] for name in ("nl_water", "nl_fiets", "en_garden")]
    source = Source(tmp_path, {}, "x.parquet", table=pa.table({"id": ids, "text": chosen}))
    source.manifest(f"id: {listed}\n")
    kept, removed = source.filter()
    assert len(kept) == 2 and [(row["id"], row["reason"], row["value"]) for row in removed] == [
        (f"s/x.parquet/{listed}", "opt_out", f"id {listed}")
    ]
    source.manifest(f"id: s/x.parquet/{listed}\n")
    assert len(source.filter()[1]) == 1


TIMES = NUMBERS.cast(pa.timestamp("us"))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(UUIDS, pa.binary(16)), r"fixed_size_binary\[16\]"),
        (pa.array(UUIDS, pa.binary()), "bytes"),
        (TIMES, r"timestamp\[us\]"),
        (TIMES.cast(pa.date32()), "date32"),
        (NUMBERS.cast(pa.time64("us")), "time64"),
        (NUMBERS.cast(pa.duration("s")), "duration"),
        (pa.array([True, False, None]), "bool"),
        (pa.array([["a"], [], None]), "list"),
        (pa.array([{"oid": "a"}, None, {}]), "struct"),
        (pa.array([[("a", "b")], [], None], pa.map_(pa.string(), pa.string())), "map"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
@pytest.mark.parametrize("key", ["id", "url", "holder"])
def test_id_type_without_text_form_is_refused(tmp_path: Path, key: str, column: pa.Array, words: str) -> None:
    table = pa.table({key: column, "text": ["tekst"] * 3})
    with pytest.raises(InputError, match=rf"x\.parquet.*the field '{key}' holds a value of the type {words}"):
        Source(tmp_path, {}, "x.parquet", table=table)
    (tmp_path / "x.parquet").unlink()
    pq.write_table(table, tmp_path / "y.parquet")
    with pytest.raises(InputError, match=rf"y\.parquet.*the field '{key}' holds a value of the type {words}"):
        list(
            make_raw_documents(
                read_records(tmp_path / "y.parquet", "y.parquet", FieldNames(), 999), "s/y.parquet", FieldNames()
            )
        )


@pytest.mark.parametrize(
    ("value", "kind"), [(True, "bool"), (["a"], "list"), ({"$oid": "a"}, "dict"), (math.inf, "infinite number")]
)
@pytest.mark.parametrize("key", ["id", "url", "holder"])
def test_json_id_of_an_unsupported_type_is_refused(tmp_path: Path, key: str, value: Any, kind: str) -> None:
    with pytest.raises(InputError, match=rf"x\.jsonl, record 2: the field '{key}' holds a value of the type {kind}"):
        Source(tmp_path, {"a": "tekst"}, more=[{"text": "tekst", key: value}])
    with pytest.raises(InputError, match=rf"s/x, record 2: the field '{key}' holds a value of the type {kind}"):
        list(make_raw_documents(read_records(tmp_path / "x.jsonl", "x.jsonl", FieldNames(), 999), "s/x", FieldNames()))
    keys = FieldNames(**{key: f"{key}.$oid"})
    read = [
        result for result, _ in make_raw_documents(read_records(tmp_path / "x.jsonl", "x.jsonl", keys, 999), "s", keys)
    ]
    assert len(read) == 2 and ("a" in vars(read[1]).values()) == (kind == "dict")


def test_decomposed_letters_match(tmp_path: Path) -> None:
    source = Source(tmp_path, {"e\u0301": "tekst"}, more=[{"text": "tekst", "holder": "Cafe\u0301"}])
    for listed in ("id: é\nholder: Café\n", "id: e\u0301\nholder: Cafe\u0301\n"):
        source.manifest(listed)
        assert {row["value"] for row in source.filter()[1]} == {"id é", "holder Café"}


def test_unmatched_id_stops_the_run_until_acknowledged(tmp_path: Path) -> None:
    source = Source(tmp_path, {"nl": "tekst", "en": "tekst"})
    listed = "id: nl\nid: s/x.jsonl/en\nid: s/x.jsonl/nl#2\nid: n1\nid: jan@voorbeeld.nl\nnergens.nl\nholder: Niemand\n"
    with pytest.raises(InputError) as caught:
        source.manifest(listed)
    assert f"2 of the 5 ids in {tmp_path / 'list.txt'} name no document: <EMAIL>, n1." in str(caught.value)
    assert "write `allowed_unmatched_ids: 2` at the source" in str(caught.value)
    assert not (tmp_path / "units").exists()
    with pytest.raises(InputError, match="2 of the 5"):
        source.manifest(listed, unmatched=1)
    assert "allowed_unmatched_ids" not in source.manifest(listed, unmatched=2)["source"]
    other = Source(tmp_path / "other", {"n1": "tekst"})
    with pytest.raises(InputError, match="1 of the 5"):
        source.manifest(listed, shared=[other.folder / "0.npy"])
    source.manifest(listed.replace("id: jan@voorbeeld.nl\n", ""), shared=[other.folder / "0.npy"])


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_holder_and_url_are_read_from_the_configured_fields(tmp_path: Path, texts: dict[str, str], name: str) -> None:
    rows = [
        {"id": key, "text": texts[key], "holder": "De Krant", "metadata": {"author": author, "link": link}}
        for key, author, link in (
            ("nl_water", "Een Schrijver", "https://a.nl/1"),
            ("nl_fiets", "Iemand Anders", "https://b.nl/2"),
            ("en_garden", "Iemand Anders", "https://c.nl/3"),
        )
    ]
    source = Source(tmp_path, {}, name, rows, url_key="metadata.link", holder_key="metadata.author")
    source.manifest("holder: Een Schrijver\nholder: Nergens Genoemd\nb.nl\n")
    unit = json.loads((tmp_path / "units/0.json").read_text())
    assert (unit["opt_out"]["holders"], unit["opt_out"]["domains"]) == (["Een Schrijver"], ["b.nl"])
    kept, removed = source.filter()
    assert [(row["id"], row["url"]) for row in kept] == [(f"s/{name}/en_garden", "https://c.nl/3")]
    assert {row["id"].rpartition("/")[2]: row["value"] for row in removed} == {
        "nl_water": "holder Een Schrijver",
        "nl_fiets": "domain b.nl",
    }
