"""Titles, URLs and ids contain no personal data, and are unchanged if they contain none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document

from pipeline.core.errors import InputError
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker, MetadataMaskingStep
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import KINDS
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.rights_filters import OptOutFilter
from pipeline.opt_out.entries import ListedEntries, hash_unit_identities
from pipeline.opt_out.lists import publishable_list, read_opt_out_list
from pipeline.sources.raw_documents import FieldNames
from pipeline.sources.settings import OptOut

FIELDS = MetadataMasker(PersonalData())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://wetten.overheid.nl/BWBR0001854/2024-01-01", "https://wetten.overheid.nl/BWBR0001854/2024-01-01"),
        ("https://plek.nl:8080/a%20b/", "https://plek.nl:8080/a%20b/"),
        ("plek.nl/pad", "plek.nl/pad"),
        ("https://jan:geheim@plek.nl/a?wie=jan&b#c", "https://plek.nl/a"),
        ("https://plek.nl/over/jan.zaaier@post.nl/foto", "https://plek.nl/over/<EMAIL>/foto"),
        ("https://plek.nl/jan.zaaier%40post.nl", "https://plek.nl/<EMAIL>"),
        ("https://plek.nl/jan.zaaier%2540post.nl", "https://plek.nl/<EMAIL>"),
        ("https://plek.nl/a%2Fb%2Fjan.zaaier@post.nl/c", "https://plek.nl/<EMAIL>/c"),
        ("https://plek.nl/bel/0628461937", "https://plek.nl/bel/<TELEPHONE>"),
        ("https://plek.nl/bel_0628461937_nu", "https://plek.nl/<TELEPHONE>"),
        ("https://plek.nl/bsn/111222333/x", "https://plek.nl/bsn/<BSN>/x"),
        ("https://plek.nl/2018/06/2018-06-14-een-dag", "https://plek.nl/2018/06/2018-06-14-een-dag"),
        ("http://83.96.147.212/a", "http://<IP>/a"),
        ("mailto:jan.zaaier@post.nl?subject=a", "mailto:<EMAIL>"),
        ("https://plek.nl/contact/info@post.nl", "https://plek.nl/contact/info@post.nl"),
        ("http://[kapot", "http://[kapot"),
        ("https:/jan:geheim@plek.nl/a", "https://plek.nl/a"),
        ("https:\\\\jan:geheim@plek.nl/a", "https://plek.nl/a"),
        ("", ""),
        (None, None),
    ],
)
def test_mask_url(url: str | None, shown: str | None) -> None:
    assert FIELDS.mask_url(url) == shown
    assert FIELDS.mask_url(shown) == shown


def test_metadata_is_unchanged_if_masking_is_off() -> None:
    fields = MetadataMasker(PersonalData.model_validate(dict.fromkeys(KINDS, False)))
    url, title = "https://jan:geheim@plek.nl/jan.zaaier@post.nl?a#b", "Post aan jan.zaaier@post.nl"
    assert (fields.mask_url(url), fields.mask_text(title)) == (url, title)


def test_title_has_markers_even_if_the_text_has_synthetic_values() -> None:
    fields = MetadataMasker(PersonalData(replacement="synthetic"))
    assert fields.mask_text("Post aan jan.zaaier@post.nl over 3 wetten") == "Post aan <EMAIL> over 3 wetten"
    assert fields.mask_text("https://plek.nl/jan.zaaier%40post.nl 100% wol") == "<EMAIL>"
    assert fields.mask_text("100% wol") == "100% wol" and fields.mask_text(None) is None


def test_every_metadata_column_is_searched(names_model: Path) -> None:
    """New forms and names of persons are found in titles, URLs, ids and values as in texts."""
    fields = MetadataMasker(PersonalData(names=str(names_model)))
    assert fields.mask_text("Brief van Jan Jansen, bel 06\u201112345678") == "Brief van <NAME>, bel <TELEPHONE>"
    assert fields.mask_text("id jan at voorbeeld dot nl, Jan Jansen") == "id <EMAIL>, <NAME>"
    assert fields.mask_url("https://plek.nl/over/Jan-Jansen/foto") == "https://plek.nl/over/<NAME>/foto"
    assert fields.mask_url("https://plek.nl/Jan.Jansen") == "https://plek.nl/<NAME>"
    assert fields.mask_url("https://plek.nl/bel/06%E2%80%9112345678") == "https://plek.nl/bel/<TELEPHONE>"
    assert fields.mask_url("https://plek.nl/Tiel/a-b") == "https://plek.nl/Tiel/a-b"
    for name, shown in {"brief_Jan-Jansen": "x/withheld-7", "B.S.N._111222333": "x/withheld-7", "brief-7": "x"}.items():
        document = Document(text="", id="x", metadata={"original_id": name, "withheld_id": "x/withheld-7"})
        assert fields.mask_id(document) == shown, name
    assert (
        MetadataMasker(PersonalData()).mask_url("https://plek.nl/over/Jan-Jansen") == "https://plek.nl/over/Jan-Jansen"
    )


LINES = b"""{"id": "jan.zaaier@post.nl", "text": "een", "title": "a"}
{"id": "withheld-1", "text": "twee"}
{"id": "jan.zaaier@post.nl", "text": "drie", "url": "https://plek.nl/0628461937"}
{"id": "gewoon", "text": "vier"}
{"text": "vijf"}
"""


def read(folder: Path, opt_out: OptOut | None = None) -> tuple[list[Document], list[dict[str, Any]], dict[str, int]]:
    path = folder / "x.jsonl"
    path.write_bytes(LINES)
    removed = RemovedDocuments("s", "filter", FIELDS)
    reader, block = RawTextReader(RawFiles("s", [("x.jsonl", path)]), removed), MetadataMaskingStep(FIELDS)
    documents = OptOutFilter(opt_out or OptOut(), None, removed).run(reader.run())
    return list(block.run(documents)), removed.rows, dict(block.counts)


def test_id_with_personal_data_becomes_the_record_number(tmp_path: Path) -> None:
    documents, _, counts = read(tmp_path)
    assert [document.id for document in documents] == [
        "s/x.jsonl/withheld-1",
        "s/x.jsonl/withheld-2",  # otherwise it would be the id of the first
        "s/x.jsonl/withheld-3",
        "s/x.jsonl/gewoon",
        "s/x.jsonl/4",
    ]
    assert counts == {"id": 3, "url": 1, "title": 0}


@pytest.mark.parametrize(
    ("entry", "removed"),
    [
        ("jan.zaaier@post.nl", [("withheld-1", "id <EMAIL>"), ("withheld-3", "id <EMAIL>")]),
        ("s/x.jsonl/jan.zaaier@post.nl#2", [("withheld-3", "id s/x.jsonl/<EMAIL>#2")]),
        ("s/x.jsonl/withheld-3", [("withheld-3", "id s/x.jsonl/withheld-3")]),
        ("gewoon", [("gewoon", "id gewoon")]),
    ],
)
def test_holder_opts_out_by_original_or_published_id(
    tmp_path: Path, entry: str, removed: list[tuple[str, str]]
) -> None:
    opt_out = OptOut(ids=[entry])
    _, rows, _ = read(tmp_path, opt_out)
    assert [(row["id"].rpartition("/")[2], row["value"]) for row in rows] == removed
    index = hash_unit_identities("s", [("x.jsonl", tmp_path / "x.jsonl")], FieldNames(), 999)
    assert ListedEntries(opt_out, "someone").entries_in_unit(index).ids == [entry]
    assert ListedEntries(OptOut(ids=["s/y.jsonl/withheld-3"]), "someone").entries_in_unit(index).ids == []


def test_published_list_contains_no_persons(tmp_path: Path) -> None:
    ids, holders = ["jan.zaaier@post.nl", "7"], ["NL91ABNA0417164300"]
    listed = OptOut(date="2026-02-01", domains=["plek.nl"], ids=ids, holders=holders)
    assert publishable_list(listed) == {
        "date": "2026-02-01",
        "domains": ["plek.nl"],
        "ids": ["7", "<EMAIL>"],
        "holders": ["<IBAN>"],
    }
    path = tmp_path / "list.txt"
    path.write_text("jan.zaaier@post.nl, en meer\n")
    with pytest.raises(InputError, match="'<EMAIL>, en meer' is no domain"):
        read_opt_out_list(path)
