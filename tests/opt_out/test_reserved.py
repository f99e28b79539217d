"""Reserved documents are removed with all their copies in any source, and nothing else changes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.corpus import deduplicate, find_duplicates
from pipeline.corpus.duplicates.signature_files import SignatureWriter
from pipeline.corpus.rules.settings import C4, LanguageRules
from pipeline.corpus.settings import (
    Corpus,
    DeduplicateSettings,
    Deduplication,
    FindDuplicatesSettings,
    SignatureSettings,
)
from pipeline.corpus.text.word_tokenizers import Splitter
from pipeline.opt_out import reserved
from pipeline.opt_out.settings import ReservedSettings, collect_line_rules
from tests.corpus.duplicates.test_clusters import FEW, KEYS, expected

pytestmark = pytest.mark.slow

Units = dict[tuple[str, int], list[dict[str, Any]]]


def write(folder: Path, units: Units, section: Deduplication) -> list[Path]:
    """Write signatures that are given as rows, a file for each unit."""
    folder.mkdir()
    paths = []
    for (source, unit), rows in units.items():
        paths.append(folder / f"{source}.{unit}")
        writer = SignatureWriter(paths[-1], section, {"source": source, "unit": unit})
        for row in rows:
            writer.add({key: value for key, value in row.items() if key != "source"})
        writer.close()
    return paths


def find_reserved(units: Units, listed: Units, section: Deduplication) -> dict[str, list[Any]]:
    """Return the deduplication result by file."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        find_duplicates.run(
            FindDuplicatesSettings(deduplication=section),
            signatures=(paths := write(folder / "signatures", units, section)),
            documents=paths,
            reserved=write(folder / "reserved", listed, section),
            pairs=[],
            duplicates=folder / "duplicates",
        )
        return {
            path.name: [
                tuple(row.values())
                for row in pq.read_table(path).select(["id", "reason", "value", "cluster_size"]).to_pylist()
            ]
            for path in sorted((folder / "duplicates").iterdir())
        }


def row(name: str, content: int, *bands: int) -> dict[str, Any]:
    """Return the signature of a document of the source named in its id."""
    keys = dict(zip(("bucket_000", "bucket_001"), (*bands, 0, 0), strict=False))
    return {"id": name, "source": name[0], "characters": 9, "ngrams": 1, "content_0": content, "content_1": 1, **keys}


ROWS = st.lists(
    st.builds(
        lambda source, content, one, other: row(source, content + 1, one, other),
        st.sampled_from("abc"),
        KEYS,
        KEYS,
        KEYS,
    ),
    max_size=20,
)


@given(ROWS, ROWS.map(lambda rows: rows[:5]), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=settings.default.max_examples // 5)
def test_only_clusters_with_a_reserved_document_are_removed(
    documents: list[dict[str, Any]], listed: list[dict[str, Any]], divided: int, random: Any
) -> None:
    for number, entry in enumerate([*documents, *listed]):
        entry["id"] = f"{entry['source']}/{number * 7 % 29}"
    names = {entry["id"] for entry in listed}
    joined = {name: (value, size) for name, _, value, size in expected([*documents, *listed], [])}
    clusters = {joined[name][0] for name in names if name in joined}
    gone = {entry["id"] for entry in documents if joined.get(entry["id"], ("",))[0] in clusters}
    others = expected([entry for entry in documents if entry["id"] not in gone], FEW.prefer)
    results = []
    for parts in (1, divided):
        units, reserved_units = ({(source, 0): [] for source in "abc"} for _ in range(2))
        for rows, made in ((documents, units), (listed, reserved_units)):
            random.shuffle(rows)
            for entry in rows:
                made.setdefault((entry["source"], random.randrange(parts)), []).append(entry)
        shuffled = list(units.items())
        random.shuffle(shuffled)
        removed = [entry for rows in find_reserved(dict(shuffled), reserved_units, FEW).values() for entry in rows]
        taken = [entry for entry in removed if entry[1] == "opt_out"]
        assert sorted(entry for entry in removed if entry[1] != "opt_out") == others
        assert {entry[0] for entry in taken} == gone
        for name, _, value, _ in taken:
            assert value in names and joined[name][0] == joined[value][0]
        results.append(sorted(removed))
    assert results[0] == results[1]


def test_exact_copy_of_a_reserved_document_is_always_removed() -> None:
    units = {("a", 0): [row("a/1", 1), row("a/2", 1), row("a/3", 2), row("a/4", 2)]}
    keeps = FEW.model_copy(update={"exact": False})
    assert find_reserved(units, {("b", 0): [row("b/1", 1)]}, keeps) == {
        "a.0.parquet": [("a/1", "opt_out", "b/1", 1), ("a/2", "opt_out", "b/1", 1)]
    }


class Case:
    """A source with an opt-out list and one with copies of it, through the steps."""

    def __init__(self, chain: Any, files: dict[str, bytes]) -> None:
        self.chain = chain
        self.raw = chain.folder / "raw" / "s"
        chain.filter("s", files)

    def reserve(self, **entries: list[str]) -> dict[str, Any]:
        """Sign the documents named by the entries, and return the counts."""
        corpus, folder = self.chain.corpus, self.chain.folder
        listed = {"domains": [], "ids": [], "holders": [], "holder": "someone"} | entries
        described = {
            "unit": 0,
            "is_part": False,
            "files": [
                {"name": path.name, "bytes": path.stat().st_size, "sha256": hash_file(path)}
                for path in sorted(self.raw.iterdir())
            ],
            "opt_out": listed if entries else None,
        }
        (folder / "unit.json").write_text(json.dumps(described))
        keys = set(SignatureSettings.model_fields)
        step = ReservedSettings(
            source="s",
            normalization=corpus.normalization,
            line_rules=collect_line_rules([corpus.languages]),
            personal_data=corpus.personal_data,
            signatures=SignatureSettings(**corpus.deduplication.model_dump(include=keys)),
            broken_share=corpus.broken_share,
            quarantine=self.chain.reading.get("quarantine", False),
        )
        return reserved.run(
            step, unit=folder / "unit.json", files=sorted(self.raw.iterdir()), reserved=folder / "s.reserved"
        )

    def forget(self, source: str, private: Path | None = None) -> tuple[set[str], list[dict[str, Any]]]:
        """Deduplicate a source with reserved documents; return the kept ids, and the removed rows."""
        folder = self.chain.folder
        shutil.rmtree(folder / "duplicates", ignore_errors=True)
        find_duplicates.run(
            FindDuplicatesSettings(deduplication=self.chain.corpus.deduplication),
            signatures=[folder / f"{source}.signatures"],
            documents=[folder / f"{source}.filtered"],
            reserved=[folder / "s.reserved"],
            pairs=[],
            duplicates=folder / "duplicates",
        )
        deduplicate.run(
            DeduplicateSettings(keep_removed=private is not None, samples=private is not None),
            documents=folder / f"{source}.filtered",
            duplicates=folder / "duplicates" / f"{source}.0.parquet",
            deduplicated=folder / f"{source}.deduplicated",
            removed=folder / f"{source}.deduplicate",
            private=private,
        )
        stays = {entry["id"] for entry in self.chain.rows(f"{source}.deduplicated")}
        return stays, self.chain.rows(f"{source}.deduplicate")


def test_near_duplicate_in_another_source_is_removed_without_its_text(
    chain: Any, texts: dict[str, str], as_json_lines: Any, tmp_path: Path
) -> None:
    water = texts["nl_water"]
    case = Case(chain, {"x.jsonl": as_json_lines({"water": water, "bakker": texts["nl_bakker"]})})
    chain.filter("t", {"y.jsonl": as_json_lines({"copy": water[:-30], "fiets": texts["nl_fiets"]})})
    chain.deduplicate(["t"])
    assert case.reserve(ids=["water"], domains=["nergens.nl"]) == {
        "documents": 1,
        "bytes": len(water.encode()),
        "entries": 1,
    }
    stored = json.loads(pq.read_metadata(chain.folder / "s.reserved").metadata[b"polder"])
    assert stored["entries"] == {"id water": 1}
    private = tmp_path / "private" / "removed.parquet"
    stays, removed = case.forget("t", private)
    assert stays == {"t/y.jsonl/fiets"}
    assert [(entry["id"], entry["reason"], entry["value"]) for entry in removed] == [
        ("t/y.jsonl/copy", "opt_out", "s/x.jsonl/water")
    ]
    assert [entry["text"] for entry in pq.read_table(private).to_pylist()] == [None]
    for name in ("s.reserved", "t.deduplicate", "duplicates/t.0.parquet"):
        assert b"Wie" not in (chain.folder / name).read_bytes()


def test_document_that_the_filter_would_remove_is_signed(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    case = Case(
        chain, {"x.jsonl": as_json_lines({"german": texts["de"], "short": "Een zin van zes woorden, meer niet."})}
    )
    assert case.reserve(holders=["someone"])["documents"] == 2
    assert {entry["id"] for entry in chain.rows("s.reserved")} == {"s/x.jsonl/german", "s/x.jsonl/short"}


def test_unit_without_entries_is_not_read(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    case = Case(chain, {"x.jsonl": as_json_lines(texts)})
    (case.raw / "x.jsonl").write_bytes(b"{broken")
    assert case.reserve() == {"documents": 0, "bytes": 0, "entries": 0}
    chain.filter("t", {"y.jsonl": as_json_lines(texts)})
    chain.deduplicate(["t"])
    before = (chain.folder / "duplicates" / "t.0.parquet").read_bytes()
    stays, _ = case.forget("t")
    assert len(stays) == 5 and (chain.folder / "duplicates" / "t.0.parquet").read_bytes() == before


@pytest.mark.parametrize("words", get_args(Splitter))
@pytest.mark.parametrize("dropped", [False, True])
def test_copy_with_dropped_lines_is_found(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any, dropped: bool, words: Splitter
) -> None:
    rules = LanguageRules(quality=None, repetition=None, words=words, c4=C4(minimum_sentences=1))
    chain = new_chain(
        Corpus(languages={"en": rules, "nl": LanguageRules(quality=None)}, deduplication=Deduplication(minhash=False))
    )
    page = texts["en_garden"] + "\n" + "\n".join(f"menu {number}" for number in range(60))
    case = Case(chain, {"x.jsonl": as_json_lines({"page": page})})
    copy = texts["en_garden"] if dropped else page
    chain.filter("t", {"y.jsonl": as_json_lines({"copy": copy, "fiets": texts["nl_fiets"]})})
    chain.deduplicate(["t"])
    assert case.reserve(ids=["s/x.jsonl/page"])["documents"] == 1
    assert len(chain.rows("s.reserved")) == 2
    assert case.forget("t")[0] == {"t/y.jsonl/fiets"}


@pytest.mark.parametrize("dropped", [False, True])
def test_copy_is_found_with_the_gptnl_and_c4_rules(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any, dropped: bool
) -> None:
    languages = {"nl": {"c4": {}}, "en": {"c4": {}}}
    chain = new_chain(
        Corpus.model_validate({"preset": "gptnl", "languages": languages, "deduplication": {"minhash": False}})
    )
    assert {(rules.language, rules.words) for rules in collect_line_rules([chain.corpus.languages])} == {
        ("nl", "nltk"),
        ("en", "nltk"),
    }
    long = "De hond blaft. De kat slaapt. Het regent in de stad. " + texts["nl_bakker"]
    page = long + "\n" + "\n".join(f"menu {number}" for number in range(60))
    case = Case(chain, {"x.jsonl": as_json_lines({"page": page})})
    chain.filter("t", {"y.jsonl": as_json_lines({"copy": long if dropped else page, "garden": texts["en_garden"]})})
    chain.deduplicate(["t"])
    assert {row["id"] for row in chain.rows("t.deduplicated")} == {"t/y.jsonl/copy", "t/y.jsonl/garden"}
    assert case.reserve(domains=["nergens.nl"], ids=["page"])["documents"] == 1
    assert case.forget("t")[0] == {"t/y.jsonl/garden"}


def test_parts_of_a_reserved_document_are_not_cut_elsewhere(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    lines = {"line_characters": 20, "line_documents": 2}
    chain = new_chain(Corpus(deduplication=Deduplication(paragraphs=True, passage_words=20, **lines)))
    quoted, own = texts["nl_water"], texts["nl_bakker"] + "\n\n" + texts["nl_fiets"]
    case = Case(chain, {"x.jsonl": as_json_lines({"water": quoted})})
    chain.filter("t", {"y.jsonl": as_json_lines({"quote": f"{own}\n\n{quoted}"})})
    chain.deduplicate(["t"])
    case.reserve(ids=["water"])
    assert case.forget("t")[0] == {"t/y.jsonl/quote"}
    (row,) = chain.rows("t.deduplicated")
    assert row["cut"] is row["spans"] is None
    (signed,) = chain.rows("s.reserved")
    assert signed["paragraphs"] == signed["lines"] == signed["passages"] == []


def test_reserved_documents_are_counted_as_the_filter_reads_them(
    chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    chain.reading = {"quarantine": True}
    good, cut = as_json_lines({"water": texts["nl_water"]}), gzip.compress(as_json_lines({"fiets": texts["nl_fiets"]}))
    case = Case(chain, {"a.jsonl": good, "b.jsonl.gz": cut[:-5], "c.jsonl": good + b"{\n" * 9})
    assert case.reserve(ids=["water", "fiets"]) == {
        "documents": 1,
        "bytes": len(texts["nl_water"].encode()),
        "entries": 1,
    }
    chain.reading = {}
    with pytest.raises(InputError, match=r"b\.jsonl\.gz is truncated"):
        case.reserve(ids=["water"])
