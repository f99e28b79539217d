"""A unit gets only the entries that match it: the filter's decisions are unchanged."""

from __future__ import annotations

import json
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus.rights_filters import OptOutFilter
from pipeline.opt_out import entries
from pipeline.opt_out.entries import ListedEntries, hash_unit_identities, read_identity_hashes, write_identity_hashes
from pipeline.sources.raw_documents import RawDocument, make_raw_documents
from pipeline.sources.record_formats import FieldNames, read_records
from pipeline.sources.settings import OPT_OUT_KINDS, OptOut
from pipeline.sources.source_units import PartWriter, part_name, read_part
from tests.sources.test_web_pages import PAGE, archive

FIELDS = st.fixed_dictionaries(
    {"text": st.just("tekst")},
    optional={
        "id": st.one_of(st.sampled_from(["1", "a", "a#2", ""]), st.integers(0, 9), st.none()),
        "url": st.sampled_from(["https://www.a.nl/x", "b.nl", "//C.B.nl", "http://[", "", "https://café.nl"]),
        "holder": st.sampled_from(["Een", "Twee", ""]),
    },
)
LISTS = st.builds(
    OptOut,
    domains=st.lists(st.sampled_from(["a.nl", "nl", "b.nl", "c.b.nl", "café.nl", "x.a.nl"]), max_size=3),
    ids=st.lists(st.sampled_from(["1", "a", "a#2", "s/x.jsonl/0", "s/x.jsonl/a#2", "s/x.jsonl/1#3", "7"]), max_size=3),
    holders=st.lists(st.sampled_from(["Een", "Drie", "someone"]), max_size=2),
)


def decided(documents: list[RawDocument], opt_out: OptOut, holder: str) -> list[list[str]]:
    """Return the matching entries of each document."""
    block = OptOutFilter(opt_out, holder)
    return [
        list(block.matching_entries(Document(text="t", id=result.id, metadata=vars(result))))
        for result in documents
        if result.text is not None
    ]


@given(st.lists(FIELDS, max_size=8), LISTS, st.sampled_from(["someone", "nobody"]))
@settings(max_examples=100)
def test_narrowed_list_decides_as_the_complete_one(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], opt_out: OptOut, holder: str
) -> None:
    folder = tmp_path_factory.mktemp("entries")
    file = folder / "x.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    documents = [
        result
        for result, _ in make_raw_documents(read_records(file, "x.jsonl", FieldNames(), 999), "s/x.jsonl", FieldNames())
    ]
    writer = PartWriter(folder, 1)
    for result in documents:
        writer.write(0, result)
    writer.finish(0)
    for path, is_part in ((file, False), (folder / part_name(0), True)):
        unit_entries = hash_unit_identities("s", [("x.jsonl", path)], FieldNames(), 999, is_part=is_part)
        narrowed = ListedEntries(opt_out, holder).entries_in_unit(unit_entries)
        expected = decided(documents, opt_out, holder)
        assert decided(documents, narrowed, holder) == expected
        listed = {f"{kind[:-1]} {value}" for kind in OPT_OUT_KINDS for value in getattr(narrowed, kind)}
        # The unit gets nothing else, except the holder of a source without documents, and later duplicates.
        hit = {entry for entries in expected for entry in entries}
        assert {entry for entry in listed if "#" not in entry} - {f"holder {holder}"} <= hit


def test_ids_and_holders_are_compared_in_one_unicode_form(tmp_path: Path) -> None:
    for of_list in ("NFC", "NFD"):
        of_data = {"NFC": "NFD", "NFD": "NFC"}[of_list]
        named, held = (unicodedata.normalize(of_list, text) for text in ("artikel-één", "Reünie"))
        opt_out = OptOut(ids=[named, "other"], holders=[held])
        own, holder = (unicodedata.normalize(of_data, text) for text in ("artikel-één", "Reünie"))
        file = tmp_path / f"{of_list}.jsonl"
        file.write_text(json.dumps({"text": "t", "id": own, "holder": holder}, ensure_ascii=False), encoding="utf-8")
        narrowed = ListedEntries(opt_out, "someone").entries_in_unit(
            hash_unit_identities("s", [("x.jsonl", file)], FieldNames(), 999)
        )
        assert (narrowed.ids, narrowed.holders) == (["artikel-één"], ["Reünie"])
        read = [
            result
            for result, _ in make_raw_documents(
                read_records(file, "x.jsonl", FieldNames(), 999), "s/x.jsonl", FieldNames()
            )
        ]
        assert decided(read, narrowed, "someone") == [["id artikel-één", "holder Reünie"]]
        assert ListedEntries(opt_out, holder).entries_in_unit(np.empty(0, dtype=np.uint64)).holders == ["Reünie"]


def test_every_format_is_indexed_without_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"id": [1, 2], "url": ["https://a.nl/1", None], "holder": [None, "Een"], "text": ["tekst", "tekst"]}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    with pa.ipc.new_stream(tmp_path / "x.arrow", pa.table(rows).schema) as stream:
        stream.write_table(pa.table(rows))
    (tmp_path / "x.csv").write_text("id;url;holder;text\n1;https://b.nl/1;;tekst\n3;;Twee;tekst\n")
    (tmp_path / "x.warc.gz").write_bytes(archive())
    (tmp_path / "x.html").write_bytes(PAGE)
    (tmp_path / "x.md").write_text("tekst")
    cases = {
        "x.parquet": OptOut(domains=["a.nl"], ids=["2", "s/x.parquet/1"], holders=["Een"]),
        "x.arrow": OptOut(domains=["a.nl"], ids=["2", "s/x.arrow/1"], holders=["Een"]),
        "x.csv": OptOut(domains=["b.nl"], ids=["3", "s/x.csv/3"], holders=["Twee"]),
        "x.warc.gz": OptOut(domains=["voorbeeld.nl"], ids=["urn:uuid:1", "s/x.warc.gz/urn:uuid:5"]),
        "x.html": OptOut(ids=["s/x.html/0"]),
        "x.md": OptOut(ids=["s/x.md/0"]),
    }
    every = OptOut(
        **{kind: [value for case in cases.values() for value in getattr(case, kind)] for kind in OPT_OUT_KINDS}
    )
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.sources.web_pages.extract_main_text", None)
        results = {name: hash_unit_identities("s", [(name, tmp_path / name)], FieldNames(), 10_000) for name in cases}
    for name, case in cases.items():
        assert ListedEntries(every, "someone").entries_in_unit(results[name]) == case, name
        read = make_raw_documents(read_records(tmp_path / name, name, FieldNames(), 10_000), f"s/{name}", FieldNames())
        hit = {entry for hits in decided([one for one, _ in read], every, "someone") for entry in hits}
        assert hit == {f"{kind[:-1]} {value}" for kind in OPT_OUT_KINDS for value in getattr(case, kind)}


def test_nested_id_of_an_extension_type_is_read(tmp_path: Path) -> None:
    own = uuid.UUID(int=5)
    stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([own.bytes], pa.binary(16)))
    nested = pa.StructArray.from_arrays([stored], ["id"])
    pq.write_table(pa.table({"text": ["tekst"], "meta": nested}), tmp_path / "x.parquet")
    keys, file = FieldNames(id="meta.id"), tmp_path / "x.parquet"
    read = [one for one, _ in make_raw_documents(read_records(file, "x.parquet", keys, 999), "s/x.parquet", keys)]
    assert [one.original_id for one in read] == [str(own)]
    opt_out = OptOut(ids=[str(own)])
    assert (
        ListedEntries(opt_out, "").entries_in_unit(hash_unit_identities("s", [("x.parquet", file)], keys, 999))
        == opt_out
    )


def test_index_contains_no_names_and_does_not_depend_on_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"text": "t", "id": f"naam{n}", "holder": "De Krant"}) for n in range(40)]
    results = []
    for order in (1, -1):
        monkeypatch.setattr(entries, "HASHES_IN_MEMORY", 7)
        for number, half in enumerate((lines[:20], lines[20:])[::order]):
            (tmp_path / f"{number}.jsonl").write_text("\n".join(half))
        names = ["0.jsonl", "1.jsonl"][::order]
        with_place = hash_unit_identities("s", [("x.jsonl", tmp_path / name) for name in names], FieldNames(), 999)
        write_identity_hashes(tmp_path / "index", with_place)
        results.append((tmp_path / "index").read_bytes())
    assert results[0] == results[1] and b"Krant" not in results[0] and b"naam" not in results[0]
    assert np.array_equal(read_identity_hashes(tmp_path / "index"), with_place)
    assert len(with_place) == 2 * 40 + 2


def test_rows_with_invalid_utf8_and_damage_are_left_to_the_filter(tmp_path: Path) -> None:
    ids = pa.array([b"goed", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ids, "text": ["t", "t"]}), tmp_path / "x.parquet")
    index = hash_unit_identities("s", [("x.parquet", tmp_path / "x.parquet")], FieldNames(), 999)
    assert ListedEntries(OptOut(ids=["goed", "1"]), "someone").entries_in_unit(index).ids == ["goed"]
    (tmp_path / "y.parquet").write_bytes(b"PAR1")
    both = [(name, tmp_path / name) for name in ("y.parquet", "x.parquet")]
    index = hash_unit_identities("s", both, FieldNames(), 999)
    assert ListedEntries(OptOut(ids=["goed", "1"]), "someone").entries_in_unit(index).ids == ["goed"]
    (tmp_path / "index").write_bytes(b"")
    with pytest.raises(InputError, match=r"index is damaged: delete it"):
        read_identity_hashes(tmp_path / "index")


def test_part_is_read_by_its_columns(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, 1)
    writer.write(0, RawDocument("s/data/9", 1, 5, "tekst", url="https://a.nl", original_id="9"))
    writer.finish(0)
    index = hash_unit_identities("s", [("train", tmp_path / part_name(0))], FieldNames(), 999, is_part=True)
    listed = OptOut(domains=["a.nl", "b.nl"], ids=["9", "s/data/9", "s/train/0"])
    assert ListedEntries(listed, "someone").entries_in_unit(index) == OptOut(domains=["a.nl"], ids=["9", "s/data/9"])
    assert next(read_part(tmp_path / part_name(0))).text == "tekst"
