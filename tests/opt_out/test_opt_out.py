"""Who reserved their rights is left out, by domain, id or holder, and the list decides what is read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document

from pipeline.corpus import filter
from pipeline.corpus.settings import Corpus, FilterSettings
from pipeline.opt_out import entries
from pipeline.opt_out.block import OptOutFilter
from pipeline.opt_out.lists import OptOut
from pipeline.opt_out.search import on_domains
from pipeline.sources import manifest
from pipeline.sources.settings import EntriesSettings, ManifestSettings, Rights
from tests.conftest import fingerprinted

LISTED = OptOut(
    domains=["voorbeeld.nl", "xn--caf-dma.nl", "straße.de", "127.0.0.1"],
    ids=["7", "s/x.jsonl/8"],
    holders=["De Krant"],
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
    ],
)
def test_which_entry_a_document_falls_under(metadata: dict[str, Any], entry: str | None) -> None:
    document = Document(text="tekst", id="s/x.jsonl/1", metadata=metadata)
    assert OptOutFilter(LISTED).filter(document) == (True if entry is None else (False, "opt_out"))
    assert document.metadata.get("filter_value") == entry


def test_the_full_id_and_the_holder_of_the_source_count_too() -> None:
    assert list(OptOutFilter(LISTED).entries(Document(text="t", id="s/x.jsonl/8"))) == ["id s/x.jsonl/8"]
    assert list(OptOutFilter(LISTED, "De Krant").entries(Document(text="t", id="1"))) == ["holder De Krant"]
    assert list(OptOutFilter(OptOut(), "De Krant").entries(Document(text="t", id="1"))) == []


def test_all_entries_that_name_a_document_are_told() -> None:
    metadata = {"original_id": "7", "holder": "De Krant", "url": "https://www.voorbeeld.nl"}
    document = Document(text="t", id="s/x.jsonl/8", metadata=metadata)
    entries = ["id s/x.jsonl/8", "id 7", "holder De Krant", "domain voorbeeld.nl"]
    assert list(OptOutFilter(LISTED, "De Krant").entries(document)) == entries


class Source:
    """One file as one unit, with an opt-out list."""

    def __init__(
        self,
        folder: Path,
        texts: dict[str, str],
        name: str = "x.jsonl",
        more: list[dict[str, Any]] | None = None,
        **keys: str,
    ) -> None:
        self.folder = folder
        self.keys = keys
        rows = [
            {"id": name, "text": text, "url": f"https://www.{name[:2]}.nl/{name}", "date": "2019-05-06T07:08:09"}
            for name, text in texts.items()
        ] + (more or [])
        self.file = folder / name
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), self.file)
        else:
            self.file.write_text("\n".join(map(json.dumps, rows)))
        self.fingerprint = fingerprinted(folder / "hashed", "s", {name: self.file})
        entries.run(
            EntriesSettings(source="s", document_bytes=10_000, id_key="id", **keys),
            listing=folder / "hashed" / "0.listing",
            files=[self.file],
            entries=folder / "0.npy",
        )

    def manifest(self, listed: str | None) -> dict[str, Any]:
        """Return the manifest with an opt-out list, or without one."""
        rights = Rights(basis="licence", holder="De Krant")
        paths = [] if listed is None else [self.folder / "list.txt"]
        shutil.rmtree(self.folder / "units", ignore_errors=True)
        for path in paths:
            path.write_text(listed or "")
        manifest.run(
            ManifestSettings(source="s", language="nl", license="MIT", rights=rights, units=1),
            fingerprints=[self.fingerprint],
            entries=[self.folder / "0.npy"],
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
            license="MIT",
            languages=Corpus().languages,
            personal_data=Corpus().personal_data,
            broken_share=0.0,
            **self.keys,
        )
        kept, removed = self.folder / "kept", self.folder / "removed"
        filter.run(settings, unit=self.folder / "units/0.json", files=[self.file], documents=kept, removed=removed)
        return pq.read_table(kept).to_pylist(), pq.read_table(removed).to_pylist()


def test_a_listed_domain_is_gone_and_can_be_found_among_the_removed(tmp_path: Path, texts: dict[str, str]) -> None:
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


def test_the_entries_that_name_something_decide_what_is_read_again(tmp_path: Path) -> None:
    source = Source(tmp_path, {"nl": "tekst"})
    without, first = source.manifest(None), source.manifest("date: 2026-01-01\nnl.nl\n")
    later, other = (
        source.manifest("date: 2026-02-01\nb.nl\nnl.nl\n"),
        source.manifest("a.nl\nid: en\nholder: Niemand\n"),
    )
    hashes = [content["units"]["0"]["sha256"] for content in (without, first, later, other)]
    assert hashes[1] == hashes[2] and hashes[0] == hashes[3] and len(set(hashes)) == 2
    assert "opt_out" not in without and first["opt_out"]["sha256"] != later["opt_out"]["sha256"]
    assert later["opt_out"]["date"] == "2026-02-01" and later["opt_out"]["domains"] == ["b.nl", "nl.nl"]
    source.manifest("b.nl\nid: nl\nholder: De Krant\n")
    unit = json.loads((tmp_path / "units/0.json").read_text())
    assert unit["opt_out"] == {"domains": [], "ids": ["nl"], "holders": ["De Krant"], "holder": "De Krant"}


def test_no_address_at_all_is_on_no_domain() -> None:
    nothing = on_domains(pa.chunked_array([], pa.string()), {"voorbeeld.nl"})
    assert nothing.dtype == bool and len(nothing) == 0


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_holder_and_an_address_stand_where_the_source_says(tmp_path: Path, texts: dict[str, str], name: str) -> None:
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
